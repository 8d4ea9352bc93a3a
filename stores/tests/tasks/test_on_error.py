"""``on_error``: a record whose function raises is left out whole, on every backend, or sent to a dead-letter topic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores import TopicPartition
from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.config import StoreConfig
from stores.errors import ChangelogError, CommitFailedError, ConfigError, StoreUnavailableError
from stores.records import INT64, JSON, STR, Session, TimestampedKeyValue, Window, Windowed
from stores.registry import backends
from stores.strategies.store import Store
from stores.tasks import DeadLetterTopic, PunctuationType, StreamTask, TaskContext
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INPUT,
    OUTPUT,
    Crash,
    changelog_of,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    raising_at,
    single,
    state,
)

DEAD = TopicPartition("dead", 0)
DEAD_LETTERS = DeadLetterTopic("dead")
TIGHT = {"staging_buffer_bytes": 2_000, "copy_part_bytes": 64}


def tight(backend: str) -> StoreConfig:
    """A configuration whose store spills after a few records."""
    known = backends()[backend].options
    return StoreConfig(backend, options={name: value for name, value in TIGHT.items() if name in known})


def logged(log: Any, store: str) -> dict[bytes, bytes]:
    """The state that the changelog of ``store`` restores."""
    kept: dict[bytes, bytes] = {}
    for record in log.read(changelog_of(store)):
        kept.pop(record.key, None)
        if record.value is not None:
            kept[record.key] = record.value
    return kept


# The exception


def test_an_exception_names_task_partition_offset_and_key(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [7, 8])
    task = counting_task(tmp_path, log, process=raising_at({1}))
    task.open()
    with pytest.raises(Crash) as caught:
        task.run()
    assert caught.value.__notes__ == ["Task 0_0 was processing offset 1 of input-0, key b'8'."]
    task.close()


def test_a_long_key_is_cut_in_the_note(tmp_path: Path, log: MemoryChangelog) -> None:
    with log.producer() as producer:
        producer.send(INPUT, b"k" * 100_000, b"")
        producer.flush()

    def process(record: Record, context: TaskContext) -> None:
        raise Crash

    task = single(tmp_path, log, process)
    task.open()
    with pytest.raises(Crash) as caught:
        task.run()
    [note] = caught.value.__notes__
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
        with pytest.raises(Crash) as caught:
            task.run()
        assert not hasattr(caught.value, "__notes__")
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


@pytest.mark.parametrize(("wrong", "error"), [(5, TypeError), ("", ValueError)])
def test_a_dead_letter_topic_has_a_name(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        DeadLetterTopic(wrong)


def test_a_task_without_its_dead_letter_topic_does_not_open(tmp_path: Path, log: MemoryChangelog) -> None:
    task = counting_task(tmp_path, log, on_error=DEAD_LETTERS)
    with pytest.raises(ChangelogError):
        task.open()
    log.create_topic("dead")
    task.open()
    task.close()


# The undo


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("backend", sorted(backends()))
def test_a_skipped_record_leaves_nothing_in_stores_changelogs_and_outputs(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: Any
) -> None:
    keys = [number % 3 for number in range(30)]
    poisoned = {0, 4, 5, 13, 29}
    kept = [key for offset, key in enumerate(keys) if offset not in poisoned]
    feed(log, keys)
    stores = {"left": tight(backend), "right": tight(backend)}
    task = counting_task(
        tmp_path,
        log,
        stores=stores,
        process=raising_at(poisoned),
        on_error="skip",
        guarantee=guarantee,
        commit_every_records=7,
    )
    task.open()
    assert task.run() == 30
    task.commit()
    assert task.input_offsets() == {INPUT: 30}
    for name in ("left", "right"):
        assert state(task, name) == expected_state(kept) == logged(log, name)
    assert outputs(log) == expected_outputs(kept)
    assert (task.metrics.skipped_total, task.metrics.dead_letter_total, task.metrics.process_total) == (5, 0, 30)
    assert task.metrics.rollback_total == 0
    task.close()


@pytest.mark.parametrize("coalescing", [True, False])
@pytest.mark.parametrize("backend", sorted(backends()))
def test_every_kind_of_write_of_a_failed_record_is_undone(
    tmp_path: Path, log: MemoryChangelog, backend: str, coalescing: bool
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
            task = single(tmp_path / folder, own, process, stores=stores, on_error=on_error, commit_every_records=11)
            task.open()
            task.run(commit=True)
            found = state(task, "s")
            task.close()
            return found, logged(own, "s"), outputs(own)

    poisoned = set(Random(seed).sample(range(120), 40))
    found = work(poisoned, "skipping", "skip")
    assert found == work(poisoned, "without", "raise")
    assert found[0] == found[1]


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
def test_the_stream_time_of_a_typed_store_is_undone_with_the_record(
    tmp_path: Path,
    log: MemoryChangelog,
    backend: str,
    kind: Any,
    put: Callable[[Any, str, int], None],
    read: Callable[[Any], object],
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
            task = single(tmp_path / folder, own, process, stores=stores, on_error="skip")
            task.open()
            task.run(commit=True)
            found = read(task.store("s"))
            assert task.store("s") is not None
            assert task.metrics.stores["s"].late_total == 0
            task.close()
            return found

    found = kept([10, 21, 1_000_000, 30, 1_000_001, 41], "poisoned")
    assert found == kept([10, 21, 30, 41], "clean")
    assert found


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


def test_a_refused_write_or_output_is_an_error_of_the_record(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"k", b"%d" % record.offset)
        calls: list[Callable[[], object]] = [
            lambda: None,
            lambda: context.store("s").put(b"", b"v"),
            lambda: context.store("s").put_all([(b"a", b"1"), ("b", b"2")]),
            lambda: context.forward("output", "text", b""),  # type: ignore[arg-type]
            lambda: context.forward("output", b"k", b"v", headers=(("h", "text"),)),  # type: ignore[arg-type]
            lambda: context.forward("output", b"k", b"v", -5),
        ]
        calls[record.offset]()

    feed(log, range(6))
    task = single(tmp_path, log, process, on_error="skip")
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
def test_errors_of_the_library_and_interrupts_are_raised_and_roll_back(
    tmp_path: Path, log: MemoryChangelog, error: BaseException, on_error: Any
) -> None:
    log.create_topic("dead")

    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"k", b"%d" % record.offset)
        if failing and record.offset == 1:
            raise failing.pop()

    failing = [error]
    feed(log, range(3))
    task = single(tmp_path, log, process, on_error=on_error)
    task.open()
    with pytest.raises(type(error)):
        task.run()
    assert task.input_offsets() == {INPUT: 0}
    assert state(task, "s") == {}
    assert task.run(commit=True) == 3
    assert (task.metrics.skipped_total, list(log.read(DEAD))) == (0, [])
    assert state(task, "s") == {b"k": b"2"}
    task.close()


def test_a_failed_write_is_raised_even_if_the_function_raises_its_own_error(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
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
    task = single(tmp_path, log, process, on_error="skip")
    task.open()
    with pytest.raises(Crash):
        task.run()
    assert task.input_offsets() == {INPUT: 0}
    task.close()


def test_a_record_that_cannot_be_undone_rolls_back_the_transaction(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Store, pairs: object) -> None:
        raise CommitFailedError("the disk is full")

    feed(log, range(3))
    task = single(tmp_path, log, raising_at({2}, put_key), on_error="skip")
    task.open()
    monkeypatch.setattr(Store, "put_all", refuse)
    with pytest.raises(CommitFailedError) as caught:
        task.run()
    assert isinstance(caught.value.__context__, Crash)
    assert task.input_offsets() == {INPUT: 0}
    assert state(task, "s") == {}
    monkeypatch.undo()
    assert task.run(commit=True) == 3
    task.close()


def put_key(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store("s").put(record.key, b"%d" % record.offset)


def test_a_function_that_closes_its_task_and_raises_is_not_skipped(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        task.close()
        raise Crash

    feed(log, [1])
    task = single(tmp_path, log, process, on_error="skip")
    task.open()
    with pytest.raises(Crash):
        task.run()
    assert log.committed_offsets("app") == {}


# The dead-letter topic


def test_a_dead_letter_has_the_record_and_the_error_in_headers(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-1034."""
    log.create_topic("dead")
    with log.producer() as producer:
        producer.send(INPUT, b"k", b"v", 42, (("own", b"1"),))
        producer.flush()

    def process(record: Record, context: TaskContext) -> None:
        context.forward("output", b"k", b"never")
        raise ValueError("no number: \udcff")

    task = single(tmp_path, log, process, on_error=DEAD_LETTERS)
    task.open()
    task.run()
    assert list(log.read(DEAD)) == []  # not before the commit
    task.commit()
    task.close()
    [letter] = log.read(DEAD)
    headers = dict(letter.headers)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", b"v", 42)
    assert letter.headers[0] == ("own", b"1")
    stacktrace = headers.pop("__streams.errors.stacktrace").decode()
    assert headers == {
        "own": b"1",
        "__streams.errors.exception": b"ValueError",
        "__streams.errors.message": b"no number: ?",
        "__streams.errors.topic": b"input",
        "__streams.errors.partition": b"0",
        "__streams.errors.offset": b"0",
    }
    assert "never" in stacktrace or "process" in stacktrace
    assert outputs(log) == []
    assert (task.metrics.skipped_total, task.metrics.dead_letter_total) == (1, 1)


