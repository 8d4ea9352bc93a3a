"""``process_batch`` over the rows of a stateful query: what is promised for records, and for batches in a task."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stores.changelog.files.partition_log import FAILPOINTS
from stores.changelog.interface import Record
from stores.errors import DeserializationError, ProducerFencedError
from stores.records import INT64, STR
from stores.spark import local_state, task
from stores.spark.record_wise import BatchWise, RecordWise
from stores.tasks import Batch, Topic
from stores.tests.forked_call import call_until_killed
from stores.tests.spark.batches import (
    COLUMNS,
    FEW,
    TOTALS,
    as_rows,
    batch_plan,
    compute_batch,
    counted_rows,
    counting,
    expected,
    given,
    quick_plan,
    random_records,
    rows_of,
    state_of,
)
from stores.tests.spark.counting import close_all
from stores.tests.spark.test_record_wise import records, run
from stores.tests.spark.test_timers import make_checkpoint
from stores.tests.tasks.setup import in_batches

# Equality with the function of records


def timed(record: Record, context: Any) -> None:
    """Use each kind of store and the record's own time; forward the state of its key."""
    assert record.key is not None
    key = record.key.decode()
    counts, hours, latest = context.store("counts"), context.store("hours"), context.store("latest")
    number, before = (counts.get(key) or 0) + 1, latest.get(key)
    counts.put(key, number)
    hours.put(key, number, max(0, record.timestamp_ms) // 1000 * 1000, max(0, record.timestamp_ms))
    if record.value is None:
        latest.delete(key)
    else:
        latest.put(key, record.value.decode(), max(0, record.timestamp_ms))
    context.store("raw").put(record.key, record.value)
    known = [(at.key, value.value, value.timestamp_ms) for at, value in hours.all()]
    context.forward("out", record.key, repr((number, before, known, hours.late_total)).encode(), headers=record.headers)
    if number % 3 == 0:
        context.forward_many("out", [None, record.key], [b"third", None], [5, -1])


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 8))])
def test_batches_of_any_size_give_the_rows_and_the_state_of_single_records(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    parts = [random_records(random, random.randrange(1, 70)) for _ in range(4)]
    by_record = RecordWise(timed, "key", COLUMNS)
    bounds: dict[str, Any] = {
        "max_records": random.choice([1, 3, 20, 1_000]),
        "max_bytes": random.choice([1, 60, 1 << 20]),
    }
    by_batch = BatchWise(in_batches(timed), "key", COLUMNS, in_order=random.random() < 0.5, **bounds)
    found = []
    for name, wise in (("records", by_record), ("batches", by_batch)):
        rows = []
        for number, part in enumerate(parts):
            rows.append(rows_of(given(tmp_path / name, wise), number, as_rows(part, random)))
            if number == 1:
                close_all()
        found.append((rows, state_of(tmp_path / name)))
        close_all()
    assert found[0] == found[1]
    assert sum(map(len, found[0][0])) > sum(map(len, parts))


def test_a_query_may_change_from_records_to_batches_and_back(tmp_path: Path) -> None:
    def count(record: Record, context: Any) -> None:
        counts = context.store("counts")
        counts.put("all", (counts.get("all") or 0) + 1)
        context.forward("out", b"all", b"%d" % counts.get("all"))

    by_record, by_batch = RecordWise(count, "key", COLUMNS), BatchWise(in_batches(count), "key", COLUMNS, **FEW)
    for number, wise in enumerate((by_record, by_batch, by_record)):
        rows = run(given(tmp_path, wise), number, records()[number * 9 : number * 9 + 9])
        assert [row["value"] for row in rows] == [b"%d" % (number * 9 + each) for each in range(1, 10)]


# Errors and attempts


def check(rows: list[tuple[bytes, int]], number: int) -> None:
    """Check that the last row of each key has its count, and that there are more rows than keys."""
    assert dict(rows) == expected(number)
    assert len(rows) > len(expected(number))


def test_an_exception_names_the_offsets_of_its_batch_and_nothing_of_any_is_committed(tmp_path: Path) -> None:
    def broken(batch: Batch, context: Any) -> None:
        counting(batch, context)
        if 12 in batch.offsets:
            raise ZeroDivisionError

    query_plan = batch_plan(tmp_path, broken, max_records=5)
    with pytest.raises(ZeroDivisionError) as error:
        counted_rows(query_plan, 0)
    notes = " ".join(error.value.__notes__)
    for part in ("Task 0_0", "offsets 10 to 14 of in-0, a batch of 5 records", "batch 0", "Nothing of this batch"):
        assert part in notes
    check(counted_rows(batch_plan(tmp_path, counting, max_records=5), 0), 0)


@pytest.mark.parametrize("wrong", [Record(2, b"k", b"no number"), Record(2, b"\xff", INT64.serialize(1))])
def test_a_record_that_a_serde_cannot_read_fails_the_batch_even_if_the_function_catches_it(
    tmp_path: Path, wrong: Record
) -> None:
    def catches(batch: Batch, context: Any) -> None:
        for read in (batch.table, lambda: (batch.keys, batch.values), lambda: list(batch[1:])):
            with pytest.raises(DeserializationError, match="offset 2"):
                read()

    query_plan = batch_plan(tmp_path, catches, [Topic("in", key=STR, value=INT64)])
    some = [wrong if number == 2 else Record(number, b"k", INT64.serialize(1)) for number in range(4)]
    with pytest.raises(DeserializationError, match="offset 2"):
        rows_of(query_plan, 0, as_rows(some, Random(1)))


def test_a_batch_that_is_in_the_log_is_given_out_again_without_a_call(tmp_path: Path) -> None:
    def another(batch: Batch, context: Any) -> None:
        raise AssertionError("a batch in the log is not computed")

    for number in range(3):
        rows = counted_rows(batch_plan(tmp_path, counting, max_records=6), number)
        check(rows, number)
        assert counted_rows(batch_plan(tmp_path, another, max_records=6), number) == rows
        close_all()


@pytest.mark.parametrize("late", [0, 1], ids=["overtaken", "much too late"])
def test_an_attempt_that_was_not_first_gives_out_the_rows_of_the_first_or_is_refused(tmp_path: Path, late: int) -> None:
    """As with speculation: another process computes the batch, and those after it, while this attempt stalls."""
    first = batch_plan(tmp_path, counting, max_records=6)
    others: list[Any] = []

    def stalled(batch: Batch, context: Any) -> None:
        context.store("counts").put("wrong", 77)
        context.forward(TOTALS, "wrong", 77)
        if not others:
            task._open.clear()
            others.extend(counted_rows(replace(first, local=str(tmp_path / "another")), n) for n in range(late + 1))
            task._forget(first, 0)

    zombie = batch_plan(tmp_path, stalled, max_records=6)
    if late:
        with pytest.raises(ProducerFencedError):
            counted_rows(zombie, 0)
    else:
        assert counted_rows(zombie, 0) == others[0]
    check(counted_rows(first, late + 1), late + 1)


@pytest.mark.parametrize(
    "failpoint", [*FAILPOINTS, local_state.RESTORED, local_state.BETWEEN_STORES, local_state.COMMITTED]
)
def test_a_process_killed_at_any_failpoint_costs_no_row_and_no_state(tmp_path: Path, failpoint: str) -> None:
    compute_batch(tmp_path, 0)
    close_all()
    shutil.rmtree(tmp_path / "local")
    assert call_until_killed(compute_batch, tmp_path, failpoint, 1, 1)
    for number in (1, 2):
        check(counted_rows(quick_plan(tmp_path), number), number)


# Timers


def test_timers_fire_between_batches_of_spark_and_see_their_writes(tmp_path: Path) -> None:
    """The watermark of the second batch is 100."""
    called: list[Any] = []

    def function(batch: Batch, context: Any) -> None:
        called.append(("batch", list(batch.offsets)))
        counting(batch, context)
        for key, time_ms in zip(batch.keys, batch.timestamps_ms, strict=True):
            context.timers.register(key, time_ms)

    def fires(key: bytes, time_ms: int, context: Any) -> None:
        called.append((key, time_ms, context.store("counts").get(key.decode())))
        context.forward_many(TOTALS, pa.array([key.decode()]), pa.array([time_ms]))

    checkpoint = make_checkpoint(tmp_path)
    query_plan = batch_plan(tmp_path, function, timer=fires, checkpoint=checkpoint, max_records=2)
    some = [Record(number, b"ab"[number % 2 :][:1], b"", 90 + number) for number in range(12)]
    rows_of(query_plan, 0, as_rows(some[:3], Random(1)))
    rows = rows_of(query_plan, 1, as_rows(some[3:], Random(1)))
    assert called[:2] == [("batch", [0, 1]), ("batch", [2])]
    batches = [("batch", [number, number + 1][: 12 - number]) for number in range(3, 12, 2)]
    fired = [(b"ab"[number % 2 :][:1], 90 + number, 6) for number in range(11)]
    assert called[2:] == batches + fired
    assert [INT64.deserialize(row["value"]) for row in rows[-11:]] == [time_ms for _, time_ms, _ in fired]
    assert [row["timestamp"].timestamp() for row in rows[-11:]] == [time_ms / 1000 for _, time_ms, _ in fired]


def test_records_expire_between_the_batches_of_a_store_by_the_times_that_are_put(tmp_path: Path) -> None:
    found: list[Any] = []

    def function(batch: Batch, context: Any) -> None:
        latest = context.store("latest")
        found.append([value and value.value for value in latest.get_many(["a", "b"])])
        times = dict(zip(batch.keys, batch.timestamps_ms, strict=True))
        names = [(key or b"").decode() for key in times]
        latest.put_many(names, names, list(times.values()))

    some = [Record(0, b"a", b"", 1_000), Record(1, b"b", b"", 5_000), Record(2, b"b", b"", 10_001)]
    query_plan = batch_plan(tmp_path, function, max_records=1)
    rows_of(query_plan, 0, as_rows(some, Random(1)))
    rows_of(query_plan, 1, as_rows(some[:1], Random(1)))
    assert found == [[None, None], ["a", None], ["a", "b"], [None, "b"]]
