"""The timing of a profile's cases: the two sides of a ratio in one process, in shuffled order, in repeats.

A process times some cases, one after the other. Each opens a new store, and closes it before the next one is opened.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import NamedTuple

import harness
from harness.budget import DEFAULT, NEVER, NIGHT, SMOKE, Deadline, check_profile
from harness.experiment import RATIO
from harness.experiments.microbench.case import Case
from harness.experiments.microbench.claim import Limit, RatioClaim, cases, claims, limits, ratios, threshold_cases
from harness.folders import temporary_folder
from harness.processes.load import SPEED_UNIT, is_busy, median_load
from harness.report.ratios import is_clear
from harness.report.rows import Row

CASES_AT_ONCE = 8
"""About so many cases share a process: it takes a second to start, as long as a case."""
TIMEOUT_S = 600.0
REPEATS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {SMOKE: (1, 1, 1), DEFAULT: (5, 5, 1), NIGHT: (15, 5, 5)}
)
"""Repeats of cases: the most for ratios with a threshold, those for other ratios, and those of all other cases.

Five give a figure its interval.
"""
REPEATS_AT_FIRST = 3
"""So many repeats give an interval of a ratio."""
_FIRST_OTHER = 100
"""The number of the first repeat without thresholds: a case may be measured both for one and without."""
_ROOT = Path(harness.__file__).parent.parent
_SUITES = f"{_ROOT}/harness/experiments/microbench/bench_stores.py"


class Round(NamedTuple):
    """The seconds of a round by the clock, the CPU seconds of its process, and the speed of the processor meanwhile.

    Where other threads work too, there are only the first ones.
    """

    seconds: float
    cpu_seconds: float | None
    machine_speed: float | None


class CaseBatch(NamedTuple):
    """The cases of one process in their order, the repeat, and whether it is made for thresholds."""

    cases: tuple[Case, ...]
    repeat: int
    for_thresholds: bool


def planned(profile: str, seed: int, backends: Collection[str] | None = None) -> list[CaseBatch]:
    """Return every measurement of a profile, in the order in which they are made.

    ``backends``, if given, excludes the cases of other backends. Raises: ConfigError for an unknown profile.
    """
    check_profile(profile)
    own_cases = [
        case
        for case in cases(profile)
        if backends is None or case.subject in backends or case.subject.startswith("plain-")
    ]
    return _plan(own_cases, REPEATS[profile], Random(seed))


def summarized(rounds: Iterable[Row]) -> list[dict[str, object]]:
    """Return rows of kind ``benchmark``, one for each case of the ``rounds``, and rows of kind ``ratio``."""
    by_case: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for each in rounds:
        by_case[each["profile"], each["case"]].append(each)
    order = {(profile, case.id): case for profile in {name for name, _ in by_case} for case in cases(profile)}
    rows = [
        {**_row(case, [each["seconds"] for each in by_case[key]]), **median_load(by_case[key])}
        for key, case in order.items()
        if key in by_case
    ]
    seconds: dict[str, dict[int, float]] = defaultdict(dict)
    cpu_seconds: dict[str, dict[int, float]] = defaultdict(dict)
    busy = set()
    for (_, case), group in by_case.items():
        for repeat in sorted({each["seed"] for each in group}):
            mine = [each for each in group if each["seed"] == repeat]
            seconds[case][repeat] = statistics.median(each["seconds"] for each in mine)
            # As on a machine of one speed: that of a processor changes within seconds.
            if on_cpu := [each["cpu_seconds"] * _speed(each) for each in mine if each.get("cpu_seconds") is not None]:
                cpu_seconds[case][repeat] = statistics.median(on_cpu)
            if any(map(is_busy, mine)):
                busy.add((case, repeat))
    return rows + ratios(seconds, busy, cpu_seconds)


def _speed(row: Row) -> float:
    return (row.get("machine_speed") or SPEED_UNIT) / SPEED_UNIT


def still_needed(names: Sequence[str], repeat: int, rounds: Iterable[Row]) -> tuple[str, ...]:
    """Return the cases of a measurement of thresholds that is made after ``rounds``.

    From the fourth repeat on, a case is left out once all its ratios are clear (``is_clear``).
    """
    if repeat < REPEATS_AT_FIRST:
        return tuple(names)
    ratio_rows = [row for row in summarized(rounds) if row["kind"] == RATIO]
    rows = {(row["claim"], row["subject"], row["durability"]): row for row in ratio_rows}
    bounds: list[tuple[RatioClaim | Limit, set[str]]] = [(limit, {limit.subject.id}) for limit in limits()]
    bounds += [(claim, {claim.subject.id, claim.yardstick.id}) for claim in claims() if claim.at_least]
    needed: set[str] = set()
    for bound, ids in bounds:
        row = rows.get((bound.text, bound.subject.subject, str(bound.subject.durability)))
        if ids <= set(names) and (row is None or not is_clear(row)):
            needed |= ids
    return tuple(name for name in names if name in needed)


def _plan(chosen: Sequence[Case], repeats: Sequence[int], random: Random) -> list[CaseBatch]:
    """Return all measurements: first those of ratios with a threshold, then those of other ratios, then the others.

    Three repeats of a batch follow each other, so that a run that is cut short has intervals of some ratios. Further
    repeats go round by round. The order in a batch differs from repeat to repeat, so that whatever a case leaves behind
    in its process affects both sides of a ratio. A case of both kinds of ratios is measured for each: so nothing else
    is measured before all thresholds are decided.
    """
    gates, in_open_claims = threshold_cases(), set().union(*_pairs(claim for claim in claims() if not claim.at_least))
    gated = _compared([case for case in chosen if case.id in gates])
    needed = _compared([case for case in chosen if case.id in in_open_claims])
    others = _compared([case for case in chosen if case.id not in gates | in_open_claims])
    plan = []
    for some, times, first in zip((gated, needed, others), repeats, (0, _FIRST_OTHER, _FIRST_OTHER), strict=True):
        random.shuffle(some)
        parts, at_first = _batches(some), min(times, REPEATS_AT_FIRST)
        turns = [(batch, repeat) for batch in parts for repeat in range(at_first)]
        turns += [(batch, repeat) for repeat in range(at_first, times) for batch in parts]
        plan += [CaseBatch(_in_order(batch, random), first + repeat, some is gated) for batch, repeat in turns]
    return plan


def _batches(groups: Iterable[list[Case]]) -> list[list[list[Case]]]:
    batches: list[list[list[Case]]] = []
    for group in groups:
        if batches and sum(map(len, batches[-1])) + len(group) <= CASES_AT_ONCE:
            batches[-1].append(group)
        else:
            batches.append([group])
    return batches


def _in_order(groups: Sequence[list[Case]], random: Random) -> tuple[Case, ...]:
    """Return the cases group by group in shuffled order; those that share a store are adjacent."""
    order: list[Case] = []
    for group in random.sample(groups, len(groups)):
        fills: dict[object, list[Case]] = {}
        for case in random.sample(group, len(group)):
            fills.setdefault(case.fill or case.id, []).append(case)
        order += [case for fill in fills.values() for case in fill]
    return tuple(order)


def _pairs(of: Iterable[RatioClaim]) -> list[set[str]]:
    """Return the IDs of both cases of each claim."""
    return [{claim.subject.id, claim.yardstick.id} for claim in of]


def _compared(chosen: Iterable[Case]) -> list[list[Case]]:
    """Return ``chosen`` in groups. Cases are in one group if a claim compares them, or if both are in a group with a
    third one. Cases that share a store with staged records are in one group if claims compare both or neither."""
    chosen = list(chosen)
    groups = [[case] for case in chosen]
    together = _pairs(claims())
    compared = set().union(*together)
    together += [
        {case.id for case in chosen if case.fill == fill and (case.id in compared) == is_compared}
        for fill in dict.fromkeys(case.fill for case in chosen if case.fill is not None)
        for is_compared in (True, False)
    ]
    for ids in together:
        parts = [group for group in groups if any(case.id in ids for case in group)]
        groups = [group for group in groups if group not in parts]
        groups.append([case for group in parts for case in group])
    return [group for group in groups if group]


def measure(names: Sequence[str], profile: str, seed: int, deadline: Deadline = NEVER) -> dict[str, list[Round]]:
    """Return the seconds and the CPU seconds of each round of each case, in a process of their own.

    At ``deadline`` the process is killed: cases that it had not finished are missing then.

    Raises: RuntimeError if it fails, with the lines that say why; TimeoutExpired.
    """
    with temporary_folder("bench") as folder:
        result = Path(folder, "seconds")
        command = [
            sys.executable, "-P", "-m", "pytest", "-q", "-p", "pytest_benchmark.plugin", "-p", "pytest_timeout",
            "-p", "no:cacheprovider",
            *(f"{_SUITES}::test_case[{name}]" for name in names),
            "--profile", profile, "--load-seed", str(seed),
            "--basetemp", f"{folder}/work", "--seconds-file", str(result), "--rootdir", str(_ROOT),
        ]  # fmt: skip
        environment = {
            **os.environ, "PYTHONPATH": str(_ROOT), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
            # Loading every installed plugin takes longer than most measurements.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }  # fmt: skip
        try:
            process = subprocess.run(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=min(TIMEOUT_S, max(0.0, deadline.remaining_s)), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            if not deadline.passed:
                raise
        else:
            if process.returncode:
                raise RuntimeError(
                    f"timing {', '.join(names)} failed:\n{_reasons(process.stdout)}{process.stderr[-1000:]}"
                )
        return _read(result)


def _reasons(output: str) -> str:
    """Return the lines of pytest's output that say what failed, without the tables of figures."""
    lines = [line for line in output.splitlines() if line.startswith(("E ", "FAILED", "ERROR"))]
    return "".join(f"{line}\n" for line in lines) or output[-3000:]


def _read(result: Path) -> dict[str, list[Round]]:
    lines = result.read_text().splitlines(keepends=True) if result.exists() else []
    results = [json.loads(line) for line in lines if line.endswith("\n")]
    return {each["case"]: [Round(*each_round) for each_round in each["rounds"]] for each in results}


def _row(case: Case, seconds: list[float]) -> dict[str, object]:
    median = statistics.median(seconds)
    quarters = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [median] * 3
    return {
        "kind": "benchmark",
        "suite": case.suite,
        "name": case.id,
        "subject": case.subject,
        "durability": str(case.durability),
        "records_per_commit": case.records_per_commit,
        "distribution": case.distribution,
        "median_s": median,
        "iqr_s": quarters[2] - quarters[0],
        "rounds": len(seconds),
        "records": case.records,
        "records_per_s": case.records / median,
    }
