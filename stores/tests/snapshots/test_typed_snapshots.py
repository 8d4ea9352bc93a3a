"""Typed stores that begin from a second snapshot have their records and marks, of the same or another backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog
from stores.interface import IsolationLevel
from stores.records import INT64, STR, KeyValue, TimestampedKeyValue, TimestampedKeyValueWithHeaders, Versioned, Window
from stores.tasks import StoreConfig, StreamTask
from stores.tests.snapshots.snapshotting import commit, lose, objects_in, send, settings
from stores.tests.tasks.setup import INDEXED, single

ENGINES = (INDEXED, "lmdb-indexed-batch", "sqlite-indexed-batch")


@pytest.mark.parametrize(
    "records",
    [
        KeyValue(key=STR, value=INT64),
        TimestampedKeyValue(key=STR, value=INT64),
        TimestampedKeyValue(key=STR, value=INT64, ttl_ms=1_000_000),
        TimestampedKeyValueWithHeaders(key=STR, value=INT64),
        *(Window(key=STR, value=INT64, size_ms=10, retention_ms=100, headers=each) for each in (False, True)),
        Versioned(key=STR, value=INT64, history_retention_ms=100),
    ],
    ids=lambda kind: kind.kind,
)
@pytest.mark.parametrize(
    ("backend", "opened"),
    [
        *((backend, backend) for backend in ENGINES),
        # Of another backend, the records and marks are copied.
        *zip(ENGINES, (*ENGINES[1:], ENGINES[0]), strict=True),
    ],
)
def test_typed_stores_are_restored_with_their_marks(
    tmp_path: Path, log: Changelog, backend: str, opened: str, records: Any
) -> None:
    snapshots = settings(tmp_path)

    def process(record: object, context: object) -> None:
        number = int(record.value)  # type: ignore[attr-defined]
        times = 3 if isinstance(records, Window) else 1
        given: Any = (number * times,) * (not isinstance(records, KeyValue))
        if records.log_parts is not None:
            given += (*given * isinstance(records, Window), (("number", record.value),))  # type: ignore[attr-defined]
        context.store("s").put(f"key {number}", number, *given)  # type: ignore[attr-defined]

    def made(backend: str) -> StreamTask:
        stores = {"s": StoreConfig(backend, records=records)}
        return single(tmp_path, log, process, backend, stores=stores, snapshots=snapshots)

    task = made(backend)
    task.open()
    number = 0
    for snapshots_due in (1, 2):
        send(log, [(b"key", b"%d" % each) for each in range(number, number + 60)])
        task.run(commit=True)
        number += 60
        while task.metrics.stores["s"].snapshot_total < snapshots_due:
            send(log, [(b"key", b"%d" % number)])
            commit(task)
            number += 1
            assert number < 10_000
    objects = objects_in(snapshots)
    assert bool(objects.index(objects.indexes()[0]).changes) == (backend != INDEXED)
    expected = list(task.store("s", IsolationLevel.READ_COMMITTED).all())
    task.close()
    lose(tmp_path)
    task = made(opened)
    [report] = task.open()
    assert report.snapshot_offset is not None
    assert list(task.store("s", IsolationLevel.READ_COMMITTED).all()) == expected
    task.close()
