"""The repetition of one trial of fault injection, or of all trials of a case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness import replay
from harness.experiment import Again
from harness.experiments.iofaults.case import Asked
from harness.experiments.iofaults.fault import IO_FAULTS, Row
from harness.experiments.iofaults.power import UnseenWritesError
from harness.experiments.iofaults.workshop import Workshop
from harness.folders import ROOT
from harness.io_trace.library import recorder_library
from harness.processes.fork_server import ForkServerError
from stores.errors import ConfigError


def repeat(asked: Asked) -> Again:
    """Run the trials, and return what came of them. Raises: ConfigError if they cannot be run here."""
    try:
        rows = run(asked)
    except (ForkServerError, UnseenWritesError) as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(
            f"this trial can't be made here: {error}. Make room or correct that, and run it again"
        ) from error
    wrong = [row for row in rows if not row["expected"]]
    lines = [line for row in (wrong if asked.point is None else rows) for line in _lines(row)]
    if asked.point is None:
        lines.append(f"{len(rows):,} trials, {len(wrong):,} of them not as promised")
    return Again(lines, ok=not wrong)


def _lines(row: Row) -> list[str]:
    first = f"{row['backend']} at {row['durability']}, {row['description']}, seed {row['seed']}: {row['result']}"
    found = f"  acknowledged {row['acknowledged']}, found {row['state']}, attempted {row['attempted']}"
    return [first, found, *([f"  {row['detail']}"] if row["detail"] else [])]


def read_asked(text: str) -> Asked:
    """Parse the JSON of a command. Raises: ConfigError if it describes no trial."""
    asked = replay.from_text(Asked, text)
    if not asked.case.recording:
        return asked
    return replace(asked, case=replace(asked.case, recording=str(_found(Path(asked.case.recording)))))


def run(asked: Asked) -> list[Row]:
    """Return the rows of one trial, of all trials at its point, or of all trials of its case.

    Raises: ConfigError if the trial does not exist or cannot be run here; ForkServerError, as ``Workshop``.
    """
    recorder_library()
    case = asked.case
    with Workshop(case, asked.seed) as shop:
        points = range(0) if asked.point is None else range(asked.point, asked.point + 1)
        if asked.point is None or IO_FAULTS[case.fault].from_recording:
            there = shop.points()
            if asked.point is not None and asked.point not in there:
                raise ConfigError(f"{case.fault} of {case.subject} has points 0 to {there.stop - 1}, not {asked.point}")
            points = points or there
        try:
            rows = list(shop.explore(points, asked.only))
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
