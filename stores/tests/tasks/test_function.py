"""The calls that a user's function may make on its stores, and those that only the task makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.errors import (
    ChangelogError,
    ConfigError,
    StoreError,
)
from stores.interface import IsolationLevel, TopicPartition
from stores.records import INT64, STR, KeyValue
from stores.tasks import NO_INTERVAL, PunctuationType, StoreConfig, TaskContext
from stores.tests.tasks.setup import (
    INPUT,
    OUTPUT,
    feed,
    single,
    state,
)


@pytest.mark.parametrize("settings", [{}, {"on_error": "skip"}, {"recording_level": "DEBUG"}])
def test_a_description_is_the_handle_of_its_store(
    tmp_path: Path, log: MemoryChangelog, settings: dict[str, str]
) -> None:
    counts = KeyValue(key=STR, value=INT64, name="counts")

    def process(record: Record, context: TaskContext) -> None:
        assert record.key is not None
        store = context.store(counts)
        store.put(record.key.decode(), (store.get(record.key.decode()) or 0) + 1)
        assert repr(store) == repr(context.store("counts"))
        with pytest.raises(ConfigError):
            context.store(KeyValue(key=STR, value=STR, name="counts"))

    feed(log, [1, 2, 1])
    stores = {"counts": StoreConfig("memory", records=counts)}
    with single(tmp_path, log, process, stores=stores, **settings) as task:
        task.run(commit=True)
        assert dict(task.store(counts).all()) == {"1": 2, "2": 1}
        assert dict(task.store(counts, IsolationLevel.READ_COMMITTED).all()) == dict(task.store("counts").all())
        with pytest.raises(ConfigError):
            task.store(KeyValue(key=STR, value=STR, name="counts"))
        with pytest.raises(ConfigError):
            task.store("missing")


def test_every_kind_of_write_is_logged_with_the_records_timestamp(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        store.put(b"a", b"1")
        store.put_all([(b"b", b"2"), (b"c", b"3"), (b"d", None)])
        assert store.put_if_absent(b"a", b"not stored") == b"1"
        assert store.put_if_absent(b"e", b"4") is None
        assert store.delete(b"b") == b"2"
        store.put(b"e", None)
        store.put(b"f", b"5")
        store.delete_range(b"a", b"c")
        context.forward("output", b"o", b"1")
        context.forward("output", b"o", b"2", 99, (("h", b"x"),))

    log.create_topic("input")
    with log.producer() as producer:
        producer.send(INPUT, b"k", b"v", 42)
        producer.flush()
    task = single(tmp_path, log, process)
    task.open()
    task.run()
    content = state(task, "s")
    task.close()
    records = list(log.read(TopicPartition("app-s-changelog", 0)))
    assert [(record.key, record.value) for record in records] == [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
        (b"d", None),
        (b"e", b"4"),
        (b"b", None),
        (b"e", None),
        (b"f", b"5"),
        (b"a", None),
        (b"c", None),
    ]
    assert {record.timestamp_ms for record in records} == {42}
    replayed = {record.key: record.value for record in records}
    assert {key: value for key, value in replayed.items() if value is not None} == content == {b"f": b"5"}
    assert list(log.read(OUTPUT)) == [Record(0, b"o", b"1", 42), Record(1, b"o", b"2", 99, (("h", b"x"),))]


def test_the_functions_store_refuses_what_is_the_tasks_own(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, ``StateStore#commit``."""
    refused = []

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        for call in (
            store.commit,
            store.rollback,
            store.close,
            lambda: store.restore([], {}),
            lambda: store.advance_position(INPUT, 1),
        ):
            with pytest.raises(StoreError):
                call()
            refused.append(call)
        with pytest.raises(ConfigError):
            context.store("nowhere")
        with pytest.raises(ChangelogError):
            context.forward("nowhere", b"k", b"v")

    feed(log, [1])
    task = single(tmp_path, log, process)
    task.open()
    task.run()
    task.close()
    assert len(refused) == 5


