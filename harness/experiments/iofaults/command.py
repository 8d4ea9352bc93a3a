"""The command that repeats one trial of fault injection: ``python -m harness effect '<JSON>'``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.experiments.iofaults.case import Case, from_json
from harness.experiments.iofaults.power import UnseenWritesError
from harness.experiments.iofaults.slices import FROM_RECORDING
from harness.experiments.iofaults.sweep import EXPLORERS, all_points
from harness.experiments.iofaults.workshop import Row, Workshop
from harness.faults.registry import unknown
from harness.folders import ROOT
from harness.io_trace.library import recorder_library
from harness.processes.fork_server import ForkServerError
from stores.errors import ConfigError

_SETTINGS = ("case", "point", "seed", "only")
_SEVERAL_AT_A_POINT = ("tear", "kill_twice", "power", "power_twice", "failed_sync")
_NUMBER_MAX = (1 << 63) - 1
"""The largest number that the recorder can hold."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The trials that a command asks for: ``only`` at ``point`` of ``case``, all there, or all of the case."""

    case: Case
    point: int | None
    seed: int
    only: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials of the JSON argument. Return 0 if all are as promised, 1 if not, 2 if they cannot be run."""
    parser = argparse.ArgumentParser(
        prog="python -m harness effect", description="Run one trial below the process again."
    )
    parser.add_argument("trial", help="the trial as JSON, as a failed one prints it; - reads it from standard input")
    given = parser.parse_args(argv)
    try:
        asked = read_asked(sys.stdin.read() if given.trial == "-" else given.trial)
        rows = run(asked)
    except (ConfigError, ForkServerError, UnseenWritesError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"this trial can't be made here: {error}. Make room or correct that, and run it again", file=sys.stderr)
        return 2
    wrong = [row for row in rows if not row["expected"]]
    for row in wrong if asked.point is None else rows:
        print(f"{row['backend']} at {row['durability']}, {row['description']}, seed {row['seed']}: {row['result']}")
        print(f"  acknowledged {row['acknowledged']}, found {row['state']}, attempted {row['attempted']}")
        if row["detail"]:
            print(f"  {row['detail']}")
    if asked.point is None:
        print(f"{len(rows):,} trials, {len(wrong):,} of them not as promised")
    return 1 if wrong else 0


def read_asked(text: str) -> Asked:
    """Parse the JSON of a command. Raises: ConfigError if it describes no trial."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a trial is a JSON object, and this is no JSON: {error}") from error
    if not isinstance(parsed, Mapping):
        raise ConfigError(f"a trial is a JSON object, not {parsed!r}")
    for name in parsed:
        if name not in _SETTINGS:
            raise unknown("setting of a trial called", name, _SETTINGS)
    case = from_json(parsed.get("case"))
    if case.recording:
        case = replace(case, recording=str(_found(Path(case.recording))))
    point = _number(parsed, "point", 0) if "point" in parsed else None
    only = parsed.get("only", "")
    if not isinstance(only, str):
        raise ConfigError(f"only of a trial is a text, not {only!r}")
    if only and case.fault not in _SEVERAL_AT_A_POINT:
        raise ConfigError(f"{case.fault} is one trial at each point: leave out only {only!r}")
    return Asked(case, point, _number(parsed, "seed", 1), only)


def run(asked: Asked) -> list[Row]:
    """Return the rows of one trial, of all trials at its point, or of all trials of its case.

    Raises: ConfigError if the trial does not exist or cannot be run here; ForkServerError, as ``Workshop``.
    """
    recorder_library()
    case = asked.case
    with Workshop(case, asked.seed) as shop:
        points = range(0) if asked.point is None else range(asked.point, asked.point + 1)
        if asked.point is None or case.fault in FROM_RECORDING:
            there = all_points(shop)
            if asked.point is not None and asked.point not in there:
                raise ConfigError(f"{case.fault} of {case.subject} has points 0 to {there.stop - 1}, not {asked.point}")
            points = points or there
        try:
            rows = list(EXPLORERS[case.fault](shop, points, asked.only))
        except ValueError as error:
            raise ConfigError(f"only {asked.only!r}: {error}") from error
    if not rows:
        where = "anywhere" if asked.point is None else f"at point {asked.point}"
        raise ConfigError(f"there is nothing to try {where} with {case.fault}")
    return rows


def _found(recording: Path) -> Path:
    """Return the recording's path, which a command gives from the current folder or from the project's."""
    for place in (recording, ROOT / recording):
        if place.is_file():
            return place.absolute()
    raise ConfigError(f"the recording {recording} is gone: leave it out of the command, and a new one is made")


def _number(parsed: Mapping[str, Any], name: str, default: int) -> int:
    value = parsed.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBER_MAX:
        raise ConfigError(f"{name} of a trial is a number from 0 to {_NUMBER_MAX}, not {value!r}")
    return value
