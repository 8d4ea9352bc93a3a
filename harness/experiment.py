"""One shape for every experiment: its trials, how one runs, and what a report says about it.

    plan -> prepare -> runner (in this process, spread over Spark, or a gang) -> run -> finish -> rows
    rows -> figures -> failures, page

A new experiment is a module or a folder in ``harness/experiments`` with a subclass of ``Experiment``, and one line in
``harness/experiments/registry.py``. No other file names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from harness import replay
from harness.budget import DEFAULT, NEVER, NIGHT, Deadline, check_profile
from harness.report import text
from harness.report.database import lines_of
from harness.report.figures import Figure, Figures
from harness.report.rows import Row
from harness.scenario import Grid
from stores.errors import ConfigError
from stores.registry import backend_named

if TYPE_CHECKING:
    from harness.processes.fork_server import ForkServer
    from harness.report.coverage import Coverage, Seen
    from harness.report.listing import Report
    from harness.report.page import Page, TextTable
    from harness.workloads.event_log import EventLog

Columns = Mapping[str, type]
"""The columns of one kind of rows: ``str``, ``int``, ``float`` or ``bool``. Every column may be null."""
Rows = Mapping[str, Sequence[Row]]
"""The rows of a run by kind; a kind without rows may be missing."""
FiguresBy = Mapping[str, str | Callable[[Any], list[Figure]]]
"""The figures by kind: a query over the rows of an experiment, or a function of the rows of the kind."""
T = TypeVar("T")

RATIO = "ratio"
"""The kind of rows that compare two speeds. Any experiment may have some; the report computes their figures."""
RATIO_COLUMNS: Columns = MappingProxyType(
    {
        "claim": str,
        "subject": str,
        "yardstick": str,
        "durability": str,
        "records_per_commit": int,
        "ratio": float,
        "ratio_from": float,
        "ratio_to": float,
        "cpu_ratio": float,
        "cpu_ratio_from": float,
        "cpu_ratio_to": float,
        "repeats": int,
        "busy": int,
        "at_least": float,
        "reason": str,
    }
)


class TrialPlacement(StrEnum):
    """The place in which the trials of an experiment run."""

    LOCAL = "local"
    """One after the other in processes of this machine. Spark, if it runs, does nothing meanwhile."""
    SPREAD = "spread"
    """As independent tasks of a Spark job, in any order."""
    GANG = "gang"
    """As a barrier stage of Spark: all partitions of a trial at the same time."""


class Forks(StrEnum):
    """The kinds of fork servers."""

    PLAIN = "plain"
    RECORDED = "recorded"
    """Its children are under fault injection: their I/O operations are seen, counted and steered."""

    @property
    def preload(self) -> bool:
        """True if the recorder is loaded into the children."""
        return self is Forks.RECORDED


@dataclass(frozen=True)
class Failure:
    """A result that fails the run: a sentence, and the command that repeats its trial, if there is one."""

    sentence: str
    repeat: str = ""

    def __str__(self) -> str:
        return f"{self.sentence}\n  repeat it with: {self.repeat}" if self.repeat else self.sentence


@dataclass(frozen=True)
class Request:
    """The part of a request that a plan depends on.

    ``backends`` None means all. ``log`` replaces the workloads by a user's events. ``coverage`` is what earlier runs
    have tried; None to plan by the seed alone.
    """

    profile: str = DEFAULT
    seed: int = 1
    backends: tuple[str, ...] | None = None
    log: EventLog | None = None
    coverage: Coverage | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown profile."""
        check_profile(self.profile)

    def among(self, names: Iterable[str]) -> list[str]:
        """Return those of the full names of backends that were asked for."""
        return [name for name in names if self.backends is None or name in self.backends]


def _say_nothing(line: str) -> None:
    """Print no progress."""


@dataclass(frozen=True)
class TrialWorker:
    """The surroundings of a trial.

    ``folder`` does not exist yet and is the trial's own: it may create it, and it is removed afterwards. ``code`` is
    the import path for its processes; None is that of this process. ``attempt`` counts from 0. ``fork_server`` is None
    where it does not work. ``deadline_s`` is for each process of the trial, unless None. A trial of many parts begins
    no further one after ``deadline``, and gives lines of progress to ``say``.
    """

    folder: Path
    code: str | None = None
    attempt: int = 0
    fork_server: ForkServer | None = None
    deadline_s: float | None = None
    deadline: Deadline = NEVER
    say: Callable[[str], None] = _say_nothing


