"""The timing of a profile's cases: each in its own process, in shuffled order, repeated; medians over all rounds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import harness
from harness import profiles
from harness.experiments.microbench.case import Case, cases
from harness.experiments.microbench.claim import claims, ratios
from harness.folders import temporary_folder
from harness.processes.load import median_load

CLAIMED_REPEATS = 3
"""The factor of repeats for cases of a claim, so that a slow minute of the machine does not decide it."""
TIMEOUT_S = 600
_ROOT = Path(harness.__file__).parent.parent


def planned(profile: str, seed: int, backends: Collection[str] | None = None) -> list[tuple[Case, int]]:
    """Return every measurement of a profile, with its repeat, in the order in which they are made.

    ``backends``, if given, excludes the cases of other backends. Raises: ConfigError for an unknown profile.
    """
    repeats = profiles.profile(profile).microbench_repeats
    chosen = [
        case
        for case in cases(profile)
        if backends is None or case.subject in backends or case.subject.startswith("plain-")
    ]
    return _plan(chosen, repeats, Random(seed))


def summarized(rounds: Iterable[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Return rows of kind ``benchmark``, one for each case of the ``rounds``, and rows of kind ``ratio``."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for each in rounds:
        found[each["profile"], each["case"]].append(each)
    order = {(profile, case.id): case for profile in {name for name, _ in found} for case in cases(profile)}
    rows = [
        {**_row(case, [each["seconds"] for each in found[key]]), **median_load(found[key])}
        for key, case in order.items()
        if key in found
    ]
    return rows + ratios(rows)


def _plan(chosen: list[Case], repeats: int, random: Random) -> list[tuple[Case, int]]:
    """Return all measurements in shuffled order; those that are compared with each other are adjacent."""
    plan = []
    for repeat in range(repeats * CLAIMED_REPEATS):
        groups = [group for group in _compared(chosen) if len(group) > 1 or repeat < repeats]
        random.shuffle(groups)
        for group in groups:
            random.shuffle(group)
            plan += [(case, repeat) for case in group]
    return plan


def _compared(chosen: list[Case]) -> list[list[Case]]:
    """Return ``chosen`` in groups: cases that a claim compares, directly or through others, are in one group."""
    groups = [[case] for case in chosen]
    for claim in claims():
        ids = {claim.subject.id, claim.yardstick.id}
        joined = [group for group in groups if any(case.id in ids for case in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([case for group in joined for case in group])
    return [group for group in groups if group]


def measure(case: str, profile: str, seed: int) -> list[float]:
    """Return the seconds of each round of a case, in a process of its own.

    Raises: RuntimeError if it fails, with the command to repeat it; TimeoutExpired.
    """
    with temporary_folder("bench") as folder:
        result = Path(folder, "benchmark.json")
        command = [
            sys.executable, "-P", "-m", "pytest", "-q", "-p", "pytest_benchmark.plugin", "-p", "pytest_timeout",
            "-p", "no:cacheprovider",
            f"{_ROOT}/harness/experiments/microbench/bench_stores.py::test_case[{case}]",
            "--profile", profile, "--load-seed", str(seed),
            "--basetemp", f"{folder}/work", "--benchmark-json", str(result), "--benchmark-save-data",
            "--rootdir", str(_ROOT),
        ]  # fmt: skip
        environment = {
            **os.environ, "PYTHONPATH": str(_ROOT), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
            # Loading every installed plugin takes longer than most measurements.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }  # fmt: skip
        done = subprocess.run(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(
                f"timing {case} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}\nrepeat: {' '.join(command)}"
            )
        [measured] = json.loads(result.read_text())["benchmarks"]
        # A suite that does not measure the time of its work reports its seconds itself.
        return [float(second) for second in measured["extra_info"].get("seconds", measured["stats"]["data"])]


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
