"""The experiment that restores a store from the files of a snapshot, and from its changelog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NEVER, NIGHT, SMOKE, Deadline, TimeOverError
from harness.experiment import Experiment, Request, TrialPlacement, TrialWorker, check_counts
from harness.experiments.file_restore import steps
from harness.experiments.file_restore.steps import COMMIT_RECORDS
from harness.processes.child import figures_in, measured_processes
from harness.processes.load import LoadWatch, is_busy, load_columns, tree_cpu_s
from harness.report import text
from harness.report.database import busy, medians
from harness.report.listing import Column, Listing, Report
from harness.report.ratios import ratio_of
from harness.report.rows import Row
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

REPLAY_AT_LEAST = 15.0
"""The files of the default backend are restored so many times as fast as its records are replayed."""
COPY_AT_LEAST = 0.5
"""They have this speed of a copy of the files that is synced as they are."""
BESIDE_AT_LEAST = 0.9
THRESHOLD_RECORDS = 1_000_000
"""A restore of fewer records takes mostly the fixed time of opening, and has no threshold."""

_METHOD = f"""\
A task with a store of these records works on, with commits of {COMMIT_RECORDS:,} records whose keys are far apart. It
first works alone, which counts after a time to warm up, and then until a first snapshot is in place, in a folder on the
same disk. Then three restores follow each other. *Replay*: a task without files restores its store from an embedded
changelog in a file, which has each record once. *By files*: another one restores it from the snapshot. It verifies each
part by its hash, syncs all files, and replays the tail of the changelog. `cp -r` copies the files of that store,
without shared blocks, and verifies and syncs nothing.

Before each of the three, all files are synced, and those that it reads are read into the page cache: so the disk is
written, and hardly read. *Synced* is the time with a sync of all file systems at the end. Replay syncs nothing in LMDB
and SQLite at this level, so the ratios with goals compare the times with that sync, of both sides in each repeat. All
steps are repeated, each in its own process. A sample of the records that were restored by files is compared with the
first store.

*Sent* is what a snapshot sends after 1 % of the keys were changed in one commit. The restore begins from it.
"""


QUERY = f"""select durability, backend, records, count(*) as repeats, sum({busy("file_restore")}) as busy,
        {
    medians(
        "replay_s",
        "replay_synced_s",
        "replay_cpu_s",
        "files_s",
        "files_synced_s",
        "files_cpu_s",
        "copy_s",
        "copy_synced_s",
        "file_bytes",
        "alone_per_s",
        "beside_per_s",
        "snapshot_s",
        "changed_bytes",
        "sent_bytes",
    )
}
    from file_restore group by durability, backend, records order by durability, backend, records"""
"""Medians over repeats for each backend and size."""


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio", for each backend and size: a restore by files against replay and ``cp -r``, all with
    a sync at the end, and processing beside a snapshot against processing alone. One without syncs has no threshold."""

    def key(row: Mapping[str, Any]) -> tuple[str, str, int]:
        return row["backend"], row["durability"], row["records"]

    ratio_rows = []
    for (backend, durability, records), group in groupby(sorted(rows, key=key), key):
        shared = {"kind": "ratio", "subject": backend, "durability": durability, "records_per_commit": None}
        ratio_rows += [{**shared, **ratio} for ratio in _of_size(backend, records, list(group))]
    return ratio_rows


def _of_size(backend: str, records: int, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    is_large, load = records >= THRESHOLD_RECORDS, sum(map(is_busy, rows))
    restored = f"restore of {records:,} records by files"

    def times(name: str) -> list[float]:
        return [row[f"{name}_synced_s"] / row["files_synced_s"] for row in rows]

    yield {
        "claim": f"{restored}, against replay of the changelog",
        "yardstick": "replay",
        "at_least": REPLAY_AT_LEAST if is_large and backend == StoreConfig().backend else None,
        **ratio_of(times("replay"), load),
    }
    yield {
        "claim": f"{restored}, against a copy of the files that is synced",
        "yardstick": "`cp -r` and a sync",
        "at_least": COPY_AT_LEAST if is_large else None,
        **ratio_of(times("copy"), load),
    }
    yield {
        "claim": f"{restored}, against a copy of the files that is not synced",
        "yardstick": "`cp -r`",
        "at_least": None,
        **ratio_of([row["copy_s"] / row["files_s"] for row in rows], load),
    }
    worked = [row for row in rows if row["alone_per_s"] and row["beside_per_s"]]
    if worked:
        yield {
            "claim": f"processing while a snapshot of {records:,} records is taken and sent, against processing alone",
            "yardstick": "processing alone",
            "at_least": BESIDE_AT_LEAST if is_large else None,
            **ratio_of([row["beside_per_s"] / row["alone_per_s"] for row in worked], load),
        }


_RESTORES = Listing(
    "Level {durability}, time until a store without files is restored",
    "file_restore_figure",
    (
        Column("backend"),
        Column("records", "records", text.exact),
        Column("n", "repeats", text.exact),
        Column("files", "file_bytes", text.size),
        Column("replay", "replay_s", text.duration),
        Column("synced", "replay_synced_s", text.duration),
        Column("CPU time", "replay_cpu_s", text.duration),
        Column("by files", "files_s", text.duration),
        Column("synced", "files_synced_s", text.duration),
        Column("CPU time of that", "files_cpu_s", text.duration),
        Column("`cp -r`", "copy_s", text.duration),
        Column("synced", "copy_synced_s", text.duration),
        Column("replay / by files, synced", "replay_synced_s / files_synced_s", text.ratio),
    ),
)
_BESIDE = Listing(
    "Level {durability}, a task while a snapshot is taken and sent, and what one sends after a change",
    "file_restore_figure",
    (
        Column("backend"),
        Column("records", "records", text.exact),
        Column("alone, records/s", "alone_per_s", text.count),
        Column("beside, records/s", "beside_per_s", text.count),
        Column("snapshot in place after", "snapshot_s", text.duration),
        Column("changed", "changed_bytes", text.size),
        Column("sent", "sent_bytes", text.size),
    ),
)
_LARGEST = (
    "`{backend}` with {exact(records)} records was restored by files in {duration(files_s)}, and by replay in "
    "{duration(replay_s)}.",
    "file_restore_figure order by records desc, backend limit 1",
)
REPORT = Report(
    ("file_restore",),
    "restore",
    "Restore by files",
    (
        "A task that has lost its store fetches the files of a snapshot, instead of the records of its changelog.",
        "The files are copied and verified, and only the tail is replayed.",
        _LARGEST,
    ),
    (_RESTORES, _BESIDE),
    _METHOD,
)


class FileRestore(Experiment[FileRestoreTrial]):
    """Restores by files against the replay of the changelog, and against a copy of the files."""

    name = "file_restore"
    title = "restore by files"
    stage = "restore"
    trial = FileRestoreTrial
    placement = TrialPlacement.LOCAL
    share = 4
    night_share = 25
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
