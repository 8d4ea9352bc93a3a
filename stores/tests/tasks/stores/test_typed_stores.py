"""Typed stores in a task: what is kept, what is logged, what a restore makes of that, and what views show."""

from __future__ import annotations

import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import CommitFailedError, NotUpToBoundError, StoreError, StoreIncompatibleError
from stores.interface import IsolationLevel, PositionBound
from stores.records import BYTES, INT64, STR, KeyValue, TimestampedKeyValue, ValueAndTimestamp, Window
from stores.settings import Upgrade
from stores.strategies.store import Store
from stores.tasks import TaskContext
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    INDEXED,
    INPUT,
    MEMORY,
    Crash,
    crashing_at,
    raising_at,
    single,
)
from stores.tests.tasks.typed import (
    KINDS,
    RETENTION_MS,
    changelog_pairs,
    expected_values,
    feed_times,
    kept,
    kept_in,
    sent,
    typed_task,
    values,
    write,
)

ON_DISK = [INDEXED, DIRECT, "lmdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch", "sqlite-native"]
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize("kind", KINDS)
def test_the_function_gets_the_typed_store_and_views_are_typed_at_both_levels(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    feed_times(log, range(6))
    with closing(typed_task(tmp_path, log, kind)) as task:
        task.open()
        task.run(3)
        task.commit()
        task.run()
        assert values(task, kind) == expected_values(range(3))
        assert values(task, kind, UNCOMMITTED) == expected_values(range(6))


def test_the_changelog_has_the_plain_value_and_the_time_is_the_records(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-258, "Changelog topic format"."""
    feed_times(log, range(2))

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"own", 7, 12)
        context.store("s").put(b"gone", 8, 13)
        context.store("s").delete(b"gone")

    with closing(typed_task(tmp_path, log, "timestamped", INDEXED, process=put)) as task:
        task.open()
        task.run(1, commit=True)
    logged = changelog_pairs(log)
    assert logged[0] == (b"own", INT64.serialize(7), 12)
    assert [(key, value) for key, value, _ in logged[1:]] == [(b"gone", INT64.serialize(8)), (b"gone", None)]
    assert kept(tmp_path, INDEXED)[0] == [(b"own", struct.pack(">q", 12) + INT64.serialize(7))]


def test_a_key_value_store_logs_with_the_time_of_the_current_record(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(2))
    with closing(typed_task(tmp_path, log, "key-value")) as task:
        task.open()
        task.run(commit=True)
    assert [time_ms for *_, time_ms in changelog_pairs(log)] == [sent(0)[1], sent(1)[1]]


def test_coalescing_keeps_value_and_time_of_the_last_update(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(3))

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"k", record.offset, 100 - record.offset)

    with closing(typed_task(tmp_path, log, "timestamped", process=put, store_changelog_coalescing=True)) as task:
        task.open()
        task.run(commit=True)
        assert task.store("s").get(b"k") == ValueAndTimestamp(2, 98)
    assert changelog_pairs(log) == [(b"k", INT64.serialize(2), 98)]


@pytest.mark.parametrize("backend", ON_DISK)
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_store_keeps_the_same_bytes_as_the_original(
    tmp_path: Path, log: MemoryChangelog, kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times included; in pieces of three records. Source: KIP-258, "RecordConverter"."""
    feed_times(log, range(60))
    with closing(typed_task(tmp_path, log, kind, backend, commit_every_records=7)) as task:
        task.open()
        task.run(commit=True)
    original = kept(tmp_path, backend)
    assert original[0]
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_RECORDS_MAX", 3)
    with closing(typed_task(tmp_path / "other", log, kind, backend)) as task:
        [report] = task.open()
        assert report.records == len(changelog_pairs(log))
    assert kept(tmp_path / "other", backend) == original


@pytest.mark.parametrize("kind", ["window", "session"])
def test_a_restore_of_the_tail_does_not_take_stream_time_back(tmp_path: Path, log: MemoryChangelog, kind: str) -> None:
    feed_times(log, [40, 0])
    with closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        task.open()
        task.run(1, commit=True)
        before = values(task, kind)
    time_ms = kept(tmp_path, INDEXED)[1]
    with closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        task.open()
        task.run(commit=True)
        assert values(task, kind) == [*before, 1]
    assert kept(tmp_path, INDEXED)[1] == time_ms


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_function_staged_before_its_error_is_undone(tmp_path: Path, log: MemoryChangelog, kind: str) -> None:
    feed_times(log, range(40))
    poisoned = {20}

    def process(record: Record, context: TaskContext) -> None:
        write(kind, record, context)

    with closing(typed_task(tmp_path, log, kind, process=raising_at(poisoned, process))) as task:
        task.open()
        task.run(10, commit=True)
        before = values(task, kind)
        with pytest.raises(Crash):
            task.run()
        assert values(task, kind, UNCOMMITTED) == values(task, kind) == before
        poisoned.clear()
        task.run(commit=True)
        assert values(task, kind) == _values_without_errors(tmp_path / "other", kind, 40)


def _values_without_errors(folder: Path, kind: str, count: int) -> list[int]:
    with MemoryChangelog() as log:
        feed_times(log, range(count))
        with closing(typed_task(folder, log, kind)) as task:
            task.open()
            task.run(commit=True)
            return values(task, kind)


def test_commit_rollback_and_close_are_the_tasks(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(1))
    errors = []

    def process(record: Record, context: TaskContext) -> None:
        for method in ("commit", "rollback", "close"):
            with pytest.raises(StoreError):
                getattr(context.store("s"), method)()
            errors.append(method)

    with closing(typed_task(tmp_path, log, "timestamped", process=process)) as task:
        task.open()
        task.run()
    assert errors == ["commit", "rollback", "close"]


def test_a_view_with_a_bound_answers_once_the_input_up_to_there_is_reflected(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(2))
    with closing(typed_task(tmp_path, log, "window")) as task:
        task.open()
        view = task.store("s", IsolationLevel.READ_COMMITTED, PositionBound({INPUT: 1}))
        with pytest.raises(NotUpToBoundError):
            view.fetch_one(*sent(0))
        task.run(commit=True)
        assert view.fetch_one(*sent(0)) == 0


@pytest.mark.parametrize("backend", [INDEXED, DIRECT, "lmdb-indexed-batch", "sqlite-native"])
@pytest.mark.parametrize(
    "other",
    [
        KeyValue(key=STR, value=INT64),
        Window(key=BYTES, value=BYTES, size_ms=10, retention_ms=RETENTION_MS),
        Window(key=BYTES, value=INT64, size_ms=10, retention_ms=RETENTION_MS, retain_duplicates=True),
    ],
)
def test_a_store_of_another_description_is_refused_and_not_wiped(
    tmp_path: Path, log: MemoryChangelog, backend: str, other: Any
) -> None:
    feed_times(log, range(3))
    with closing(typed_task(tmp_path, log, "window", backend)) as task:
        task.open()
        task.run(commit=True)
    before = kept(tmp_path, backend)
    task = typed_task(tmp_path, log, "window", backend, store_records=other)
    with pytest.raises(StoreIncompatibleError):
        task.open()
    assert kept(tmp_path, backend) == before
    with closing(typed_task(tmp_path, log, "window", backend)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)


@pytest.mark.parametrize("backend", [INDEXED, DIRECT, "lmdb-indexed-batch", "sqlite-native"])
@pytest.mark.parametrize("kind", ["timestamped-window", "session"])
def test_a_task_takes_another_retention_and_wipes_nothing(
    tmp_path: Path, log: MemoryChangelog, backend: str, kind: str
) -> None:
    feed_times(log, range(60))
    with closing(typed_task(tmp_path, log, kind, backend)) as task:
        task.open()
        task.run(30, commit=True)
        before = values(task, kind)
    described: Any = KINDS[kind]
    longer = replace(described, retention_ms=5 * RETENTION_MS, segment_ms=70)
    with closing(typed_task(tmp_path, log, kind, backend, store_records=longer)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)
        assert values(task, kind) == before
        task.run(commit=True)
        contents = values(task, kind)
    assert contents == list(range(60))
    with closing(typed_task(tmp_path / "elsewhere", log, kind, backend, store_records=longer)) as task:
        task.open()
        assert values(task, kind) == contents
    shorter = replace(described, retention_ms=100, segment_ms=None)
    with closing(typed_task(tmp_path, log, kind, backend, store_records=shorter)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)
        highest = max(sent(number)[1] for number in range(60))
        # The time of a session is its end.
        assert values(task, kind) == [number for number in range(60) if sent(number)[1] > highest - 100]


@pytest.mark.parametrize("backend", [INDEXED, DIRECT, "sqlite-native"])
def test_the_upgrade_that_an_error_names_builds_the_store_anew(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    feed_times(log, range(10))
    with closing(typed_task(tmp_path, log, "timestamped-window", backend)) as task:
        task.open()
        task.run(commit=True)
        before = values(task, "timestamped-window")
    without: Any = {"store_records": KINDS["window"]}
    with pytest.raises(StoreIncompatibleError, match="upgrade=Upgrade"):
        typed_task(tmp_path, log, "window", backend, **without).open()
    upgrade = Upgrade(1, lambda record, version: [(record.key or b"", record.value)])
    settings = {**without, "store_upgrade": upgrade, "store_upgrade_mode": "in_place"}
    with closing(typed_task(tmp_path, log, "window", backend, **settings)) as task:
        task.open()
        assert values(task, "window") == before


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"key-value"}))
def test_a_typed_store_is_no_store_of_bytes_for_a_task_and_is_left_as_it_is(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    """A function without the description would write bytes that one with it could not read."""
    feed_times(log, range(3))
    with closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        task.open()
        task.run(commit=True)
    before = kept(tmp_path, INDEXED)
    with pytest.raises(StoreIncompatibleError):
        single(tmp_path, log, lambda record, context: None, INDEXED).open()
    assert kept(tmp_path, INDEXED) == before
    with closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)
        assert values(task, kind) == [0, 1, 2]


