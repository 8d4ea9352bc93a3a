"""Updates of a key within one commit are one record of the changelog, and restoring it gives the same store."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import ChangelogError
from stores.interface import TopicPartition
from stores.tasks import ProcessingGuarantee, TaskContext
from stores.tasks.column_records import bytes_of
from stores.tasks.stores import store_log
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    MEMORY,
    Crash,
    changelog_of,
    count,
    counting_task,
    feed,
    outputs,
    raising_at,
    single,
    state,
)

LOGGED = changelog_of("s")
GUARANTEES = [EXACTLY_ONCE, AT_LEAST_ONCE]


def logged(log: MemoryChangelog, partition: TopicPartition = LOGGED) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(record.key, record.value, record.timestamp_ms) for record in log.read(partition)]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("coalescing", [True, False])
def test_a_commit_logs_a_key_once_however_often_it_was_written(
    tmp_path: Path, log: MemoryChangelog, guarantee: ProcessingGuarantee, coalescing: bool
) -> None:
    stores = {
        name: StoreConfig(backend, changelog_coalescing=coalescing)
        for name, backend in (("left", INDEXED), ("right", MEMORY))
    }
    feed(log, [1, 2, 1, 1, 2, 3] * 10)
    task = counting_task(tmp_path, log, guarantee=guarantee, stores=stores, commit_every_records=30)
    task.open()
    task.run()
    task.close()
    for name in stores:
        assert len(logged(log, changelog_of(name))) == (6 if coalescing else 60)
        last = {key: value for key, value, _ in logged(log, changelog_of(name))}
        assert last == {b"1": b"30", b"2": b"20", b"3": b"10"}
    assert len(outputs(log)) == 60
    reports = {report.store: report for report in task.open()}
    assert (reports["left"].records, reports["right"].records) == (0, 6 if coalescing else 60)
    task.close()


@pytest.mark.parametrize("coalescing", [True, False])
def test_the_memory_of_held_records_counts_in_the_metrics_of_the_task(
    tmp_path: Path, log: MemoryChangelog, coalescing: bool
) -> None:
    feed(log, [1, 2, 1, 3])
    task = single(tmp_path, log, count_one, stores={"s": StoreConfig(INDEXED, changelog_coalescing=coalescing)})
    task.open()
    task.run()
    record_bytes = 3 * store_log.RECORD_MEMORY_BYTES if coalescing else 0
    staged_bytes = 3 * (1 + 1 + PAIR_MEMORY_BYTES)
    metrics = task.metrics
    assert metrics.stores["s"].uncommitted_memory_bytes == staged_bytes + record_bytes
    assert metrics.uncommitted_memory_bytes == task.uncommitted_memory_bytes() == staged_bytes + record_bytes
    task.commit()
    assert task.metrics.uncommitted_memory_bytes == 0
    task.run()
    task.close()
    assert task.metrics.uncommitted_memory_bytes == 0


def count_one(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store("s").put(record.key, b"1")


def test_the_last_write_of_a_key_decides_its_value_and_timestamp(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        if record.offset == 0:
            store.put_all([(b"%d" % number, b"old") for number in range(8)])
        elif record.offset == 1:
            store.delete_range(b"2", b"6")
            store.put(b"3", b"new")
            store.delete(b"0")
        else:
            store.put_if_absent(b"4", b"new")
            store.put(b"3", b"newer")
            store.put(b"1", None)

    feed(log, [10, 20, 30])
    task = single(tmp_path, log, process, stores={"s": StoreConfig(INDEXED)})
    task.open()
    task.run(commit=True)
    content = state(task, "s")
    task.close()
    assert content == {b"3": b"newer", b"4": b"new", b"7": b"old"}
    assert sorted(logged(log)) == [
        (b"0", None, 20),
        (b"1", None, 30),
        (b"2", None, 20),
        (b"3", b"newer", 30),
        (b"4", b"new", 30),
        (b"5", None, 20),
        (b"6", None, 20),
        (b"7", b"old", 10),
    ]
    shutil.rmtree(tmp_path / "state")
    task.open()
    assert state(task, "s") == content
    task.close()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_transaction_larger_than_what_may_be_held_is_restored_as_it_was(
    tmp_path: Path, log: MemoryChangelog, guarantee: ProcessingGuarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.tasks.stores.shown_store.COALESCED_BYTES_MAX", 4_000)
    random = Random(892)

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        for _ in range(40):
            store.put(b"%02d" % random.randrange(60), random.randbytes(3))
        store.delete_range(b"%02d" % random.randrange(60), b"%02d" % random.randrange(60))

    feed(log, range(20))
    task = single(tmp_path, log, process, guarantee=guarantee, stores={"s": StoreConfig(INDEXED)})
    task.open()
    task.run(commit=True)
    content = state(task, "s")
    assert 60 < len(logged(log)) < 800
    task.close()
    shutil.rmtree(tmp_path / "state")
    task.open()
    assert state(task, "s") == content
    task.close()


def test_a_key_that_is_written_over_and_over_stays_one_record(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many bytes were written: what is held is what counts."""
    monkeypatch.setattr("stores.tasks.stores.shown_store.COALESCED_BYTES_MAX", 4_000)

    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"hot", b"%04d" % record.offset)

    feed(log, [0] * 500)
    task = single(tmp_path, log, process, stores={"s": StoreConfig(MEMORY)})
    task.open()
    task.run(commit=True)
    task.close()
    assert logged(log) == [(b"hot", b"0499", 0)]