def test_a_long_stack_trace_in_a_dead_letter_keeps_its_end_with_the_error(tmp_path: Path, log: MemoryChangelog) -> None:
    """The frames of the caller are cut, not the place and the text of the error."""

    def down(left: int) -> None:
        if not left:
            raise ValueError("the innermost error")
        further(left - 1)

    def further(left: int) -> None:  # Two functions by turns: Python shortens a line that repeats.
        down(left)

    def process(record: Record, context: TaskContext) -> None:
        down(150)

    feed(log, [1])
    log.create_topic("dead")
    task = single(tmp_path, log, process, on_error=DEAD_LETTERS)
    task.open()
    task.run(commit=True)
    task.close()
    [letter] = log.read(DEAD)
    stacktrace = dict(letter.headers)["__streams.errors.stacktrace"].decode()
    assert len(stacktrace) == 16_384
    assert "the innermost error" in stacktrace[-300:]
    assert "Traceback" not in stacktrace


def test_a_commit_that_a_skipped_record_requested_is_not_made(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [7, 8])

    def process(record: Record, context: TaskContext) -> None:
        context.commit()
        if record.offset == 1:
            raise Crash

    task = single(tmp_path, log, process, on_error="skip")
    task.open()
    task.run()
    assert (task.metrics.commit_total, task.metrics.skipped_total) == (1, 1)
    task.close()