def test_a_function_that_commits_or_runs_its_own_task_is_refused_and_nothing_changes(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """A commit in the middle of a record would have its first write, but not its offset: it would be done twice."""
    committed: list[dict[TopicPartition, int]] = []

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        store.put(b"half", b"%d" % record.offset)
        following = record._replace(offset=record.offset + 1)
        for call in (task.commit, task.run, lambda: task.run(0), lambda: task.process(INPUT, following)):
            with pytest.raises(StoreError):
                call()
            assert (context.partition, context.record, context._active) == (INPUT, record, True)
        committed.append(dict(log.committed_offsets("app")))
        store.put(b"whole", b"%d" % record.offset)
        if record.offset == 1:
            context.commit()

    feed(log, [1, 2, 3])
    task = single(tmp_path, log, process, commit_interval_ms=NO_INTERVAL)
    task.open()
    assert task.run() == 3
    assert committed == [{}, {}, {INPUT: 2}]
    assert log.committed_offsets("app") == {INPUT: 2}
    task.commit()
    assert log.committed_offsets("app") == {INPUT: 3}
    assert state(task, "s") == {b"half": b"2", b"whole": b"2"}
    task.close()


def test_a_punctuator_that_commits_its_own_task_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    numbers: list[int] = []

    def init(context: TaskContext) -> None:
        def punctuate(timestamp_ms: int) -> None:
            with pytest.raises(StoreError):
                task.commit()
            numbers.append(timestamp_ms)

        context.schedule(10, PunctuationType.STREAM_TIME, punctuate)

    feed(log, [1])
    task = single(tmp_path, log, lambda record, context: None, init=init)
    task.open()
    task.run(commit=True)
    assert numbers
    task.close()


def test_a_task_that_its_function_closes_commits_nothing_of_the_current_record(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"k", b"%d" % record.offset)
        if record.offset == 1 and not numbers:
            numbers.append(record.offset)
            task.close()

    numbers: list[int] = []
    feed(log, [1, 2])
    task = single(tmp_path, log, process, commit_interval_ms=NO_INTERVAL)
    task.open()
    with pytest.raises(StoreError):
        task.run()
    assert log.committed_offsets("app") == {}
    task.open()
    assert task.run(commit=True) == 2
    assert state(task, "s") == {b"k": b"1"}
    task.close()


def test_a_task_that_its_function_closes_is_not_opened_by_it_either(tmp_path: Path, log: MemoryChangelog) -> None:
    """Opened in the middle of a record, the task would continue behind that record without its writes."""

    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"%d" % record.offset, b"1")
        if record.offset == 1 and not refused:
            task.close()
            for call in (task.open, task.rebuild):
                with pytest.raises(StoreError):
                    call()
                refused.append(call)

    refused: list[object] = []
    feed(log, [1, 2, 3])
    task = single(tmp_path, log, process, commit_interval_ms=NO_INTERVAL)
    task.open()
    with pytest.raises(StoreError):
        task.run()
    assert len(refused) == 2
    task.open()
    assert task.run(commit=True) == 3
    assert set(state(task, "s")) == {b"0", b"1", b"2"}
    task.close()


def test_writing_outside_the_function_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    contexts: list[TaskContext] = []
    feed(log, [1])
    task = single(tmp_path, log, lambda record, context: contexts.append(context))
    task.open()
    task.run()
    store = contexts[0].store("s")
    calls: list[Callable[[], object]] = [
        lambda: store.put(b"k", b"v"),
        lambda: store.put_all([]),
        lambda: store.delete(b"k"),
        lambda: store.put_if_absent(b"k", b"v"),
        lambda: store.delete_range(None, None),
        lambda: contexts[0].forward("output", b"k", b"v"),
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()
    task.close()
    assert list(log.read(TopicPartition("app-s-changelog", 0))) == []


def test_a_write_that_could_not_be_logged_is_never_committed_even_if_the_function_hides_the_error(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        def refuse(*_: object) -> None:
            raise ChangelogError("no space")

        monkeypatch.setattr(context._producer, "send", refuse)
        with pytest.raises(ChangelogError):
            context.store("s").put(b"k", b"v")

    feed(log, [1])
    task = single(tmp_path, log, process)
    task.open()
    with pytest.raises(ChangelogError):
        task.run()
    assert state(task, "s") == {}
    task.close()


def test_a_short_limit_of_records_does_not_starve_an_input(tmp_path: Path, log: MemoryChangelog) -> None:
    """An input that always has records must not keep the others waiting for its end."""
    other = TopicPartition("other", 0)
    feed(log, range(6))
    log.create_topic("other")
    with log.producer() as producer:
        producer.send_all(other, [(b"k", b"v", -1)] * 6)
        producer.flush()
    with single(tmp_path, log, lambda record, context: None, inputs=[INPUT, other]) as task:
        for _ in range(2):
            assert task.run(2) == 2
        assert task.input_offsets() == {INPUT: 2, other: 2}
        assert task.run() == 8