def check_counts(**counts: float) -> None:
    """Check that each number of a trial is above 0. Raises: ConfigError."""
    for name, count in counts.items():
        if not count > 0:
            raise ConfigError(f"{name} of a trial is above 0, not {count}")


@dataclass(frozen=True)
class Again:
    """The result of a trial that was repeated: lines for the terminal, those of failures, and if all is as promised."""

    lines: Sequence[str]
    failures: Sequence[object] = ()
    ok: bool = True


@dataclass(frozen=True)
class Claim:
    """Why trials run: the name of a scenario, or of a part of a bench, and the result that each trial should have."""

    name: str
    expected: Callable[[Any], str] = lambda _: "valid"


@dataclass(frozen=True)
class Outcome:
    """The rows of trials in the order of their plan, and the problems, as sentences.

    ``extent`` is what was tried and what was planned, by unit: ``{"trials": (52, 594)}``.
    """

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    extent: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Sentences about the user's own events, each once."""

    def count(self, unit: str, tried: int, planned: int) -> None:
        """Add to the extent."""
        before = self.extent.get(unit, (0, 0))
        self.extent[unit] = (before[0] + tried, before[1] + planned)

    def add(self, more: Outcome) -> None:
        """Add the rows, the problems, the extent and the notes of further trials."""
        self.rows.extend(more.rows)
        self.problems.extend(more.problems)
        for unit, (tried, planned) in more.extent.items():
            self.count(unit, tried, planned)
        self.notes.extend(note for note in more.notes if note not in self.notes)


class Each(Protocol):
    """Calls a function with every item, distributed as the trials are."""

    def __call__(
        self, function: Callable[[Any, ForkServer | None], Any], items: Sequence[Any], part: float, /
    ) -> list[Any]:
        """Return the results in the order of ``items``: values that JSON can hold; tuples become lists.

        After that ``part`` of the time that is left, from 0 to 1, no call begins: its result is None.
        """


class Described(Protocol):
    """A fault: its act, its evidence and its trials are those of its experiment."""

    @property
    def words(self) -> str:
        """The fault in a few words."""