def test_a_key_value_store_is_a_store_of_bytes_for_a_task(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(1))
    with closing(typed_task(tmp_path, log, "key-value", INDEXED)) as task:
        task.open()
        task.run(commit=True)
        [key] = [key for key, _ in task.store("s").all()]
    with closing(single(tmp_path, log, lambda record, context: None, INDEXED)) as task:
        task.open()
        assert task.store("s").get(key) == INT64.serialize(0)


def test_the_changelog_of_a_plain_store_restores_into_a_timestamped_one(tmp_path: Path, log: MemoryChangelog) -> None:
    """The times come with the records. Source: KIP-258, "Upgrading"."""
    feed_times(log, range(3))

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"%d" % record.offset, INT64.serialize(record.offset))

    with closing(single(tmp_path, log, put)) as plain:
        plain.open()
        plain.run(commit=True)
    with closing(typed_task(tmp_path, log, "timestamped")) as task:
        task.open()
        assert [task.store("s").get(b"%d" % number) for number in range(3)] == [
            ValueAndTimestamp(number, sent(number)[1]) for number in range(3)
        ]


def test_a_wiped_store_is_described_again_before_it_is_restored(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(3))
    with closing(typed_task(tmp_path, log, "window", DIRECT)) as task:
        task.open()
        task.run(commit=True)
    task = typed_task(tmp_path, log, "window", DIRECT)
    task.open()
    task.close(clean=False)
    with closing(typed_task(tmp_path, log, "window", DIRECT)) as task:
        [report] = task.open()
        assert report.wiped
        assert values(task, "window") == [0, 1, 2]
    with closing(typed_task(tmp_path, log, "window", DIRECT)) as task:
        [report] = task.open()
        assert not report.wiped
    with pytest.raises(StoreIncompatibleError):
        typed_task(tmp_path, log, "timestamped", DIRECT).open()


