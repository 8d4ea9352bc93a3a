"""Records that expire in a task: their removal is logged with the commit that removes them, and a restore agrees."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.interface import IsolationLevel
from stores.records import BYTES, INT64, TimestampedKeyValue
from stores.tasks import StreamTask, TaskContext
from stores.tests.tasks.setup import DIRECT, INDEXED, INPUT, MEMORY, Crash
from stores.tests.tasks.typed import changelog_pairs, kept, typed_task

TTL = TimestampedKeyValue(BYTES, INT64, ttl_ms=100)
BACKENDS = [MEMORY, INDEXED, DIRECT, "lmdb-native", "sqlite-indexed-batch"]


def expiring_task(folder: Path, log: MemoryChangelog, backend: str, crash_at: int | None = None) -> StreamTask:
    """Puts the offset of each record under its key at its time; dies at the record ``crash_at``."""

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(record.key, record.offset, record.timestamp_ms)
        if record.offset == crash_at:
            raise Crash

    return typed_task(folder, log, "timestamped", backend, store_records=TTL, process=put)


def feed(log: MemoryChangelog, *times: tuple[bytes, int]) -> None:
    log.create_topic("input")
    log.create_topic("output")
    with log.producer() as producer:
        for key, time_ms in times:
            producer.send(INPUT, key, b"", time_ms)
        producer.flush()


def shown(task: StreamTask, level: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[bytes, int]:
    with task.store("s", level).all() as pairs:
        return {key: record.value for key, record in pairs}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_removal_is_logged_and_a_restore_shows_the_same(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    feed(log, (b"a", 0), (b"b", 50), (b"c", 100), (b"late", 0), (b"d", 120))
    with closing(expiring_task(tmp_path, log, backend)) as task:
        task.open()
        task.run(commit=True)
        assert shown(task) == {b"b": 1, b"c": 2, b"d": 4}
    logged = [(key, value) for key, value, _ in changelog_pairs(log)]
    assert (b"late", None) in logged
    assert logged[-1] == (b"a", None)
    assert (b"late", INT64.serialize(3)) not in logged
    if backend != MEMORY:
        pairs, stream_time = kept(tmp_path, backend)
        assert [key for key, _ in pairs] == [b"b", b"c", b"d"]
        assert stream_time == (120).to_bytes(8, "big")
    with closing(expiring_task(tmp_path / "elsewhere", log, backend)) as task:
        task.open()
        assert shown(task) == {b"b": 1, b"c": 2, b"d": 4}
    if backend != MEMORY:
        assert kept(tmp_path / "elsewhere", backend) == kept(tmp_path, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_that_fails_takes_stream_time_back(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    feed(log, (b"a", 0), (b"b", 100))
    with closing(expiring_task(tmp_path, log, backend, crash_at=1)) as task:
        task.open()
        task.run(1, commit=True)
        with pytest.raises(Crash):
            task.run(commit=True)
        task.close()
        task.open()
        assert shown(task) == {b"a": 0}
        assert shown(task, IsolationLevel.READ_UNCOMMITTED) == {b"a": 0}
