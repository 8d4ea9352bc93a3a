"""The figures, the ratios, the tables and the page about restores by files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from harness.experiments.file_restore.steps import COMMIT_RECORDS
from harness.processes.load import is_busy
from harness.report import text
from harness.report.database import busy, medians
from harness.report.listing import Column, Listing, Report
from harness.report.ratios import ratio_of
from stores.config import StoreConfig

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
