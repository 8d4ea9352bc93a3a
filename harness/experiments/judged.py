"""Experiments whose trials each end in one row with a result: sound ones, and ones with a mutant to be detected."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from harness import replay
from harness.code import modules_of
from harness.experiment import Claim, Columns, Experiment, Failure, Rows, TrialWorker
from harness.processes.child import MeasurementFailedError
from harness.report import text
from harness.report.coverage import MUTANTS, Coverage, Group, Seen
from harness.report.figures import Figure, Figures
from harness.report.page import Page, PageFinding, TextTable, tables
from harness.report.rows import Row
from stores.registry import backend_named, backends

T = TypeVar("T")

ANOMALY, UNKNOWN, VALID = "anomaly", "unknown", "valid"
JUDGED_COLUMNS: Columns = MappingProxyType(
    {
        **dict.fromkeys(("scenario", "mutant", "result", "expected", "detail", "repeat_command"), str),
        "seed": int,
        "seconds": float,
    }
)


class Judged(Experiment[T]):
    """Trials whose result should be ``valid``, or ``anomaly`` with a mutant; any other one fails the run.

    Their rows have ``JUDGED_COLUMNS``, and others.
    """

    kind: ClassVar[str]
    """The kind of its rows and figures."""
    named_by: ClassVar[tuple[str, ...]]
    """The settings that name a trial in a sentence."""
    shown: ClassVar[Mapping[str, str]]
    """The columns of the table of sound trials, by their captions."""
    mutant_shown: ClassVar[tuple[str, ...]]
    """The columns of the table of mutants, beside the mutant and the result."""
    page_name: ClassVar[str]
    page_title: ClassVar[str]
    mutants_title: ClassVar[str]
    shows: ClassVar[Sequence[str]]
    counted: ClassVar[str]
    """The words for its trials in a finding."""
    method: ClassVar[str]
    classed_by: ClassVar[tuple[str, ...]] = ()
    """The columns whose values name the class of a trial, beside its fault and its backend."""
    of_all_backends: ClassVar[str] = ""
    """The subject of its classes, if backends only take turns: no backend has classes of its own then."""
    modules: ClassVar[tuple[str, ...]]
    """The modules whose code its trials depend on, beside those of backends."""

    @abstractmethod
    def examine(self, trial: T, worker: TrialWorker) -> Row:
        """Run a trial, and return the columns that it finds. Raises: MeasurementFailedError if it can't be tried."""

    @abstractmethod
    def order(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the place of a trial among all."""

    def settings(self, trial: Any) -> Row:
        """Return the columns that are known before a trial runs, with the words for its fault."""
        columns = {name: value for name, value in asdict(trial).items() if name in self.columns[self.kind]}
        return columns | ({"meaning": self.faults[trial.fault].words} if self.faults else {})

    def repeated(self, trial: T) -> T:
        """Return the trial that its command repeats: by default itself."""
        return trial

    def run(self, trial: T, worker: TrialWorker) -> Iterable[Row]:
        """Return the one row of a trial. Its result is "unknown" if it could not be tried."""
        worker.folder.mkdir(exist_ok=True)
        began = time.monotonic()
        try:
            findings = self.examine(trial, worker)
        except MeasurementFailedError as error:
            findings = {"result": UNKNOWN, "detail": str(error)}
        row = {**dict.fromkeys(self.columns[self.kind]), **self.settings(trial), **findings, "kind": self.kind}
        row["seconds"] = time.monotonic() - began
        row["expected"] = ANOMALY if row["mutant"] else VALID
        row["repeat_command"] = replay.command(self.name, self.repeated(trial))
        return [row]

    def finish(self, trials: Sequence[T], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return the rows, with the reason for their trials."""
        return [{**row, "scenario": claim.name} for row in rows]

    def covered(self, trials: Sequence[T], rows: Sequence[Row]) -> list[Seen]:
        """Return the classes of all trials, and of those that have a verdict."""
        known = [self._seen({"mutant": "", **self.settings(trial)}) for trial in trials]
        return [*known, *(self._seen(row, 1) for row in rows if row["result"] != UNKNOWN)]

    def oldest_first(self, trials: Sequence[T], coverage: Coverage | None) -> list[T]:
        """Return the trials in the order in which their classes were tried last, those not tried with this code first.

        Without a coverage the order stays as it is.
        """
        if coverage is None:
            return list(trials)
        seen = [self._seen({"mutant": "", **self.settings(trial)}) for trial in trials]
        last = [coverage.last_tried(each.group, each.name) for each in seen]
        return [trials[place] for place in sorted(range(len(trials)), key=last.__getitem__)]

    def _seen(self, row: Mapping[str, Any], points: int = 0) -> Seen:
        fault = str(row.get("fault") or self.title)
        subject = self.of_all_backends or str(row["backend"])
        group = Group(MUTANTS if row["mutant"] else self.name, subject, str(row.get("durability") or ""), fault)
        name = row["mutant"] or ", ".join(str(row[column]) for column in self.classed_by) or self.counted
        needed = [backend_named(row["backend"])] if not self.of_all_backends else backends().values()
        modules = (*self.modules, *(module for each in needed for module in modules_of(each)))
        kills = points * int(row.get("struck") or 1) if "killed" in fault else 0
        failed = points and row["result"] != row["expected"]
        return Seen(group, str(name), modules, points, kills, failure=row["repeat_command"] if failed else "")

    def subject(self, trial: T) -> str:
        """Return the settings that name a trial, and its mutant."""
        return self._named(self.settings(trial))

    def line(self, trial: T, rows: Sequence[Row]) -> str:
        """Return the result and the time."""
        return f"{rows[0]['result']}, {rows[0]['seconds']:.0f} s"

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return a figure for each trial, in order."""
        return {self.kind: sorted(({**row, "kind": self.kind} for row in rows.get(self.kind, ())), key=self.order)}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return every trial with an unexpected result."""
        return [
            Failure(
                f"{self._named(row)}, seed {row['seed']}: {row['result']}, not {row['expected']} "
                f"({row['detail'] or 'nothing found'})",
                row["repeat_command"],
            )
            for row in self.figures(rows)[self.kind]
            if row["result"] != row["expected"]
        ]

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return a line for each trial: a table of sound ones, and one of mutants, without those that have no rows."""
        own = figures[self.kind]
        sound, mutants = ([row for row in own if bool(row["mutant"]) is built_in] for built_in in (False, True))
        both = []
        if sound:
            names = tuple(self.shown.values())
            numbers = [place for place, name in enumerate(names) if self.columns[self.kind][name] is int]
            notable = [place for place, row in enumerate(sound) if row["result"] != row["expected"]]
            lines = [[*map(_cell, (row[name] for name in names)), _result(row)] for row in sound]
            both.append(TextTable(self.page_title, (*self.shown, "result"), lines, numbers, notable=notable))
        if mutants:
            head = ("mutant", *self.mutant_shown, "result", "found")
            lines = [
                [f"`{row['mutant']}`", *(row[name] for name in self.mutant_shown), _result(row), row["detail"][:200]]
                for row in mutants
            ]
            both.append(TextTable(self.mutants_title, head, lines))
        return both

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page, with the trials that did not end as expected."""
        own = figures[self.kind]
        failures = [str(failure) for failure in self.failures(figures, {self.kind: own})]
        wrong = text.failures("Trials that did not end as expected", failures) if failures else ""
        good, unknown = (sum(row["result"] == (of or row["expected"]) for row in own) for of in ("", UNKNOWN))
        return Page(
            self.page_name,
            self.page_title,
            self.shows,
            [*tables(*self.tables(figures, rows)), wrong] if own else (),
            self.method,
            (PageFinding(self.counted, len(own), good, "ended as expected", unknown=unknown),),
            absent=self.absent(facts),
        )

    def _named(self, row: Mapping[str, Any]) -> str:
        mutant = f" with {row['mutant']}" if row["mutant"] else ""
        return ", ".join(str(row[name]) for name in self.named_by) + mutant


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else text.exact(value)


def _result(row: Mapping[str, Any]) -> str:
    result = str(row["result"])
    return result if result == row["expected"] else f"{result}, not {row['expected']}"
