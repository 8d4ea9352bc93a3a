"""A task takes over typed stores that Kafka Streams has left, or refuses those that another configuration fits."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import StoreIncompatibleError
from stores.records import BYTES, FLOAT64, INT64, KeyValue, TimestampedKeyValue, TimestampedKeyValueWithHeaders, Window
from stores.records.record_kind import RecordKind
from stores.settings import Upgrade
from stores.tasks import StreamTask, TaskContext
from stores.tests.tasks.setup import INDEXED, MEMORY, changelog_of, counting_task, feed
from stores.tests.tasks.streams_folder import (
    TIMESTAMPED,
    all_files,
    leave_offsets,
    leave_store,
    put_raw,
    streams_folder,
    task_folder,
)

LOG = changelog_of("s")
TIMED = TimestampedKeyValue(key=BYTES, value=BYTES)
HEADED = TimestampedKeyValueWithHeaders(key=BYTES, value=BYTES)
PLAIN = KeyValue(key=BYTES, value=BYTES)
WINDOW = Window(key=BYTES, value=BYTES, size_ms=10, retention_ms=100)
VALUES = {b"1": b"v2", b"2": b"v1"}
TIMED_VALUES = {b"1": (1, b"v2"), b"2": (2, b"v1")}
"""The records of ``fed``: time and value."""


def keep(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    store = context.store("s")
    if not isinstance(store.kind, KeyValue):
        store.put(record.key, b"v%d" % record.offset, record.timestamp_ms)
    else:
        store.put(record.key, b"v%d" % record.offset)


def typed_task(folder: Path, log: Changelog, records: RecordKind, backend: str = INDEXED, **given: Any) -> StreamTask:
    config = StoreConfig(backend, records=records, changelog_coalescing=False, **given)
    return counting_task(folder, log, stores={"s": config}, process=keep)


def fed(folder: Path, log: Changelog, records: RecordKind) -> None:
    """Fill the changelog with three records of two keys, with the times 1, 2 and 1, and leave an offset."""
    feed(log, [1, 2, 1])
    with closing(typed_task(folder, log, records, MEMORY)) as task:
        task.open()
        task.run(commit=True)
    leave_offsets(task_folder(folder) / ".checkpoint", {LOG: 2})


def opened(task: StreamTask) -> list[tuple[bool, int]]:
    return [(report.wiped, report.records) for report in task.open()]


@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", "sqlite-indexed-batch"])
def test_a_timestamped_store_is_taken_over_with_its_times(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    fed(tmp_path, log, TIMED)
    leave_store(streams_folder(tmp_path, "s"), {}, TIMED_VALUES)
    for _ in range(2):
        with closing(typed_task(tmp_path, log, TIMED, backend)) as task:
            assert opened(task) == [(False, 0)]
            contents = {key: (at_ms, value) for key, (value, at_ms) in task.store("s").all()}
            assert contents == TIMED_VALUES


def test_a_timestamped_store_is_taken_over_as_one_with_headers(tmp_path: Path, log: MemoryChangelog) -> None:
    fed(tmp_path, log, TIMED)
    leave_store(streams_folder(tmp_path, "s"), {}, TIMED_VALUES)
    for _ in range(2):
        with closing(typed_task(tmp_path, log, HEADED)) as task:
            assert opened(task) == [(False, 0)]
            contents = {key: tuple(found) for key, found in task.store("s").all()}
            assert contents == {key: (value, at_ms, ()) for key, (at_ms, value) in TIMED_VALUES.items()}


@pytest.mark.parametrize("data", [b"", b"short"])
@pytest.mark.parametrize("records", [TIMED, HEADED])
def test_a_store_with_a_value_without_a_time_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog, records: RecordKind, data: bytes
) -> None:
    fed(tmp_path, log, TIMED)
    leave_store(streams_folder(tmp_path, "s"), {}, TIMED_VALUES)
    put_raw(streams_folder(tmp_path, "s"), TIMESTAMPED, {b"3": data})
    with closing(typed_task(tmp_path, log, records)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (True, 3)
        assert "b'3'" in str(report.reason)
        assert [key for key, _ in task.store("s").all()] == [b"1", b"2"]


def test_a_time_that_headers_can_t_follow_is_refused_unchanged(tmp_path: Path, log: MemoryChangelog) -> None:
    """The bit of the time that says so is the one that says that headers follow."""
    fed(tmp_path, log, TIMED)
    leave_store(streams_folder(tmp_path, "s"), {}, {**TIMED_VALUES, b"3": (1 << 62, b"\x02\x00v")})
    before = all_files(streams_folder(tmp_path, "s"))
    with closing(typed_task(tmp_path, log, HEADED)) as task, pytest.raises(StoreIncompatibleError, match="b'3'"):
        task.open()
    assert all_files(streams_folder(tmp_path, "s")) == before
    with closing(typed_task(tmp_path, log, TIMED)) as task:
        assert opened(task) == [(False, 0)]
        assert task.store("s").get(b"3") == (b"\x02\x00v", 1 << 62)


def test_a_plain_store_is_taken_over_as_a_typed_one(tmp_path: Path, log: MemoryChangelog) -> None:
    fed(tmp_path, log, PLAIN)
    leave_store(streams_folder(tmp_path, "s"), VALUES)
    for _ in range(2):
        with closing(typed_task(tmp_path, log, PLAIN)) as task:
            assert opened(task) == [(False, 0)]
            assert dict(task.store("s").all()) == VALUES


@pytest.mark.parametrize(
    ("records", "right", "pairs", "timed", "more"),
    [
        (TIMED, PLAIN, VALUES, None, []),
        (PLAIN, TIMED, {}, TIMED_VALUES, []),
        (WINDOW, TIMED, {}, TIMED_VALUES, []),
        (replace(TIMED, ttl_ms=10_000), TIMED, {}, TIMED_VALUES, []),
        (TIMED, None, {}, TIMED_VALUES, ["keyValueWithTimestampAndHeaders"]),
    ],
)
def test_a_store_that_another_configuration_can_take_over_is_refused_unchanged(
    tmp_path: Path,
    log: MemoryChangelog,
    records: RecordKind,
    right: RecordKind | None,
    pairs: dict[bytes, bytes],
    timed: dict[bytes, tuple[int, bytes]] | None,
    more: list[str],
) -> None:
    """As a store of the library is. Without a right configuration, removing the folder restores it."""
    fed(tmp_path, log, TIMED if right is None else right)
    leave_store(streams_folder(tmp_path, "s"), pairs, timed, *more)
    before = all_files(streams_folder(tmp_path, "s"))
    offsets = (task_folder(tmp_path) / ".checkpoint").read_bytes()
    for _ in range(2):
        with closing(typed_task(tmp_path, log, records)) as task, pytest.raises(StoreIncompatibleError, match="Kafka"):
            task.open()
        assert all_files(streams_folder(tmp_path, "s")) == before
        assert (task_folder(tmp_path) / ".checkpoint").read_bytes() == offsets
    if right is None:
        shutil.rmtree(streams_folder(tmp_path, "s"))
    with closing(typed_task(tmp_path, log, right or records)) as task:
        assert opened(task) == [(False, 3 if right is None else 0)]
        assert len(list(task.store("s").all())) == 2


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("serde", [INT64, FLOAT64])
def test_a_serde_that_would_misread_kafka_s_numbers_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, serde: Any, part: str, offsets: bool
) -> None:
    """Kafka's 5 would be -9,223,372,036,854,775,803."""
    fed(tmp_path, log, TIMED)
    if not offsets:
        (task_folder(tmp_path) / ".checkpoint").unlink()
    leave_store(streams_folder(tmp_path, "s"), {}, {bytes(8): (1, bytes(7) + b"\x05")})
    before = all_files(streams_folder(tmp_path, "s"))
    records: Any = replace(TIMED, **{part: serde})
    with closing(typed_task(tmp_path, log, records)) as task, pytest.raises(StoreIncompatibleError, match=part):
        task.open()
    assert all_files(streams_folder(tmp_path, "s")) == before