def test_what_is_held_is_counted_again_only_once_in_many_writes(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nearly all of the room is taken by keys that are not written again."""
    counted: list[int] = []

    def counted_bytes(keys: list[bytes], values: list[bytes | None]) -> int:
        counted.append(len(keys))
        return bytes_of(keys, values)

    monkeypatch.setattr(store_log, "bytes_of", counted_bytes)
    monkeypatch.setattr("stores.tasks.stores.shown_store.COALESCED_BYTES_MAX", 4_000)

    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"%03d" % min(record.offset, 25), b"%04d" % record.offset)

    feed(log, [0] * 500)
    task = single(tmp_path, log, process, stores={"s": StoreConfig(MEMORY)})
    task.open()
    task.run(commit=True)
    task.close()
    assert 10 < len(counted) < 25
    assert len(logged(log)) == 25 + 2


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_is_held_of_a_transaction_that_was_undone_is_never_logged(
    tmp_path: Path, log: MemoryChangelog, guarantee: ProcessingGuarantee
) -> None:
    poisoned = {2}
    feed(log, [1, 2, 3, 4])
    task = counting_task(
        tmp_path,
        log,
        guarantee=guarantee,
        process=raising_at(poisoned, count),
        stores={"left": StoreConfig(INDEXED), "right": StoreConfig(MEMORY)},
    )
    task.open()
    with pytest.raises(Crash):
        task.run()
    task.process(INPUT, Record(3, b"4", b"x", 4))
    task.commit()
    assert [key for key, _, _ in logged(log, changelog_of("left"))] == [b"4"]
    task.close()


def test_a_write_that_could_not_be_sent_early_is_never_committed_even_if_the_function_hides_the_error(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.tasks.stores.shown_store.COALESCED_BYTES_MAX", 100)

    def process(record: Record, context: TaskContext) -> None:
        with monkeypatch.context() as patch, pytest.raises(ChangelogError):
            patch.setattr(context._producer, "send_columns", refuse)
            context.store("s").put(b"key", b"value")

    def refuse(*_: object) -> None:
        raise ChangelogError("the disk is full")

    feed(log, [1])
    task = single(tmp_path, log, process, stores={"s": StoreConfig(INDEXED)})
    task.open()
    with pytest.raises(ChangelogError):
        task.run()
    task.commit()
    assert (state(task, "s"), logged(log)) == ({}, [])
    task.close()
