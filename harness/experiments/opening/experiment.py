"""The time until a store is open and restored after a kill, against the number of records in it.

One changelog is written, from which each store is restored once, and closed cleanly, as a long-lived one mostly is on
disk. Repeats come in rounds: each round has every backend once, in an order shuffled by the seed. In a repeat, commits
of 1,000 records follow. In one more commit the process is killed after the changelog has it, and before the store has
it. A fresh process opens the task. It replays that last commit, and those before it if a kill may lose them at this
level.

If a kill may lose them (RocksDB without a WAL loses its memtable), the commits almost fill a write buffer, with at most
half as many records as the store has. Otherwise there are ten. A store that is not transactional is wiped and restored.

In each repeat, the killed store is first opened by itself, without a changelog, and a copy of its files with the bare
engine; each then looks one key up. Opening and recovering a store is compared with the latter. Some openings write a
small file that must survive power loss, the mark that the store is open. These are also compared with the bare engine
and such a file. The speed of the replay is compared with that of the restore that filled the store.

As long as it is not decided which store is ready first, those that may be are opened again, with their tasks alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NEVER, NIGHT, SMOKE, Deadline, TimeOverError
from harness.experiment import Experiment, Outcome, Request, TrialPlacement, TrialWorker
from harness.experiments.needs import contests_so_far
from harness.experiments.opening import steps
from harness.experiments.opening.report import QUERY, REPORT, ratios
from harness.folders import temporary_folder
from harness.processes.child import figures_in, measured_processes
from harness.processes.load import LoadWatch, load_columns
from harness.report.rows import Row
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends

DEADLINE_S = 180
DEADLINE_PER_RECORD_S = 0.0002
MORE_REPEATS = 5
"""The openings of each store in a round after those of the plan."""
Process = Callable[..., dict[str, Any]]
NOT_COMPARED: Row = dict.fromkeys(("alone_s", "alone_cpu_s", "bare_s", "bare_cpu_s", "mark_s", "mark_cpu_s"))
RECORDS_PER_S = 50_000
"""The rate at which a slow machine writes a changelog and restores a store from it, in records per second."""


@dataclass(frozen=True, slots=True)
class OpeningTrial:
    """Stores of the same size, one per backend, that are filled once, then killed and opened ``repeats`` times.

    ``first`` is the number of the first repeat. ``compared`` is False if they are opened with their tasks only.
    """

    backends: tuple[str, ...]
    durability: Durability
    records: int
    repeats: int
    seed: int
    first: int = 0
    compared: bool = True

    def __post_init__(self) -> None:
        if not self.backends:
            raise ConfigError("a trial of opening needs one or more backends")
        for name in self.backends:
            backend = backend_named(name)
            if self.durability not in backend.durabilities or not backend.persistent:
                raise ConfigError(f"{name} at {self.durability} keeps nothing to open: choose another")
        if min(self.records, self.repeats) < 1 or self.first < 0:
            raise ConfigError("records and repeats count from 1, the first repeat from 0")

    def has(self, row: Row) -> bool:
        """Return True for a row of one of its stores."""
        return bool(row["records"] == self.records and row["backend"] in self.backends)

    def after(self, rows: Sequence[Row]) -> list[OpeningTrial]:
        """Return the trial of the repeats that are not in ``rows``, in a list; none if all are there."""
        first = self._first_after(rows)
        return [] if first >= self.repeats else [replace(self, repeats=self.repeats - first, first=first)]

    def of(self, names: Collection[str], rows: Sequence[Row]) -> list[OpeningTrial]:
        """Return the trial of some of its backends with further repeats, in a list; none if it has none of them."""
        among = tuple(name for name in self.backends if name in names)
        first = self._first_after(rows)
        return [replace(self, backends=among, repeats=MORE_REPEATS, first=first, compared=False)] if among else []

    def _first_after(self, rows: Sequence[Row]) -> int:
        return 1 + max((row["repeat"] for row in rows if self.has(row)), default=-1)


@dataclass(frozen=True)
class OpeningSize:
    """The sizes of stores that a profile opens with every backend, and more of them with the default one only."""

    repeats: int
    records: tuple[int, ...]
    largest_records: tuple[int, ...] = ()


SIZES: Mapping[str, OpeningSize] = MappingProxyType(
    {
        SMOKE: OpeningSize(1, (20_000,)),
        DEFAULT: OpeningSize(5, (50_000, 500_000), (5_000_000,)),
        NIGHT: OpeningSize(7, (50_000, 500_000, 5_000_000)),
    }
)


class Opening(Experiment[OpeningTrial]):
    """The time to open after a kill, against the number of records."""

    name = "opening"
    title = "opening after a kill"
    stage = "opening"
    trial = OpeningTrial
    placement = TrialPlacement.LOCAL
    answers = True
    share = 10
    unit = ""
    figures_by = {"opening": QUERY}
    report = REPORT
    derived_by = ratios
    columns = {
        "opening": {
            "backend": str,
            "durability": str,
            "records": int,
            "repeat": int,
            "open_s": float,
            "restore_s": float,
            "replayed": int,
            "alone_s": float,
            "alone_cpu_s": float,
            "bare_s": float,
            "bare_cpu_s": float,
            "mark_s": float,
            "mark_cpu_s": float,
            "whole_restore_s": float,
            "others_share": float,
            "steal_share": float,
        }
    }

    def plan(self, request: Request) -> list[OpeningTrial]:
        """Return a trial for each size at CHANGELOG, with all persistent backends that a kill does not wipe.

        Those that it wipes have trials of their own with one repeat, because each repeat restores all records.
        """
        size, default = SIZES[request.profile], StoreConfig().backend
        persistent = {name: each for name, each in backends().items() if each.persistent}
        names = request.among(persistent)
        recovering = tuple(name for name in names if persistent[name].transactional)
        level, seed = Durability.CHANGELOG, request.seed
        trials = []
        for records in size.records:
            if recovering:
                trials.append(OpeningTrial(recovering, level, records, size.repeats, seed))
            trials += [OpeningTrial((name,), level, records, 1, seed) for name in names if name not in recovering]
        if default in recovering:
            trials += [OpeningTrial((default,), level, records, size.repeats, seed) for records in size.largest_records]
        return trials

    def next_round(self, trials: Sequence[OpeningTrial], rows: Sequence[Row], remaining_s: float) -> list[OpeningTrial]:
        """Return one opening of each of the smallest stores, then all others of these, then those that are open.

        Open are the stores of which it is undecided whether another one is ready first.
        """
        least = min((trial.records for trial in trials), default=0)
        smallest = [trial for trial in trials if trial.records == least]
        left = [more for trial in smallest for more in trial.after(rows)]
        if left or math.isinf(remaining_s):
            return left if rows else [replace(trial, repeats=1) for trial in left]
        contests = contests_so_far("opening", self.figures({"opening": rows})["opening"])
        undecided = {name for contest in contests for name in contest.open}
        return [more for trial in smallest for more in trial.of(undecided, rows)]

    def rest(self, trials: Sequence[OpeningTrial], rows: Sequence[Row]) -> list[OpeningTrial]:
        """Return the openings that no round has made."""
        return [more for trial in trials for more in trial.after(rows)]

    def extents(self, trials: Sequence[OpeningTrial], outcome: Outcome) -> dict[str, tuple[int, int]]:
        """Return the openings that were measured, of those of the plan; rounds may have made more."""
        planned = {trial: self.extent(trial)[1] for trial in trials}
        measured = (min(size, sum(map(trial.has, outcome.rows))) for trial, size in planned.items())
        return {"openings": (sum(measured), sum(planned.values()))}

    def cost_s(self, trial: OpeningTrial) -> float:
        """Return the time until the first store is filled. It is then measured before another one is filled."""
        return trial.records / RECORDS_PER_S

    def run(self, trial: OpeningTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each repeat. Raises: MeasurementFailedError."""
        return run_opening(trial, code=worker.code, within=worker.folder.parent, deadline=worker.deadline)

    def extent(self, trial: OpeningTrial) -> tuple[str, int]:
        """Return the number of openings: a trial that the budget cuts has made some of them."""
        return "openings", len(trial.backends) * trial.repeats

    def tried(self, trial: OpeningTrial, rows: Sequence[Row]) -> int:
        """Return the number of openings that were measured."""
        return len(rows)

    def subject(self, trial: OpeningTrial) -> str:
        """Return the size, the backends and the level."""
        return f"opening {trial.records:,} records on {', '.join(trial.backends)}, {trial.durability}"

    def line(self, trial: OpeningTrial, rows: Sequence[Row]) -> str:
        """Return the longest time until a store was ready."""
        longest_s = max(row["open_s"] + row["restore_s"] for row in rows)
        return f"{self.subject(trial)}: ready after {longest_s:.3f} s at most"


