"""``on_error``: a record whose function raises is left out whole, on every backend, or sent to a dead-letter topic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import ChangelogError, CommitFailedError, ConfigError, StoreUnavailableError
from stores.records import INT64, JSON, STR, Session, TimestampedKeyValue, Versioned, Window, Windowed
from stores.registry import backends
from stores.strategies.store import Store
from stores.tasks import DeadLetterTopic, PunctuationType, TaskContext
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DEAD,
    DEAD_LETTERS,
    EXACTLY_ONCE,
    INPUT,
    Crash,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    logged,
    outputs,
    over_both_forms,
    raising_at,
    single,
    state,
)

TIGHT = {"staging_buffer_bytes": 2_000, "copy_part_bytes": 64}


def tight(backend: str) -> StoreConfig:
    """A configuration whose store spills after a few records."""
    option_names = backends()[backend].options
    return StoreConfig(backend, options={name: value for name, value in TIGHT.items() if name in option_names})


# The exception


def test_an_exception_names_task_partition_offset_and_key(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [7, 8])
    task = counting_task(tmp_path, log, process=raising_at({1}))
    task.open()
    with pytest.raises(Crash) as error:
        task.run()
    assert error.value.__notes__ == ["Task 0_0 was processing offset 1 of input-0, key b'8'."]
    task.close()


def test_a_long_key_is_cut_in_the_note(tmp_path: Path, log: MemoryChangelog) -> None:
    with log.producer() as producer:
        producer.send(INPUT, b"k" * 100_000, b"")
        producer.flush()

    def process(record: Record, context: TaskContext) -> None:
        raise Crash

    task = single(tmp_path, log, process)
    task.open()
    with pytest.raises(Crash) as error:
        task.run()
    [note] = error.value.__notes__
    assert len(note) < 250
    assert "100,000 bytes" in note
    task.close()


def test_an_exception_of_a_punctuator_names_no_record(tmp_path: Path, log: MemoryChangelog) -> None:
    def init(context: TaskContext) -> None:
        def punctuate(timestamp_ms: int) -> None:
            raise Crash

        context.schedule(1, PunctuationType.STREAM_TIME, punctuate)

    feed(log, [1])
    for on_error in ("raise", "skip", DEAD_LETTERS):
        log.create_topic("dead")
        task = single(tmp_path, log, lambda record, context: None, init=init, on_error=on_error)
        task.open()
        with pytest.raises(Crash) as error:
            task.run()
        assert not hasattr(error.value, "__notes__")
        assert task.input_offsets() == {INPUT: 0}
        assert task.metrics.skipped_total == 0
        task.close()


# The setting


@pytest.mark.parametrize(
    ("wrong", "error"),
    [("ignore", ConfigError), (None, TypeError), (DeadLetterTopic, TypeError), (DeadLetterTopic("input"), ConfigError)],
)
def test_a_wrong_on_error_is_refused_when_the_task_is_made(
    tmp_path: Path, log: MemoryChangelog, wrong: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        counting_task(tmp_path, log, on_error=wrong)


def test_on_error_may_be_given_as_text_in_any_case(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1])

    def fail(record: Record, context: TaskContext) -> None:
        raise Crash

    with single(tmp_path, log, fail, on_error="SKIP") as task:
        assert task.run() == 1
        assert task.metrics.skipped_total == 1


# The undo


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("backend", sorted(backends()))
@over_both_forms
def test_a_skipped_record_leaves_nothing_in_stores_changelogs_and_outputs(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: Any, batches: bool
) -> None:
    keys = [number % 3 for number in range(30)]
    poisoned = {0, 4, 5, 13, 29}
    good_keys = [key for offset, key in enumerate(keys) if offset not in poisoned]
    feed(log, keys)
    stores = {"left": tight(backend), "right": tight(backend)}
    task = counting_task(
        tmp_path,
        log,
        stores=stores,
        process=raising_at(poisoned),
        on_error="skip",
        guarantee=guarantee,
        batches=batches,
        commit_every_records=7,
    )
    task.open()
    assert task.run() == 30
    task.commit()
    assert task.input_offsets() == {INPUT: 30}
    for name in ("left", "right"):
        assert state(task, name) == expected_state(good_keys) == logged(log, name)
    assert outputs(log) == expected_outputs(good_keys)
    assert (task.metrics.skipped_total, task.metrics.dead_letter_total, task.metrics.process_total) == (5, 0, 30)
    assert task.metrics.rollback_total == 0
    task.close()


@pytest.mark.parametrize(("coalescing", "batches"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("backend", sorted(backends()))
def test_every_kind_of_write_of_a_failed_record_is_undone(
    tmp_path: Path, log: MemoryChangelog, backend: str, coalescing: bool, batches: bool
) -> None:
    """Against a task that is not given the poisoned records at all: the same state, changelog and outputs."""
    seed = 20_261
    print("seed", seed)

    def work(poisoned: set[int], folder: str, on_error: str) -> tuple[dict[bytes, bytes], dict[bytes, bytes], Any]:
        def process(record: Record, context: TaskContext) -> None:
            draw, store = Random(seed + record.offset), context.store("s")
            if record.offset in poisoned and on_error == "raise":
                return
            for _ in range(draw.randint(1, 6)):
                key, value = b"%02d" % draw.randrange(30), draw.randbytes(draw.randrange(300))
                way = draw.randrange(7)
                if way <= 1:
                    store.put(key, value)
                elif way == 2:
                    store.put(key, None)
                elif way == 3:
                    store.put_all([(key, value), (b"x" + key, value), (key, b"last")])
                elif way == 4:
                    store.put_if_absent(key, value)
                elif way == 5:
                    store.delete(key)
                else:
                    store.delete_range(key, b"%02d" % (int(key) + 5))
            context.forward("output", b"%d" % record.offset, b"")
            if record.offset in poisoned:
                context.commit()
                raise Crash

        with MemoryChangelog() as own:
            feed(own, range(120))
            config = tight(backend)
            stores = {"s": StoreConfig(backend, options=config.options, changelog_coalescing=coalescing)}
            settings: dict[str, Any] = {
                "stores": stores,
                "on_error": on_error,
                "batches": batches and on_error == "skip",
            }
            task = single(tmp_path / folder, own, process, **settings, commit_every_records=11)
            task.open()
            task.run(commit=True)
            content = state(task, "s")
            task.close()
            return content, logged(own, "s"), outputs(own)

    poisoned = set(Random(seed).sample(range(120), 40))
    content = work(poisoned, "skipping", "skip")
    assert content == work(poisoned, "without", "raise")
    assert content[0] == content[1]


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "lmdb-native", "rocksdb-direct"])
@pytest.mark.parametrize(
    ("kind", "put", "read"),
    [
        (
            TimestampedKeyValue(key=STR, value=JSON, ttl_ms=1_000),
            lambda store, key, time: store.put(key, time, time),
            lambda view: dict(view.all()),
        ),
        (
            Versioned(key=STR, value=INT64, history_retention_ms=1_000),
            lambda store, key, time: store.put(key, time, time),
            lambda view: {key: list(view.get_versions(key)) for key in ("a", "b")},
        ),
        (
            Window(key=STR, value=INT64, size_ms=10, retention_ms=1_000),
            lambda store, key, time: store.put(key, time, time),
            lambda view: dict(view.all()),
        ),
        (
            Session(key=STR, value=INT64, retention_ms=1_000),
            lambda store, key, time: store.put(Windowed(key, time, time), time),
            lambda view: {key: list(view.fetch(key)) for key in ("a", "b")},
        ),
    ],
)
@over_both_forms
def test_the_stream_time_of_a_typed_store_is_undone_with_the_record(
    tmp_path: Path,
    log: MemoryChangelog,
    backend: str,
    kind: Any,
    put: Callable[[Any, str, int], None],
    read: Callable[[Any], object],
    batches: bool,
) -> None:
    """If it stayed, the records after a poisoned one of the far future would have expired."""

    def process(record: Record, context: TaskContext) -> None:
        assert record.key is not None
        put(context.store("s"), record.key.decode(), record.timestamp_ms)
        if record.timestamp_ms >= 1_000_000:
            raise Crash

    def kept(times: list[int], folder: str) -> object:
        with MemoryChangelog() as own:
            own.create_topic("input")
            with own.producer() as producer:
                for time in times:
                    producer.send(INPUT, b"ab"[time % 2 : time % 2 + 1], b"", time)
                producer.flush()
            stores = {"s": StoreConfig(backend, records=kind)}
            task = single(tmp_path / folder, own, process, stores=stores, on_error="skip", batches=batches)
            task.open()
            task.run(commit=True)
            contents = read(task.store("s"))
            assert task.store("s") is not None
            assert task.metrics.stores["s"].late_total == 0
            task.close()
            return contents

    contents = kept([10, 21, 1_000_000, 30, 1_000_001, 41], "poisoned")
    assert contents == kept([10, 21, 30, 41], "clean")
    assert contents


def test_a_record_that_raises_keeps_the_reads_of_later_records_right(tmp_path: Path, log: MemoryChangelog) -> None:
    """The first write of a key counts: a record that writes it twice returns to the value before both."""
    seen: list[bytes | None] = []

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        seen.append(store.get(b"k"))
        store.put(b"k", b"%d" % record.offset)
        store.put(b"k", b"again")
        store.delete_range(b"a", b"z")
        store.put(b"k", b"%d!" % record.offset)
        if record.offset % 2:
            raise Crash

    feed(log, range(4))
    task = single(tmp_path, log, process, on_error="skip")
    task.open()
    task.run()
    assert seen == [None, b"0!", b"0!", b"2!"]
    assert state(task, "s") == {b"k": b"2!"}
    task.close()


@over_both_forms
def test_a_refused_write_or_output_is_an_error_of_the_record(
    tmp_path: Path, log: MemoryChangelog, batches: bool
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"k", b"%d" % record.offset)
        calls: list[Callable[[], object]] = [
            lambda: None,
            lambda: context.store("s").put(b"", b"v"),
            lambda: context.store("s").put_all([(b"a", b"1"), ("b", b"2")]),
            lambda: context.forward("output", "text", b""),  # type: ignore[call-overload]
            lambda: context.forward("output", b"k", b"v", headers=(("h", "text"),)),  # type: ignore[arg-type]
            lambda: context.forward("output", b"k", b"v", -5),
        ]
        calls[record.offset]()

    feed(log, range(6))
    task = single(tmp_path, log, process, on_error="skip", batches=batches)
    task.open()
    assert task.run(commit=True) == 6
    assert task.metrics.skipped_total == 5
    assert state(task, "s") == {b"k": b"0"}
    assert outputs(log) == []
    task.close()


# What is always raised


@pytest.mark.parametrize("on_error", ["skip", DEAD_LETTERS])
@pytest.mark.parametrize(
    "error", [StoreUnavailableError("the disk"), ChangelogError("no topic"), KeyboardInterrupt(), SystemExit(3)]
)
@over_both_forms
def test_errors_of_the_library_and_interrupts_are_raised_and_roll_back(
    tmp_path: Path, log: MemoryChangelog, error: BaseException, on_error: Any, batches: bool
) -> None:
    log.create_topic("dead")

    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"k", b"%d" % record.offset)
        if failing and record.offset == 1:
            raise failing.pop()

    failing = [error]
    feed(log, range(3))
    task = single(tmp_path, log, process, on_error=on_error, batches=batches)
    task.open()
    with pytest.raises(type(error)):
        task.run()
    assert task.input_offsets() == {INPUT: 0}
    assert state(task, "s") == {}
    assert task.run(commit=True) == 3
    assert (task.metrics.skipped_total, list(log.read(DEAD))) == (0, [])
    assert state(task, "s") == {b"k": b"2"}
    task.close()


@over_both_forms
def test_a_failed_write_is_raised_even_if_the_function_raises_its_own_error(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    real = Store.put

    def failing(self: Store, key: bytes, value: bytes | None) -> None:
        if key == b"fails":
            raise CommitFailedError("the disk is full")
        real(self, key, value)

    def process(record: Record, context: TaskContext) -> None:
        try:
            context.store("s").put(b"fails", b"")
        except CommitFailedError:
            raise Crash from None

    monkeypatch.setattr(Store, "put", failing)
    feed(log, [1])
    task = single(tmp_path, log, process, on_error="skip", batches=batches)
    task.open()
    with pytest.raises(Crash):
        task.run()
    assert task.input_offsets() == {INPUT: 0}
    task.close()


@over_both_forms
def test_a_record_that_cannot_be_undone_rolls_back_the_transaction(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    def refuse(self: Store, pairs: object) -> None:
        raise CommitFailedError("the disk is full")

    feed(log, range(3))
    task = single(tmp_path, log, raising_at({2}, put_key), on_error="skip", batches=batches)
    task.open()
    monkeypatch.setattr(Store, "put_all", refuse)
    with pytest.raises(CommitFailedError) as error:
        task.run()
    assert isinstance(error.value.__context__, Crash)
    assert task.input_offsets() == {INPUT: 0}
    assert state(task, "s") == {}
    monkeypatch.undo()
    assert task.run(commit=True) == 3
    task.close()


def put_key(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store("s").put(record.key, b"%d" % record.offset)


@over_both_forms
def test_a_function_that_closes_its_task_and_raises_is_not_skipped(
    tmp_path: Path, log: MemoryChangelog, batches: bool
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        task.close()
        raise Crash

    feed(log, [1])
    task = single(tmp_path, log, process, on_error="skip", batches=batches)
    task.open()
    with pytest.raises(Crash):
        task.run()
    assert log.committed_offsets("app") == {}


# The commit, and the message


@over_both_forms
def test_a_commit_that_a_skipped_record_requested_is_not_made(
    tmp_path: Path, log: MemoryChangelog, batches: bool
) -> None:
    feed(log, [7, 8])

    def process(record: Record, context: TaskContext) -> None:
        context.commit()
        if record.offset == 1:
            raise Crash

    task = single(tmp_path, log, process, on_error="skip", batches=batches)
    task.open()
    task.run()
    assert (task.metrics.commit_total, task.metrics.skipped_total) == (1, 1)
    task.close()


def test_a_skipped_record_is_logged_without_its_contents(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        raise ValueError("the secret")

    feed(log, [1])
    task = single(tmp_path, log, process, on_error="skip")
    task.open()
    with caplog.at_level(logging.WARNING, "stores"):
        task.run()
    [message] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "secret" not in message
    assert all(part in message for part in ("0_0", "offset 0", "input-0", "ValueError"))
    task.close()
