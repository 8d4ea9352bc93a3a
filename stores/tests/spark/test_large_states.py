"""A state much larger than its batches is restored from a snapshot and the changes since it, in each kind of store."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from stores.changelog.files import Retention, VersionLog
from stores.changelog.files.format import is_whole
from stores.spark import task
from stores.spark.local_state import LocalState
from stores.tasks import Batch
from stores.tests.spark.batches import as_rows, batch_plan, random_records, rows_of, state_of
from stores.tests.spark.counting import close_all

BATCHES = 24


def change_each_kind(version: int, batch: Batch, context: Any) -> None:
    """Fill the store of bytes in the first version; put, delete and let expire a few records in each one."""
    raw, counts, hours, latest = (context.store(name) for name in ("raw", "counts", "hours", "latest"))
    random = Random(version)
    if version == 0:
        raw.put_many({b"%05d" % number: random.randbytes(30) for number in range(4_000)})
    for number in random.sample(range(4_000), 5):
        raw.put(b"%05d" % number, random.choice([None, random.randbytes(30)]))
    for record in batch:
        name, time_ms = (record.key or b"").decode(), 2_000 * version + record.offset
        counts.put(name, random.choice([None, (counts.get(name) or 0) + 1]))
        hours.put(name, random.choice([None, record.offset]), time_ms // 1000 * 1000)
        latest.put(name, random.choice([None, str(record.offset)]), time_ms)


def compute(folder: Path, number: int, **retention: int) -> None:
    query_plan = batch_plan(folder, partial(change_each_kind, number), retention=Retention(**retention))
    rows_of(query_plan, number, as_rows(random_records(Random(number), 10), Random(number)))


def local_state(folder: Path) -> dict[tuple[str, bytes], bytes]:
    """The committed records of a query's open copy in ``folder``, as ``state_of`` its log."""
    [state] = [state for plan, state in task._open.values() if plan.location == str(folder / "state")]
    return committed(state)


def committed(state: LocalState) -> dict[tuple[str, bytes], bytes]:
    records = state.records()
    return {(store, b"mark " * mark + key): value for store, mark, key, value in records if value is not None}


def test_a_lost_copy_of_a_large_state_is_restored_from_changes(tmp_path: Path) -> None:
    few, all_versions = tmp_path / "few", tmp_path / "all"
    whole: set[str] = set()
    for number in range(BATCHES):
        if number % 5 == 4:
            close_all()
            shutil.rmtree(few / "local")
        compute(few, number, snapshot_versions=2, keep_versions=1)
        compute(all_versions, number, snapshot_versions=1_000)
        assert state_of(few) == state_of(all_versions) == local_state(few)
        listing = VersionLog.open(few / "state").partition(0).listing()
        whole |= {name for files in listing.snapshots.values() for name, _ in files if is_whole(name)}
    assert len(whole) == 1
    assert len(listing.versions) <= 4
    close_all()
