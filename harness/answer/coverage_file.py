"""The file of coverage in ``results/``, to which each run of the profile night adds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from harness.folders import ROOT
from harness.report.coverage import Coverage, Covered, numbers, ranges
from harness.report.rows import replace_text
from stores.errors import ConfigError

FILE = ROOT / "results" / "coverage.json"
_VERSION = 1


def read_coverage(file: Path | None = None) -> Coverage:
    """Return what the file has; nothing if there is no file. Raises: ConfigError if it cannot be read."""
    file = file or FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        coverage = Coverage(int(content["runs"]))
        for line in content["covered"]:
            which = numbers(line["which"])
            experiment, subject, fault, definition = (str(line[name]) for name in Covered._fields[:4])
            each = Covered(experiment, subject, fault, definition, int(line["points"]), which)
            coverage.entries[each[:3]] = each, line["when"]
    except FileNotFoundError:
        return Coverage()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): correct it, or delete it to start again") from error
    return coverage


def write_coverage(coverage: Coverage, file: Path | None = None) -> None:
    """Replace the file atomically. Raises: ConfigError if it cannot be written."""
    file = file or FILE
    lines = [
        {
            **dict(zip(Covered._fields[:5], each[:5], strict=True)),
            "tried": len(each.tried),
            "which": ranges(each.tried),
            "when": when,
        }
        for _, (each, when) in sorted(coverage.entries.items())
    ]
    head = f'{{"version": {_VERSION}, "runs": {coverage.runs}, "covered": [\n'
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, head + ",\n".join(json.dumps(line) for line in lines) + "\n]}\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): correct that, and run again") from error


def next_run() -> int:
    """Return the number of the run that begins now, from 1, and keep it in the file. Raises: ConfigError."""
    coverage = read_coverage()
    coverage.runs += 1
    write_coverage(coverage)
    return coverage.runs


def add_to_file(found: Iterable[Covered], when: str) -> None:
    """Add what a run has tried to the file. Raises: ConfigError."""
    coverage = read_coverage()
    coverage.add(found, when)
    write_coverage(coverage)