def run_opening(
    trial: OpeningTrial, *, code: str | None = None, within: Path | None = None, deadline: Deadline = NEVER
) -> list[dict[str, Any]]:
    """Return the rows of a trial, of kind "opening", one per repeat. ``code`` is the import path of its processes.

    After ``deadline`` no store is filled or opened: there are fewer rows then.

    Raises: MeasurementFailedError.
    """
    shared = {name: getattr(trial, name) for name in ("durability", "records", "seed")}
    rows: list[dict[str, Any]] = []
    filled: dict[str, float] = {}
    # A process that the end of the time has killed measured nothing; the rows of those before it stay.
    with (
        temporary_folder("opening", within) as scratch,
        measured_processes(steps.__name__, code) as server,
        suppress(TimeOverError),
    ):
        process: Process = partial(figures_in, code=code, fork_server=server)
        _step(trial, scratch, process, "log", {"backend": trial.backends[0], **shared})
        for repeat in range(trial.first, trial.first + trial.repeats):
            turns = list(trial.backends)
            random.Random(f"opening {trial.seed} {repeat}").shuffle(turns)
            for backend in turns:
                if deadline.passed:
                    return rows
                order = {"backend": backend, **shared}
                step = partial(_step, trial, scratch / backend, process)
                if backend not in filled:
                    # In its first round: a deadline that comes before the last store is filled leaves rows of others.
                    (scratch / backend).mkdir()
                    filled[backend] = step("fill", order)["restore_s"]
                step("tail", order)
                watch = LoadWatch()
                apart = step("apart", {**order, "repeat": repeat}) if trial.compared else NOT_COMPARED
                figures = {**apart, **step("reopen", order)}
                row = {"kind": "opening", "backend": backend, **shared, "repeat": repeat}
                row["whole_restore_s"] = filled[backend]
                rows.append({**row, **figures, **load_columns([watch.figures()])})
    return rows


def _step(
    trial: OpeningTrial, folder: Path, process: Process, step: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    deadline_s = DEADLINE_S + DEADLINE_PER_RECORD_S * trial.records
    return process(folder, f"{steps.__name__}:{step}", arguments, deadline_s, killed=step == "tail")