def test_records_that_are_no_kind_are_refused() -> None:
    with pytest.raises(TypeError):
        StoreConfig(MEMORY, records="timestamped")  # type: ignore[arg-type]


def test_a_plain_store_stays_a_store_of_bytes(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(1))
    with closing(single(tmp_path, log, lambda record, context: context.store("s").put(b"k", b"v"))) as task:
        task.open()
        task.run(commit=True)
        assert task.store("s").get(b"k") == b"v"


@pytest.mark.parametrize("kind", KINDS)
def test_early_commits_by_memory_lose_nothing(tmp_path: Path, log: MemoryChangelog, kind: str) -> None:
    feed_times(log, range(60))
    with closing(typed_task(tmp_path, log, kind, store_uncommitted_max_bytes=2_000)) as task:
        task.open()
        task.run(commit=True)
        assert sum(task.metrics.early_commit_total.values()) > 1
        assert values(task, kind) == _values_without_errors(tmp_path / "other", kind, 60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, "exactly_once"])
def test_a_store_whose_commit_failed_goes_on_in_the_hands_of_the_function(
    tmp_path: Path, log: MemoryChangelog, kind: str, guarantee: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is opened again below the typed one, which the function may have kept."""
    feed_times(log, range(40))
    with closing(typed_task(tmp_path, log, kind, INDEXED, guarantee=guarantee)) as task:
        task.open()
        task.run(10, commit=True)
        task.run(10)

        def fail(*_: object) -> None:
            raise CommitFailedError("torn", reopen=True)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "commit", fail)
            task.commit()
        task.run(commit=True)
        assert values(task, kind) == _values_without_errors(tmp_path / "other", kind, 40)


@pytest.mark.parametrize("kind", ["window", "timestamped-session"])
def test_a_task_counts_the_records_that_its_store_drops(tmp_path: Path, log: MemoryChangelog, kind: str) -> None:
    log.create_topic("input")
    log.create_topic("output")
    with log.producer() as producer:
        for time_ms in (10_000, 1, 9_500, 2):
            producer.send(INPUT, b"0", b"x", time_ms)
        producer.flush()
    with closing(typed_task(tmp_path, log, kind)) as task:
        task.open()
        task.run(commit=True)
        assert task.metrics.stores["s"].late_total == 2
        assert values(task, kind) == [0, 2]
        assert len(changelog_pairs(log)) == 2


@pytest.mark.parametrize("close", [False, True])
def test_expired_segments_are_dropped_with_the_tasks_commits_its_last_one_too(
    tmp_path: Path, log: MemoryChangelog, close: bool
) -> None:
    feed_times(log, [0, 400])
    task = typed_task(tmp_path, log, "window", INDEXED)
    task.open()
    task.run(1, commit=True)
    task.run(1, commit=not close)
    task.close(clean=close)
    assert len(kept(tmp_path, INDEXED)[0]) == 1


def test_expired_segments_come_back_where_the_commit_fails_that_dropped_them(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, [0, 400])
    task = typed_task(tmp_path, log, "window", INDEXED)
    task.open()
    task.run(1, commit=True)
    before = kept_in(task)
    task.run(1)
    with crashing_at("task.before_log_commit"):
        task.commit()
    assert kept_in(task) == before
    assert values(task, "window", UNCOMMITTED) == [0]
    task.run(commit=True)
    assert len(kept_in(task)) == 1
    task.close()


@pytest.mark.parametrize("backend", [INDEXED, MEMORY])
def test_records_that_live_no_longer_go_with_commits_and_from_the_changelog(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    feed_times(log, range(40))
    records = TimestampedKeyValue(key=BYTES, value=INT64, ttl_ms=100)

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"%d" % record.offset, record.offset, 10 * record.offset)

    settings = {"store_records": records, "process": put, "commit_every_records": 1}
    with closing(typed_task(tmp_path, log, "timestamped", backend, **settings)) as task:
        task.open()
        task.run(commit=True)
        live = values(task, "timestamped")
        assert live == list(range(30, 40))
        assert len(kept_in(task)) < 25
        bytes_kept = kept_in(task)
    tombstones = {key for key, value, _ in changelog_pairs(log) if value is None}
    assert {b"%d" % number for number in range(40)} - tombstones == set(bytes_kept)
    with closing(typed_task(tmp_path / "other", log, "timestamped", backend, **settings)) as task:
        task.open()
        assert kept_in(task) == bytes_kept
        assert values(task, "timestamped") == live
