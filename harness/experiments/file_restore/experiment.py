"""The experiment that restores a store from the files of a snapshot, and from its changelog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NEVER, NIGHT, SMOKE, Deadline, TimeOverError
from harness.experiment import Experiment, Request, Row, TrialPlacement, TrialWorker, check_counts
from harness.experiments.file_restore import steps
from harness.experiments.file_restore.report import QUERY, REPORT, ratios
from harness.processes.child import figures_in, measured_processes
from harness.processes.load import LoadWatch, load_columns, tree_cpu_s
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import ALIASES, backend_named, backends

LEVEL = Durability.CHANGELOG
DEADLINE_S = 180
DEADLINE_PER_RECORD_S = 0.0002
RECORDS_PER_S = 50_000
"""The rate at which a slow machine writes the changelog and fills a store from it, both together."""
REPEAT_RECORDS_PER_S = 200_000
"""The rate at which it replays the changelog, restores the files and copies them, all together."""
REPEAT_S = 2.0
"""The time of the processes of one repeat, whatever the records, and without the part in which a task works alone."""


def can_snapshot(name: str) -> bool:
    """Return True if there are snapshots by files of a backend."""
    backend = backend_named(name)
    return backend.persistent and backend.transactional and backend.load_engine().captures


@dataclass(frozen=True, slots=True)
class FileRestoreTrial:
    """A store of ``records`` records, restored from its changelog and from files ``repeats`` times.

    In each repeat, its task first works ``alone_s`` without a snapshot.
    """

    backend: str
    records: int
    seed: int
    repeats: int = 3
    alone_s: float = 2.0

    def __post_init__(self) -> None:
        """Raise ConfigError for a backend without snapshots, and for a number that counts nothing."""
        check_counts(records=self.records, repeats=self.repeats, alone_s=self.alone_s)
        if not can_snapshot(self.backend):
            raise ConfigError(f"{self.backend} has no snapshots by files: choose another backend")


@dataclass(frozen=True)
class FileRestoreSize:
    """The records of stores, and of one of the default backend, with the repeats of each."""

    records: int
    default_records: int
    repeats: int
    alone_s: float


SIZES: Mapping[str, FileRestoreSize] = MappingProxyType(
    {
        SMOKE: FileRestoreSize(10_000, 10_000, 1, 0.1),
        DEFAULT: FileRestoreSize(50_000, 100_000, 3, 0.3),
        NIGHT: FileRestoreSize(1_000_000, 5_000_000, 3, 2.0),
    }
)


class FileRestore(Experiment[FileRestoreTrial]):
    """Restores by files against the replay of the changelog, and against a copy of the files."""

    name = "file_restore"
    title = "restore by files"
    stage = "restore"
    trial = FileRestoreTrial
    placement = TrialPlacement.LOCAL
    share = 4
    night_share = 20
    unit = ""
    figures_by = {"file_restore": QUERY}
    derived_by = ratios
    report = REPORT
    columns = {
        "file_restore": {
            "backend": str,
            "durability": str,
            "records": int,
            "repeat": int,
            "seed": int,
            "replay_s": float,
            "replay_synced_s": float,
            "replay_cpu_s": float,
            "files_s": float,
            "files_synced_s": float,
            "files_cpu_s": float,
            "copy_s": float,
            "copy_synced_s": float,
            "file_bytes": int,
            "alone_per_s": float,
            "beside_per_s": float,
            "snapshot_s": float,
            "changed_bytes": int,
            "sent_bytes": int,
            "others_share": float,
            "steal_share": float,
        }
    }

    def plan(self, request: Request) -> list[FileRestoreTrial]:
        """Return a trial for the indexed batch of each engine with snapshots, the default one first."""
        size, default = SIZES[request.profile], StoreConfig().backend
        persistent = (name for name in ALIASES.values() if backends()[name].persistent)
        names = sorted(filter(can_snapshot, request.among(persistent)), key=lambda name: (name != default, name))
        return [
            FileRestoreTrial(
                name,
                size.default_records if name == default else size.records,
                request.seed,
                size.repeats,
                size.alone_s,
            )
            for name in names
        ]

    def cost_s(self, trial: FileRestoreTrial) -> float:
        """Return the time of a slow machine."""
        working_s = trial.alone_s * (1 + 1 / steps.WARM_SHARE)
        repeat_s = REPEAT_S + working_s + trial.records / REPEAT_RECORDS_PER_S
        return trial.records / RECORDS_PER_S + trial.repeats * repeat_s

    def run(self, trial: FileRestoreTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each repeat. Raises: MeasurementFailedError."""
        worker.folder.mkdir()
        return run_file_restore(trial, worker.folder, code=worker.code, deadline=worker.deadline)

    def subject(self, trial: FileRestoreTrial) -> str:
        """Return the backend and the size."""
        return f"{trial.backend} with {trial.records:,} records"

    def tried(self, trial: FileRestoreTrial, rows: Sequence[Row]) -> int:
        """Return 1 if all repeats were measured."""
        return int(len(rows) == trial.repeats)

    def line(self, trial: FileRestoreTrial, rows: Sequence[Row]) -> str:
        """Return how long the restores took."""
        if not rows:
            return ""
        last = rows[-1]
        return (
            f"{self.subject(trial)}: replayed in {last['replay_s']:.2f} s, restored by files in {last['files_s']:.2f} s"
        )


def run_file_restore(
    trial: FileRestoreTrial, folder: Path, *, code: str | None = None, deadline: Deadline = NEVER
) -> list[Row]:
    """Return the rows of a trial, of kind "file_restore", one per repeat. ``folder`` exists and is empty.

    After ``deadline`` no further repeat begins: there are fewer rows then. Raises: MeasurementFailedError.
    """
    shared = {"backend": trial.backend, "durability": str(LEVEL), "records": trial.records, "seed": trial.seed}
    rows: list[Row] = []
    with measured_processes(steps.__name__, code) as server, suppress(TimeOverError):

        def step(work: Callable[..., dict[str, Any]], **more: Any) -> dict[str, Any]:
            deadline_s = DEADLINE_S + DEADLINE_PER_RECORD_S * trial.records
            return figures_in(folder, work, {**shared, **more}, deadline_s, code=code, fork_server=server)

        step(steps.log)
        step(steps.fill)
        for repeat in range(trial.repeats):
            if deadline.passed:
                break
            watch = LoadWatch(tree_cpu_s)
            figures = _repeat(partial(step, repeat=repeat), trial.alone_s)
            load = load_columns([watch.figures()])
            rows.append({"kind": "file_restore", **shared, "repeat": repeat, **figures, **load})
    return rows


def _repeat(step: Callable[..., dict[str, Any]], alone_s: float) -> Row:
    """Take snapshots, then measure replay, the restore from the last one, and the copy, one right after the other."""
    # The last snapshot is taken at rest: the tail that a restore replays is short.
    figures = step(steps.work, alone_s=alone_s) | step(steps.change)
    sample = figures.pop("sample")
    return figures | step(steps.replay) | step(steps.restore, sample=sample) | step(steps.copy)
