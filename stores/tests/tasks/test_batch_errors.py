"""Batches that fail are halved, and batches leave what single records do."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import DeserializationError
from stores.records import INT64, STR, KeyValue, Session, TimestampedKeyValue, ValueAndTimestamp, Window, Windowed
from stores.tasks import Batch, PunctuationType, TaskContext
from stores.tests.tasks.setup import (
    DEAD,
    DEAD_LETTERS,
    INPUT,
    MEMORY,
    OUTPUT,
    WORDS,
    Crash,
    batch_task,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    header_of,
    logging_all,
    outputs,
    over_each_changelog,
    send,
    state,
)

# Errors


def test_an_exception_names_task_partition_and_the_offsets_of_the_batch(tmp_path: Path, log: MemoryChangelog) -> None:
    def process_batch(batch: Batch, context: TaskContext) -> None:
        if 5 in batch.offsets:
            raise Crash

    feed(log, range(9))
    task = batch_task(tmp_path, log, process_batch)
    task.open()
    with pytest.raises(Crash) as error:
        task.run()
    assert error.value.__notes__ == ["Task 0_0 was processing offsets 1 to 8 of input-0, a batch of 8 records."]
    assert task.input_offsets() == {INPUT: 0}
    task.close()


@over_each_changelog
@pytest.mark.parametrize("poisoned", [{3}, {0, 1, 2}, {8, 30, 31, 63}, set(range(20, 50)), set(range(70))])
def test_a_failing_batch_is_halved_until_its_poisoned_records_stand_alone(
    tmp_path: Path, log: Changelog, poisoned: set[int]
) -> None:
    log.create_topic("dead")
    notes: list[str] = []
    attempts: list[int] = []

    def process_batch(batch: Batch, context: TaskContext) -> None:
        attempts.append(len(batch))
        store = context.store("s")
        for record in batch:
            assert record.key is not None
            number = int(store.get(record.key) or b"0") + 1
            store.put(record.key, b"%d" % number)
            context.forward_many("output", [record.key], [b"%d" % number])
            if record.offset in poisoned:
                context.commit()
                raise Crash

    keys = [number % 3 for number in range(70)]
    feed(log, keys)
    task = batch_task(tmp_path, log, process_batch, on_error=DEAD_LETTERS)
    task.open()
    assert task.run(commit=True) == 70
    letters = list(log.read(DEAD))
    notes = [header_of(letter, "__streams.errors.stacktrace").decode() for letter in letters]
    good_keys = [key for offset, key in enumerate(keys) if offset not in poisoned]
    assert [int(header_of(letter, "__streams.errors.offset")) for letter in letters] == sorted(poisoned)
    for offset, note in zip(sorted(poisoned), notes, strict=True):
        assert f"offset {offset} of input-0, key b'{keys[offset]}'" in note
    assert outputs(log) == expected_outputs(good_keys)
    assert state(task, "s") == expected_state(good_keys)
    metrics = task.metrics
    assert (metrics.skipped_total, metrics.dead_letter_total, metrics.process_total) == (len(poisoned),) * 2 + (70,)
    assert (metrics.commit_total, metrics.rollback_total) == (1, 0)
    # At most two calls for each level of halving and poisoned record, besides the batches themselves.
    assert len(attempts) <= 4 + 2 * 6 * len(poisoned)
    task.close()


@pytest.mark.parametrize("part", [slice(None), slice(1, None)])
@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("settings", [{}, {"on_error": "skip", "on_deserialization_error": "raise"}])
def test_a_batch_with_an_unreadable_record_is_not_committed(
    tmp_path: Path, log: MemoryChangelog, settings: dict[str, str], catches: bool, part: slice
) -> None:
    def process_batch(batch: Batch[str, int], context: TaskContext) -> None:
        context.store("s").put(b"k", b"v")
        try:
            print((batch if len(batch) == 1 else batch[part]).values)
        except DeserializationError:
            if not catches:
                raise

    send(log, [(b"a", INT64.serialize(1), 1), (b"a", INT64.serialize(2), 2), (b"b", b"short", 3)])
    task = batch_task(tmp_path, log, process_batch, inputs=[WORDS], **settings)
    task.open()
    with pytest.raises(DeserializationError) as error:
        task.run()
    assert "offset 2" in str(error.value)
    assert any("offsets 1 to 2 of input-0" in note for note in error.value.__notes__)
    assert (task.input_offsets(), state(task, "s"), task.metrics.skipped_total) == ({INPUT: 0}, {}, 0)
    task.close(clean=False)


def test_late_records_of_an_attempt_that_is_undone_are_neither_counted_nor_told(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture
) -> None:
    """The function sees them at once. Metrics, which may be read meanwhile, never fall."""
    seen: list[tuple[int, int]] = []

    def process_batch(batch: Batch[str, int], context: TaskContext) -> None:
        visits = context.store(VISITS)
        before = visits.late_total
        for time_ms in batch.timestamps_ms:
            visits.put(Windowed("k", time_ms, time_ms), 1)
        seen.append((visits.late_total - before, task.metrics.stores["visits"].late_total))
        if 5 in batch.offsets:
            raise Crash

    send(log, [(b"a", INT64.serialize(1), time_ms) for time_ms in (1_000, 1, 1_001, 2, 1_002, 3, 4, 1_003, 5)])
    settings = {"stores": [VISITS], "inputs": [WORDS], "on_error": "skip"}
    with caplog.at_level("WARNING", "stores.records"), batch_task(tmp_path, log, process_batch, **settings) as task:
        assert task.run(commit=True) == 9
        assert task.metrics.stores["visits"].late_total == 4
    # One, all others, their halves, and so on: offset 5 fails.
    assert seen == [(0, 0), (5, 0), (2, 0), (3, 2), (2, 2), (1, 2), (1, 2), (1, 3)]
    assert [record.name for record in caplog.records if record.name.startswith("stores.records")] == [
        "stores.records.segment_writes"
    ]


def test_a_half_is_not_blamed_for_a_record_that_the_whole_batch_could_not_read(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    sizes: list[int] = []

    def process_batch(batch: Batch[str, int], context: TaskContext) -> None:
        sizes.append(len(batch))
        with suppress(DeserializationError):
            batch[:].values  # noqa: B018
        if len(batch) > 2:
            raise ValueError

    send(log, [(b"a", INT64.serialize(1), 1), *((b"a", INT64.serialize(2), 2),) * 3, (b"b", b"short", 3)])
    choices = {"on_error": "skip", "on_deserialization_error": "raise"}
    with batch_task(tmp_path, log, process_batch, inputs=[WORDS], **choices) as task:
        with pytest.raises(DeserializationError):
            task.run()
        assert sizes == [1, 4, 2, 2]


def test_unreadable_records_of_a_batch_are_left_out_and_the_function_gets_the_others(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    log.create_topic("dead")
    unreadable = {2, 5, 6, 9, 10}
    seen: list[list[int]] = []

    def process_batch(batch: Batch[str, int], context: TaskContext) -> None:
        assert len(batch) == len(batch.keys) == len(batch.values) == len(list(batch))
        seen.append(list(batch.offsets))
        if 7 in batch.offsets:
            raise Crash

    values = [b"short" if offset in unreadable else INT64.serialize(offset) for offset in range(11)]
    send(log, [(b"\xff" if offset == 5 else b"a", value, 1) for offset, value in enumerate(values)])
    settings = {"inputs": [WORDS], "on_error": "skip", "on_deserialization_error": DEAD_LETTERS}
    with batch_task(tmp_path, log, process_batch, **settings) as task:
        assert task.run(commit=True) == 11
        assert (task.metrics.skipped_total, task.metrics.dead_letter_total) == (6, 5)
    letters = list(log.read(DEAD))
    assert [int(header_of(letter, "__streams.errors.offset")) for letter in letters] == sorted(unreadable)
    assert letters[0][1:3] == (b"a", b"short")
    assert [offsets for offsets in seen if 7 not in offsets] == [[0], [1, 3], [4], [8]]


# The same as record by record

PLAIN = KeyValue(key=STR, value=INT64, name="plain")
TIMED = TimestampedKeyValue(key=STR, value=INT64, name="timed")
VISITS = Session(key=STR, value=INT64, retention_ms=400, name="visits")


def emit(window: Windowed[str], value: int, context: TaskContext) -> None:
    context.forward("output", f"closed {window.key} {window.start_ms}".encode(), b"%d" % value)


def emit_expired(key: str, value: ValueAndTimestamp[int], context: TaskContext) -> None:
    context.forward("output", f"closed {key} {value.timestamp_ms}".encode(), b"%d" % value.value)


EXPIRING = TimestampedKeyValue(key=STR, value=INT64, ttl_ms=150, on_expiry=emit_expired, name="expiring")
CLOSING = Window(key=STR, value=INT64, size_ms=50, retention_ms=300, grace_ms=20, on_close=emit, name="closing")


def update(key: str, value: int, time_ms: int, context: TaskContext) -> None:
    """Write one record to every kind of store."""
    total = context.store(PLAIN).update(key, lambda number: number + value, 0)
    context.store(TIMED).put(key, value, time_ms)
    if value % 5:
        context.store(EXPIRING).put(key, value, time_ms)
    else:
        context.store(EXPIRING).delete(key)
    start_ms = time_ms // 50 * 50
    closing = context.store(CLOSING)
    before = closing.fetch_one(key, start_ms) or 0
    closing.put(key, before + 1, start_ms, time_ms)
    context.store(VISITS).put(Windowed(key, time_ms, time_ms), value)
    if value < 0:
        raise Crash
    context.forward("output", key.encode(), b"%d" % total, time_ms)


def by_record(record: Record[str, int], context: TaskContext) -> None:
    assert record.key is not None
    assert record.value is not None
    update(record.key, record.value, record.timestamp_ms, context)


def by_batch(batch: Batch[str, int], context: TaskContext) -> None:
    for key, value, time_ms in zip(batch.keys, batch.values, batch.timestamps_ms, strict=True):
        assert key is not None
        assert value is not None
        update(key, value, time_ms, context)


@pytest.mark.parametrize("on_error", [DEAD_LETTERS, "raise"])
@pytest.mark.parametrize("seed", range(6))
def test_batches_leave_what_single_records_do(tmp_path: Path, seed: int, on_error: Any) -> None:
    """Random records, late and unreadable ones and such whose function fails, in batches of random sizes."""
    draw = Random(seed)
    failing = 0 if on_error == "raise" else draw.choice([0.02, 0.2])
    records: list[tuple[bytes, bytes, int]] = []
    for number in range(250):
        value = -1 if draw.random() < failing else draw.randrange(100)
        data = b"short" if draw.random() < failing / 4 else INT64.serialize(value)
        time_ms = number * 5 + draw.choice([0, 0, 0, 7, -60, -500, 100])
        records.append((b"%d" % draw.randrange(8), data, max(0, time_ms)))
    settings: dict[str, Any] = {
        "batch_max_records": draw.choice([2, 7, 1_000]),
        "commit_every_records": draw.choice([9, 60, None]),
    }
    punctuates = draw.random() < 0.7

    def init(context: TaskContext) -> None:
        def report(time_ms: int) -> None:
            total = sum(value for _, value in context.store(PLAIN).all())
            context.forward("output", b"report", b"%d %d" % (time_ms, total))

        if punctuates:
            context.schedule(130, PunctuationType.STREAM_TIME, report)

    def work(folder: str, functions: dict[str, Any]) -> tuple[Any, ...]:
        with MemoryChangelog() as own:
            feed(own, [])
            own.create_topic("dead")
            send(own, records)
            stores = {
                each.name: StoreConfig(MEMORY, records=each) for each in (PLAIN, TIMED, EXPIRING, CLOSING, VISITS)
            }
            task = counting_task(
                tmp_path / folder,
                own,
                stores=stores,
                inputs=[WORDS],
                init=init,
                on_error=on_error,
                **settings,
                **functions,
            )
            with task:
                task.run(commit=True)
                contents = [
                    list(task.store(PLAIN).all()),
                    list(task.store(TIMED).all()),
                    list(task.store(EXPIRING).all()),
                    list(task.store(CLOSING).all()),
                    [list(task.store(VISITS).fetch(str(key))) for key in range(8)],
                ]
                metrics = task.metrics
            letters = Counter((letter.key, letter.value, letter.timestamp_ms) for letter in own.read(DEAD))
            late = [metrics.stores[str(name)].late_total for name in stores]
            counts = metrics.skipped_total, metrics.dead_letter_total, metrics.process_total, metrics.punctuate_total
            sent = [(record.key, record.value, record.timestamp_ms) for record in own.read(OUTPUT)]
            return contents, letters, late, counts, sent

    of_records, of_batches = work("records", {"process": by_record}), work("batches", {"process_batch": by_batch})
    *same, sent_by_record = of_records
    *same_of_batches, sent_by_batch = of_batches
    assert same == same_of_batches
    # What closes is sent after the batch. All else keeps its order.
    assert Counter(sent_by_record) == Counter(sent_by_batch)
    assert _unclosed(sent_by_record) == _unclosed(sent_by_batch)


def _unclosed(sent: list[tuple[bytes | None, Any, int]]) -> list[Any]:
    return [record for record in sent if record[0] is not None and not record[0].startswith(b"closed")]


@over_each_changelog
def test_each_record_of_a_function_is_processed_once_over_both_forms(tmp_path: Path, log: Changelog) -> None:
    keys = [number % 4 for number in range(50)]
    feed(log, keys)
    stores = {"left": logging_all(MEMORY), "right": logging_all(MEMORY)}
    with counting_task(tmp_path, log, stores=stores, batches=True) as task:
        assert task.run(commit=True) == 50
        assert task.metrics.process_total == 50
    assert outputs(log) == expected_outputs(keys)
