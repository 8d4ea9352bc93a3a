"""The file ``coverage.json`` in a folder of results: the classes of points that runs have tried together.

Each run adds to it, also one that is interrupted. Processes that write it wait for each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from harness.answer.write import RESULTS, only_writer
from harness.report.coverage import Coverage, CoveredGroup, CoveredRun, Group, PointClass, Seen
from harness.report.rows import replace_text
from stores.errors import ConfigError

T = TypeVar("T")
NAME = "coverage.json"
_VERSION = 2


class CoverageFile:
    """The coverage in the folder ``results``, by default that of the project."""

    def __init__(self, results: Path | None = None) -> None:
        self._file = (results or RESULTS) / NAME

    def read(self) -> Coverage:
        """Return what the file has: nothing if there is none, or one of another version.

        Raises: ConfigError if it cannot be read.
        """
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            if content["version"] != _VERSION:
                return Coverage()
            return _parsed(content)
        except FileNotFoundError:
            return Coverage()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._file} cannot be read ({error}): correct it, or delete it to start again"
            ) from error

    def begin(self, run: CoveredRun, *, moves_on: bool = False) -> tuple[int, int]:
        """Add a run. Return its number, and its seed: with ``moves_on`` the one after the largest so far.

        Raises: ConfigError, also if the file cannot be written.
        """

        def added(coverage: Coverage) -> tuple[int, int]:
            seed = coverage.next_seed if moves_on else run.seed
            coverage.runs.append(replace(run, seed=seed))
            return len(coverage.runs), seed

        return self._change(added)

    def add(self, seen: Iterable[Seen], run: int, seconds: float) -> None:
        """Add what the run with this number has met, and that it has taken ``seconds`` so far. Raises: ConfigError."""

        def added(coverage: Coverage) -> None:
            coverage.add(seen, run)
            coverage.runs[run - 1].seconds = round(seconds)

        self._change(added)

    def _change(self, change: Callable[[Coverage], T]) -> T:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with only_writer(self._file.parent):
                coverage = self.read()
                result = change(coverage)
                replace_text(self._file, _text(coverage))
        except OSError as error:
            raise ConfigError(
                f"{self._file} cannot be written ({error.strerror}): correct that, and run again"
            ) from error
        return result


class RunCoverage:
    """The part of a run in the coverage of ``file``: the run is added with the first classes that it has met.

    With ``moves_on`` it is added at once, and its ``seed`` is the one after the largest so far. Raises: ConfigError.
    """

    def __init__(self, file: CoverageFile, run: CoveredRun, *, moves_on: bool = False) -> None:
        self.file, self.seed = file, run.seed
        self._run, self._number = run, 0
        self._begun = time.monotonic()
        if moves_on:
            self._number, self.seed = file.begin(run, moves_on=True)

    def add(self, seen: Sequence[Seen]) -> None:
        """Add classes that the run has met, if there are any. Raises: ConfigError."""
        if seen:
            self._number = self._number or self.file.begin(self._run)[0]
            self.file.add(seen, self._number, time.monotonic() - self._begun)


def _text(coverage: Coverage) -> str:
    """Return the file: a line for each run and each group, so that a comparison of two versions can be read."""
    runs = [json.dumps(asdict(run)) for run in coverage.runs]
    groups = [json.dumps(_group_values(group, entry)) for group, entry in sorted(coverage.groups.items())]
    parts = (",\n".join(lines) for lines in (runs, groups))
    return '{{"version": {}, "runs": [\n{}\n], "groups": [\n{}\n]}}\n'.format(_VERSION, *parts)


def _group_values(group: Group, entry: CoveredGroup) -> dict[str, Any]:
    classes = sorted(entry.classes.items())
    return {
        **group._asdict(),
        **{name: getattr(entry, name) for name in ("modules", "code", "kills", "losses", "since")},
        "classes": {name: [each.points, each.run, int(each.is_out)] for name, each in classes},
        "failed": {name: [each.failed, each.failure] for name, each in classes if each.failed},
    }


def _parsed(content: dict[str, Any]) -> Coverage:
    coverage = Coverage([CoveredRun(**run) for run in content["runs"]])
    for line in content["groups"]:
        failed = line.pop("failed")
        classes = {
            name: PointClass(points, run, bool(is_out), *failed.get(name, ()))
            for name, (points, run, is_out) in line.pop("classes").items()
        }
        group = Group(*(line.pop(name) for name in Group._fields))
        coverage.groups[group] = CoveredGroup(**{**line, "modules": tuple(line["modules"])}, classes=classes)
    return coverage