class Mute(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_becomes_a_dead_letter_too(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("dead")
    feed(log, [7, 8])

    def process(record: Record, context: TaskContext) -> None:
        if record.offset == 0:
            raise Mute
        if record.offset == 1:
            raise ValueError("b" + "x" * 100_000)

    task = single(tmp_path, log, process, on_error=DEAD_LETTERS)
    task.open()
    task.run()
    task.commit()
    task.close()
    mute, long = (dict(letter.headers)["__streams.errors.message"] for letter in log.read(DEAD))
    assert b"RuntimeError" in mute
    assert long[:2] == b"bx"
    assert len(long) < 20_000


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
    [told] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "secret" not in told
    assert all(part in told for part in ("0_0", "offset 0", "input-0", "ValueError"))
    task.close()


# Crashes

KEYS = [number % 4 for number in range(12)]
POISONED = {1, 7, 8}


def dead_letter_task(folder: Path, log: SqliteChangelog, backend: str) -> StreamTask:
    return counting_task(
        folder, log, backend, process=raising_at(POISONED), on_error=DEAD_LETTERS, commit_every_records=3
    )


def work_on(folder: Path) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        task = dead_letter_task(folder, log, (folder / "backend").read_text())
        task.open()
        task.run()
        task.close()


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "rocksdb-direct", "lmdb-native", "sqlite-indexed-batch"])
@pytest.mark.parametrize(
    ("failpoint", "in_log"),
    [
        ("task.before_log_commit", False),
        ("changelog.before_commit", False),
        ("changelog.after_commit", True),
        ("task.after_log_commit", True),
        ("task.between_stores", True),
        ("task.after_store_commit", True),
    ],
)
def test_a_kill_around_a_dead_letter_loses_and_repeats_nothing(
    tmp_path: Path, backend: str, failpoint: str, in_log: bool
) -> None:
    """The third commit has offsets 6 to 8, of which 7 and 8 are dead letters: all of it is there, or nothing."""
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, KEYS)
        log.create_topic("dead")
    (tmp_path / "backend").write_text(backend)
    assert call_until_killed(work_on, tmp_path, failpoint, 3)

    def letters(log: SqliteChangelog) -> list[bytes]:
        return [dict(record.headers)["__streams.errors.offset"] for record in log.read(DEAD)]

    done = 9 if in_log else 6
    kept = [key for offset, key in enumerate(KEYS) if offset not in POISONED]
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        task = dead_letter_task(tmp_path, log, backend)
        task.open()
        assert task.input_offsets() == {INPUT: done}
        assert letters(log) == ([b"1", b"7", b"8"] if in_log else [b"1"])
        reached = expected_state(key for offset, key in enumerate(KEYS[:done]) if offset not in POISONED)
        assert state(task, "left") == state(task, "right") == reached
        task.run()
        task.close()
        assert letters(log) == [b"1", b"7", b"8"]
        assert outputs(log) == expected_outputs(kept)
        assert logged(log, "left") == logged(log, "right") == expected_state(kept)
        assert [record.offset for record in log.read(OUTPUT)] == sorted(record.offset for record in log.read(OUTPUT))