def test_without_an_offset_a_store_of_another_kind_is_restored_whole(tmp_path: Path, log: MemoryChangelog) -> None:
    """No configuration could take it over."""
    fed(tmp_path, log, TIMED)
    (task_folder(tmp_path) / ".checkpoint").unlink()
    leave_store(streams_folder(tmp_path, "s"), VALUES)
    with closing(typed_task(tmp_path, log, TIMED)) as task:
        assert opened(task) == [(True, 3)]


def test_a_store_with_records_from_before_it_had_timestamps_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    fed(tmp_path, log, TIMED)
    leave_store(streams_folder(tmp_path, "s"), {b"2": b"v1"}, {b"1": (1, b"v2")})
    with closing(typed_task(tmp_path, log, TIMED)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (True, 3)
        assert "Kafka Streams" in str(report.reason)
        contents = {key: (at_ms, value) for key, (value, at_ms) in task.store("s").all()}
        assert contents == TIMED_VALUES


def test_a_store_with_an_upgrade_is_restored_whole_through_it(tmp_path: Path, log: MemoryChangelog) -> None:
    fed(tmp_path, log, PLAIN)
    leave_store(streams_folder(tmp_path, "s"), VALUES)
    upgrade = Upgrade(1, lambda record, version: [(record.key or b"", (record.value or b"") + b"!")])
    with closing(typed_task(tmp_path, log, PLAIN, upgrade=upgrade, upgrade_mode="in_place")) as task:
        assert opened(task) == [(True, 3)]
        assert dict(task.store("s").all()) == {key: value + b"!" for key, value in VALUES.items()}