class Experiment(ABC, Generic[T]):
    """A kind of measurement or test. Its methods are pure but for ``prepare``, ``run`` and ``tidy``."""

    name: ClassVar[str]
    """The name in the registry and in the command that repeats a trial."""
    title: ClassVar[str]
    """The stage in a progress line. Experiments in a row with the same title share one line."""
    words: ClassVar[str] = ""
    """Its name for a reader, if its title is that of several experiments."""
    stage: ClassVar[str] = ""
    """The name of its stage in ``bench --only``; experiments may share a stage. Empty: no part of a bench."""
    claim: ClassVar[str] = ""
    """The name in the rows of a bench for the reason why its trials run, where they name one."""
    trial: type[T]
    """The type of its trials: a frozen dataclass."""
    faults: ClassVar[Mapping[str, Described]] = MappingProxyType({})
    """The faults that its trials inject, by their names."""
    grid: ClassVar[type[Grid] | None] = None
    """The settings of a scenario about it, if there can be one."""
    placement: ClassVar[TrialPlacement]
    forks: ClassVar[Forks | None] = None
    """The kind of fork server that its trials share in a Spark task, if any."""
    unit: ClassVar[str] = "trials"
    """The word for its trials in a progress line that counts them; "" if it has lines of its own."""
    answers: ClassVar[bool] = False
    """True if picks rest on it: a bench runs it in rounds before all others, until every pick is decided."""
    share: ClassVar[float] = 1.0
    """Its part of a bench's budget, relative to those of the other experiments."""
    night_share: ClassVar[float] = 0.0
    """Its part of a night's budget, if it is another one: ten minutes are too few for one trial of some."""
    columns: ClassVar[Mapping[str, Columns]]
    """Its kinds of rows with their columns; ``ratio`` is known anyway. A row may have more columns than these."""

    figures_by: ClassVar[FiguresBy] = MappingProxyType({})
    """Its kinds of figures."""
    derived_by: ClassVar[str | Callable[[Sequence[Row]], Iterable[Row]] | None] = None
    """A query for rows of kind "ratio", or a function that returns more rows, from those of all trials."""
    failed_by: ClassVar[str] = ""
    """A query over rows for the results that fail the run: a ``sentence``, and perhaps a command as ``repeat``."""
    report: ClassVar[Report | None] = None
    """Its page, if it is data alone."""

    @abstractmethod
    def plan(self, request: Request) -> list[T]:
        """Return the trials of a request, which depend on it alone; none if no backend of it fits.

        Raises: ConfigError for a request that cannot be met.
        """

    def share_in(self, profile: str) -> float:
        """Return its part of the budget of a profile."""
        return self.night_share if profile == NIGHT and self.night_share else self.share

    def missing(self) -> str:
        """Return the reason why no trial can run on this machine, or ""."""
        return ""

    def prepare(self, trials: Sequence[T], kept: Path, each: Each) -> list[T]:
        """Return the trials as they run: by default as they are.

        What they need before the first one runs, such as recordings, goes to the folder ``kept``.
        """
        return list(trials)

    def next_round(self, trials: Sequence[T], rows: Sequence[Row], remaining_s: float) -> list[T]:
        """Return the trials of the next round if the experiment ``answers``; none if it needs no further one.

        The first one is short. ``trials`` are those of the plan, ``rows`` the results so far, and ``remaining_s`` the
        seconds until the end of the rounds, infinite without a budget.
        """
        return []

    def rest(self, trials: Sequence[T], rows: Sequence[Row]) -> list[T]:
        """Return the trials that run after the rounds: by default all. ``rows`` are the results of the rounds."""
        return list(trials)

    def extents(self, trials: Sequence[T], outcome: Outcome) -> Mapping[str, tuple[int, int]]:
        """Return what was tried of the plan and what was planned, by unit: by default as the runners have counted."""
        return outcome.extent

    def extent(self, trial: T) -> tuple[str, int]:
        """Return the unit and the number of what a trial tries, as a run that leaves some out reports them."""
        return "trials", 1

    def cost_s(self, trial: T) -> float:
        """Return how many seconds a trial takes, roughly, or 0 if it is short: a run begins none that cannot fit."""
        return 0.0

    def still_needed(self, trial: T, rows: Sequence[Row]) -> T | None:
        """Return a local trial without what the ``rows`` of earlier ones have decided; None if nothing is left of it.

        By default nothing is decided by others. What it leaves out counts as no part of the plan.
        """
        return trial

    def kept_s(self, others: Sequence[T]) -> float:
        """Return the seconds that a local trial leaves to ``others`` after it, if it has as many to spare: none."""
        return 0.0

    def tried(self, trial: T, rows: Sequence[Row]) -> int:
        """Return how much of its ``extent`` a trial has tried that returned ``rows``: all, unless its time was over."""
        return self.extent(trial)[1]

    def covered(self, trials: Sequence[T], rows: Sequence[Row]) -> list[Seen]:
        """Return the classes that ``trials`` have met, from the rows for the report; by default none."""
        return []

    def untried(self, trial: T) -> list[Row]:
        """Return the rows that say that a trial was left out: by default none."""
        return []

    def check(self, trials: Sequence[T]) -> None:
        """Raise ConfigError if the trials need something that is missing and could be had, such as a data set."""

    def slots(self, trials: Sequence[T]) -> int:
        """Return how many Spark tasks must run at the same time."""
        return 1

    @abstractmethod
    def run(self, trial: T, worker: TrialWorker) -> Iterable[Row]:
        """Run one trial, and return its rows, each with its ``kind``."""

    def read(self, text: str) -> Any:
        """Return the trial of a command that repeats it.

        Raises: ConfigError for a text that is none, and for a ``backend`` that does not exist.
        """
        trial = replay.from_text(self.trial, text)
        if isinstance(backend := getattr(trial, "backend", None), str):
            backend_named(backend)
        return trial

    def repeat(self, trial: Any, worker: TrialWorker) -> Again:
        """Run one trial that ``read`` has returned. Raises: ConfigError if that is not possible here.

        A trial of a gang is not repeated by this, but run by Spark; see ``harness.repeat``.
        """
        if reason := self.missing():
            raise ConfigError(f"no trial of {self.title} can run here: {reason}")
        return self.again(trial, list(self.run(trial, worker)))

    def again(self, trial: Any, found: Sequence[Row]) -> Again:
        """Return the result of a trial that was repeated, from its rows."""
        rows = self.finish([trial], found, Claim(self.name))
        by_kind: dict[str, list[Row]] = {}
        for row in rows:
            by_kind.setdefault(row["kind"], []).append(row)
        lines = [", ".join(f"{name} {value}" for name, value in row.items() if value is not None) for row in rows]
        failures = self.failures(self.figures(by_kind), by_kind)
        return Again(lines, failures, not failures)

    def finish(self, trials: Sequence[T], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return the rows for the report, from those of all trials: by default these, and those that are derived.

        Rows of a local trial are in the report already: an experiment of local trials returns them as they are, and
        adds others.
        """
        derived_by = type(self).derived_by
        if isinstance(derived_by, str):
            by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in self.columns}
            return [*rows, *self._answers(RATIO, by_kind, derived_by)]
        return [*rows, *(derived_by(rows) if derived_by is not None else ())]

    def subject(self, trial: T) -> str:
        """Return a few words for a trial, with which a problem begins."""
        return f"{self.name} {replay.text_of(trial)}"

    def line(self, trial: T, rows: Sequence[Row]) -> str:
        """Return what a progress line says about a finished trial; "" for nothing."""
        return ""

    def is_wrong(self, row: Row) -> bool:
        """Return True if a row that a trial has returned is not as promised: for progress, before all are there."""
        return "result" in row and row["result"] != row.get("expected", "valid")

    def tidy(self, kept: Path, rows: Sequence[Row]) -> None:
        """Remove from ``kept`` what no row needs any more: by default nothing."""

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the figures of each of its kinds, in an order that depends on their content only.

        ``rows`` are those of a whole run; the experiment takes its own kinds and ignores the others. Every kind of
        figures that it ever has is in the result, with an empty list if there are none.
        """
        return {
            kind: self._answers(kind, rows, by) if isinstance(by, str) else by(rows.get(kind, ()))
            for kind, by in self.figures_by.items()
        }

    def _answers(self, kind: str, rows: Rows, sql: str) -> list[dict[str, Any]]:
        return [{"kind": kind, **line} for line in lines_of(self.columns, rows, sql)]

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return each result that fails the run: by default those of ``failed_by``, or none for what is reported only.

        ``rows`` and ``figures`` are those of a whole run, by kind. A missed ratio fails only a run that is asked to be
        strict.
        """
        lines = lines_of(self.columns, rows, self.failed_by) if self.failed_by else ()
        return [Failure(line["sentence"], line.get("repeat", "")) for line in lines]

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return the tables that a scenario prints, by default those of the page; those without rows may be missing."""
        return [] if self.report is None else self.report.tables(figures)

    def left_out(self, figures: Figures) -> str:
        """Return a sentence about what a scenario has drawn by its seed, or "" if nothing was left out."""
        return ""

    def closing(self, figures: Figures, rows: Rows, *, all_right: bool) -> str:
        """Return what a bench prints last about it, or "". ``all_right`` is True if nothing failed in the run."""
        return ""

    def absent(self, facts: Mapping[str, Any]) -> str:
        """Return what a report says where nothing was measured: the reason, if its stage was skipped in the run."""
        reason = facts.get(f"{self.stage}_skipped")
        return f"not measured: {reason}" if reason else text.NOT_MEASURED

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page | None:
        """Return the page of a report about it, or None if it has none.

        ``figures`` and ``rows`` are those of a whole run, by kind; with none of its own the page says so. ``facts`` are
        the settings of the run, as ``run.json`` keeps them.
        """
        return None if self.report is None else self.report.page(figures, absent=self.absent(facts))


class StoresAlone(Experiment[T]):
    """Measurements of stores by themselves, as one stage of a bench.

    Each trial is one process of ``program``, unless ``run`` does otherwise.
    """

    title = "stores by themselves"
    stage = "store"
    placement = TrialPlacement.LOCAL
    program: ModuleType
    """A module whose ``measured`` returns the rows of the experiment's only kind."""

    def run(self, trial: Any, worker: TrialWorker) -> Iterable[Row]:
        """Return the rows of the process. Raises: MeasurementFailedError."""
        # Later: measured processes import this module for their trials.
        from harness.processes.child import figures_apart

        [kind] = self.columns
        measured = figures_apart(self.program.measured, self.name, asdict(trial), self.program.DEADLINE_S)
        return [{"kind": kind, **row} for row in measured["rows"]]
