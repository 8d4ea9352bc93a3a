"""Uses of stores and topics that a checker of types must refuse: the lines with the comment ``# error``, and no others.

``make lint`` compares them with what mypy and pyright report, both of them strict. Nothing here is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

from stores import KeyValueStore, TopicPartition, open_store
from stores.changelog import Changelog, Record
from stores.records import (
    BYTES,
    FLOAT64,
    INT64,
    STR,
    KeyValue,
    RecordIterator,
    Session,
    SessionView,
    TimestampedKeyValue,
    TimestampedKeyValueStoreWithHeaders,
    TimestampedKeyValueViewWithHeaders,
    TimestampedKeyValueWithHeaders,
    TypedKeyValueStore,
    TypedKeyValueView,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Versioned,
    VersionedRecord,
    VersionedRecordWithHeaders,
    VersionedStore,
    VersionedStoreWithHeaders,
    VersionedView,
    VersionedViewWithHeaders,
    VersionedWithHeaders,
    Window,
    Windowed,
    WindowView,
)
from stores.records.serdes import MsgspecJson
from stores.spark import Context
from stores.tasks import Batch, GlobalStores, StreamTask, TaskContext, TaskId
from stores.testing import AppDriver
from stores.worker import Processor, Topic


class Order:
    """A value of a user's own type."""

    cents: int


COUNTS = KeyValue(key=STR, value=INT64, name="counts")
ORDERS = KeyValue(key=STR, value=MsgspecJson(Order), name="orders")
RATES = TimestampedKeyValue(key=BYTES, value=FLOAT64, name="rates")
TRACES = TimestampedKeyValueWithHeaders(key=STR, value=INT64, name="traces")
PRICES = Versioned(key=STR, value=FLOAT64, history_retention_ms=60_000, name="prices")
SOURCES = VersionedWithHeaders(key=STR, value=FLOAT64, history_retention_ms=60_000, name="sources")
PER_MINUTE = Window(key=STR, value=INT64, size_ms=60_000, retention_ms=3_600_000, name="per-minute")
HEADED = Window(key=STR, value=INT64, size_ms=60_000, retention_ms=3_600_000, headers=True, name="headed")
TIMED = Window(key=STR, value=INT64, size_ms=60_000, retention_ms=3_600_000, timestamped=True, name="timed")
VISITS = Session(key=STR, value=INT64, retention_ms=3_600_000, name="visits")
HEADED_VISITS = Session(key=STR, value=INT64, retention_ms=3_600_000, headers=True, name="headed-visits")
TIMED_VISITS = Session(key=STR, value=INT64, retention_ms=3_600_000, timestamped=True, name="timed-visits")


def key_values(context: TaskContext) -> None:
    """Use key-value stores."""
    counts = context.store(COUNTS)
    assert_type(counts, TypedKeyValueStore[str, int])
    assert_type(counts.get("a"), int | None)
    counts.put("a", 1)
    counts.putt("a", 1)  # error
    counts.put("a", "1")  # error
    counts.put(b"a", 1)  # error
    counts.put("a", (counts.get("a") or 0) + 1)
    counts.put("a", counts.get("a") + 1)  # error
    with counts.range("a", None) as pairs:
        assert_type(pairs, RecordIterator[tuple[str, int]])
        assert_type(dict(pairs), dict[str, int])
    order = context.store(ORDERS).get("a")
    assert order is not None
    assert_type(order.cents, int)
    print(order.price)  # error
    rate = context.store(RATES).get(b"eur")
    assert rate is not None
    assert_type(rate.value, float)
    context.store(RATES).put(b"eur", 1.1)  # error
    context.store(RATES).put(b"eur", 1.1, 1_000)
    assert_type(counts.update("a", lambda number: number + 1, 0), int)
    assert_type(context.store(RATES).update(b"eur", lambda former: former * 2, 1.0, 1_000), float)
    counts.update("a", lambda number: number + 1)  # error
    counts.update("a", lambda number: f"{number}", 0)  # error
    context.store(1)  # error
    context.store("counts").put("a", 1)


def on_trace(key: str, value: ValueTimestampHeaders[int], context: TaskContext) -> None:
    """Get a value that has expired, with its headers."""


def on_rate(key: str, value: ValueAndTimestamp[int], context: TaskContext) -> None:
    """Get a value that has expired, without headers."""


def headers(task: StreamTask, record: Record, context: TaskContext) -> None:
    """Use stores with headers."""
    traces = context.store(TRACES)
    assert_type(traces, TimestampedKeyValueStoreWithHeaders[str, int])
    traces.put("a", 1, 1_000, record.headers)
    traces.put("a", 1, 1_000)
    traces.put("a", 1)  # error
    traces.put("a", 1, 1_000, {"a": b"x"})  # error
    traces.put("a", 1, 1_000, (("a", "x"),))  # error
    traces.put_all([("a", 1, 1_000), ("a", None, 1_000, (("none", None),))])
    traces.put_many(["a"], [1], [1_000], [record.headers])
    traces.put_many(["a"], [1], [1_000], record.headers)  # error
    assert_type(traces.update("a", lambda number: number + 1, 0, 1_000, record.headers), int)
    found = traces.get("a")
    assert_type(found, ValueTimestampHeaders[int] | None)
    if found is not None:
        value, timestamp_ms, headers = found
        assert_type((value, timestamp_ms), tuple[int, int])
        assert_type(headers, tuple[tuple[str, bytes | None], ...])
        print(found.header)  # error
    assert_type(traces.delete("a"), ValueTimestampHeaders[int] | None)
    with traces.all() as pairs:
        assert_type(pairs, RecordIterator[tuple[str, ValueTimestampHeaders[int]]])
    view = task.store(TRACES)
    assert_type(view, TimestampedKeyValueViewWithHeaders[str, int])
    assert_type(view.get_many(["a"]), list[ValueTimestampHeaders[int] | None])
    assert_type(view.plain().get("a"), int | None)
    view.put("a", 1, 1_000)  # error
    TimestampedKeyValueWithHeaders(key=STR, value=INT64, ttl_ms=10, on_expiry=on_trace)
    TimestampedKeyValueWithHeaders(key=STR, value=INT64, ttl_ms=10, on_expiry=on_rate)  # error
    TimestampedKeyValue(key=STR, value=INT64, ttl_ms=10, on_expiry=on_rate)


def versions(task: StreamTask, context: TaskContext) -> None:
    """Use versioned stores."""
    prices = context.store(PRICES)
    assert_type(prices, VersionedStore[str, float])
    assert_type(prices.put("tea", 4.5, 1_000), bool)
    prices.put("tea", 4.5)  # error
    prices.put("tea", "4.5", 1_000)  # error
    assert_type(prices.get("tea", 2_000), ValueAndTimestamp[float] | None)
    assert_type(prices.get_versions("tea", 0, 2_000, reverse=True), RecordIterator[VersionedRecord[float]])
    assert_type(prices.delete("tea", 3_000), ValueAndTimestamp[float] | None)
    prices.delete("tea")  # error
    prices.put_many(["tea"], [5.5], [4_000])
    prices.put_many(["tea"], [5.5])  # error
    view = task.store(PRICES)
    assert_type(view, VersionedView[str, float])
    with view.get_versions("tea") as records:
        for record in records:
            assert_type(record.valid_to_ms, int | None)
            print(record.end_ms)  # error


def versions_with_headers(task: StreamTask, record: Record, context: TaskContext) -> None:
    """Use versioned stores with headers."""
    sources = context.store(SOURCES)
    assert_type(sources, VersionedStoreWithHeaders[str, float])
    assert_type(sources.put("tea", 4.5, 1_000, record.headers), bool)
    sources.put("tea", 4.5, 1_000, {"trace": b"x"})  # error
    sources.put_all([("tea", 4.5, 1_000), ("tea", None, 1_000, (("none", None),))])
    sources.put_many(["tea"], [5.5], [4_000], record.headers)  # error
    assert_type(sources.get("tea", 2_000), ValueTimestampHeaders[float] | None)
    assert_type(sources.get_versions("tea"), RecordIterator[VersionedRecordWithHeaders[float]])
    assert_type(sources.delete("tea", 3_000), ValueTimestampHeaders[float] | None)
    view = task.store(SOURCES)
    assert_type(view, VersionedViewWithHeaders[str, float])
    assert_type(view.get_many(["tea"]), list[ValueTimestampHeaders[float] | None])
    context.store(PRICES).put("tea", 4.5, 1_000, record.headers)  # error


def windows(context: TaskContext) -> None:
    """Use window stores."""
    clicks = context.store(PER_MINUTE)
    assert_type(clicks.fetch_one("home", 0), int | None)
    assert_type(clicks.fetch("home", 0, 60_000), RecordIterator[tuple[int, int]])
    assert_type(clicks.fetch_all(0, 60_000), RecordIterator[tuple[Windowed[str], int]])
    clicks.put("home", 1, 0)
    clicks.put("home", "1", 0)  # error
    clicks.fetch_one(b"home", 0)  # error
    clicks.fetch_one("home")  # error
    assert_type(clicks.update("home", 1_000, lambda number: (number or 0) + 1, grace_ms=5), int | None)
    clicks.update("home", 1_000, lambda number: number + 1)  # error
    timed = context.store(TIMED)
    assert_type(timed.fetch_one("home", 0), ValueAndTimestamp[int] | None)
    timed.put("home", 1, 0, 1_000)
    timed.put("home", "1", 0, 1_000)  # error
    assert_type(timed.update("home", 1_000, lambda number: (number or 0) + 1), int | None)
    timed.put("home", 1, 0, 1_000, (("trace", b"x"),))  # error
    timed.put_many({("home", 0): 1}, [1_000], [()])  # error
    timed.update("home", 1_000, lambda number: (number or 0) + 1, headers=())  # error


def windows_with_headers(task: StreamTask, record: Record, context: TaskContext) -> None:
    """Use window and session stores with headers."""
    headed = context.store(HEADED)
    assert_type(headed.fetch_one("home", 0), ValueTimestampHeaders[int] | None)
    assert_type(headed.fetch("home", 0, 1), RecordIterator[tuple[int, ValueTimestampHeaders[int]]])
    headed.put("home", 1, 0, 1_000, record.headers)
    headed.put("home", "1", 0, 1_000, record.headers)  # error
    headed.put("home", 1, 0, 1_000, {"trace": b"x"})  # error
    headed.put_many({("home", 0): 1}, [1_000], [record.headers])
    headed.put_many({("home", 0): 1}, [1_000], record.headers)  # error
    count = headed.update("home", 1_000, lambda number: (number or 0) + 1, headers=record.headers)
    assert_type(count, int | None)
    visits = context.store(HEADED_VISITS)
    assert_type(visits.get_many([Windowed("ann", 0, 10)]), list[ValueTimestampHeaders[int] | None])
    visits.put(Windowed("ann", 0, 10), 1, 1_000, record.headers)
    visits.put(Windowed("ann", 0, 10), 1, 1_000, (("trace", "x"),))  # error
    merged = visits.merge("ann", 1_000, 10, lambda numbers: sum(numbers) + 1, headers=record.headers)
    assert_type(merged, tuple[Windowed[str], int] | None)
    assert_type(task.store(HEADED), WindowView[str, ValueTimestampHeaders[int]])
    assert_type(task.store(HEADED_VISITS), SessionView[str, ValueTimestampHeaders[int]])


def sessions(context: TaskContext) -> None:
    """Use session stores."""
    visits = context.store(VISITS)
    assert_type(visits.fetch("ann"), RecordIterator[tuple[Windowed[str], int]])
    visits.put(Windowed("ann", 0, 10), 1)
    visits.put(Windowed("ann", 0, 10), "1")  # error
    visits.put(("ann", 0, 10), 1)  # error
    timed = context.store(TIMED_VISITS)
    assert_type(timed.fetch_session("ann", 0, 10), ValueAndTimestamp[int] | None)
    timed.put(Windowed("ann", 0, 10), 1, 1_000)
    timed.put(Windowed("ann", 0, 10), 1, 1_000, (("trace", b"x"),))  # error
    assert_type(visits.merge("ann", 1_000, 10, lambda numbers: sum(numbers) + 1), tuple[Windowed[str], int] | None)
    assert_type(timed.merge("ann", 1_000, 10, lambda numbers: sum(numbers) + 1), tuple[Windowed[str], int] | None)
    visits.merge("ann", 1_000, 10, lambda numbers: numbers)  # error


def on_expiry(key: str, value: ValueAndTimestamp[int], context: TaskContext) -> None:
    """Report a record that expires."""


def on_close(window: Windowed[str], value: int, context: TaskContext) -> None:
    """Report a window or a session that closes."""


def on_closed_with_headers(window: Windowed[str], value: ValueTimestampHeaders[int], context: TaskContext) -> None:
    """Report a window or a session that closes, with headers."""


def reports() -> None:
    """Give stores the functions that report."""
    TimestampedKeyValue(key=STR, value=INT64, ttl_ms=1, on_expiry=on_expiry)
    TimestampedKeyValue(key=BYTES, value=INT64, ttl_ms=1, on_expiry=on_expiry)  # error
    TimestampedKeyValue(key=STR, value=FLOAT64, ttl_ms=1, on_expiry=on_expiry)  # error
    TimestampedKeyValue(key=STR, value=INT64, ttl_ms=1, on_expiry=on_close)  # error
    Window(key=STR, value=INT64, size_ms=1, retention_ms=1, on_close=on_close)
    Window(key=STR, value=STR, size_ms=1, retention_ms=1, on_close=on_close)  # error
    Session(key=STR, value=INT64, retention_ms=1, gap_ms=1, on_close=on_close)
    Session(key=STR, value=STR, retention_ms=1, gap_ms=1, on_close=on_close)  # error
    Session(key=STR, value=INT64, retention_ms=1, gap_ms=1, timestamped=True, on_close=on_close)  # error
    Session(key=STR, value=INT64, retention_ms=1, gap_ms=1, on_close=on_expiry)  # error
    Window(key=STR, value=INT64, size_ms=1, retention_ms=1, headers=True, on_close=on_close)  # error
    Window(key=STR, value=INT64, size_ms=1, retention_ms=1, headers=True, on_close=on_closed_with_headers)
    Session(key=STR, value=INT64, retention_ms=1, gap_ms=1, headers=True, on_close=on_closed_with_headers)
    Session(key=STR, value=INT64, retention_ms=1, gap_ms=1, headers=True, on_close=on_expiry)  # error


def views(task: StreamTask, global_stores: GlobalStores, context: TaskContext) -> None:
    """Use views and snapshots."""
    counts = task.store(COUNTS)
    assert_type(counts, TypedKeyValueView[str, int])
    counts.put("a", 1)  # error
    with counts.snapshot() as snapshot:
        assert_type(snapshot.get("a"), int | None)
        snapshot.get(1)  # error
    assert_type(task.store(TIMED), WindowView[str, ValueAndTimestamp[int]])
    assert_type(task.store(VISITS), SessionView[str, int])
    assert_type(task.store(RATES).plain().get(b"eur"), float | None)
    assert_type(global_stores.view(COUNTS).get("a"), int | None)
    assert_type(context.global_store(COUNTS).get("a"), int | None)
    context.global_store(COUNTS).put("a", 1)  # error
    task.store(3)  # error


def elsewhere(context: Context, store: KeyValueStore) -> None:
    """Use stores on Spark, and without a task."""
    assert_type(context.store(COUNTS).get("a"), int | None)
    context.store(COUNTS).gett("a")  # error
    with COUNTS.over(open_store("lmdb", "folder")) as counts:
        assert_type(counts.get("a"), int | None)
        assert_type(counts.read_only().get("a"), int | None)
    assert_type(PER_MINUTE.over(store).read_only(), WindowView[str, int])


LINES = Topic("lines", key=BYTES, value=STR)
SALES = Topic("sales", key=STR, value=MsgspecJson(Order))
TOTALS = Topic("totals", key=STR, value=INT64)


def of_bytes(record: Record, context: TaskContext) -> None:
    """Read records of bytes, and write outputs."""
    assert_type(record.key, bytes | None)
    context.forward("totals", record.key, b"1")
    context.forward("totals", "ann", b"1")  # error
    context.forward(TOTALS, "ann", 1, record.timestamp_ms)
    context.forward(TOTALS, None, None)
    context.forward(TOTALS, "ann", "1")  # error
    context.forward(TOTALS, b"ann", 1)  # error
    context.forward(SALES, "ann", 1)  # error
    context.forward(3, b"ann", b"1")  # error


def of_sales(record: Record[str, Order], context: TaskContext) -> None:
    """Read records of a topic with serdes."""
    assert_type(record.key, str | None)
    assert_type(record.value, Order | None)
    assert_type(context.record.value, bytes | None)
    print(record.value.cents)  # error
    if record.value is not None:
        context.forward(TOTALS, record.key, record.value.cents)
        context.forward(TOTALS, record.key, record.value.price)  # error


def batch_of_bytes(batch: Batch, context: TaskContext) -> None:
    """Read records of bytes, many at a time."""
    assert_type(batch[0], Record[bytes, bytes])
    context.forward_many("totals", batch.keys, [b"1"] * len(batch))
    context.forward_many(TOTALS, batch.keys, [1])  # error


def batch_of_sales(batch: Batch[str, Order], context: TaskContext) -> None:
    """Read records of a topic with serdes, many at a time."""
    assert_type(batch.keys, Sequence[str | None])
    assert_type(batch[1:], Batch[str, Order])
    print([value.cents for value in batch.values])  # error
    context.forward_many(TOTALS, batch.keys, [1] * len(batch), batch.timestamps_ms)
    context.forward_many(TOTALS, batch.keys, batch.values)  # error


def of_both(record: Record[bytes | str, Order | str], context: TaskContext) -> None:
    """Read records of two topics."""


def processors(driver: AppDriver) -> None:
    """Give functions the topics that they read."""
    Processor(["lines"], of_bytes, [COUNTS])
    Processor([SALES], of_sales, on_deserialization_error="skip")
    Processor([SALES, LINES], of_both)
    Processor([SALES], of_bytes)  # error
    Processor(["sales"], of_sales)  # error
    Processor([LINES], of_sales)  # error
    Processor([SALES, LINES], of_sales)  # error
    Processor(["lines"], process_batch=batch_of_bytes, batch_max_records=10)
    Processor([SALES], process_batch=batch_of_sales, stores=[COUNTS])
    Processor(["sales"], process_batch=batch_of_sales)  # error
    Processor([LINES], process_batch=batch_of_sales)  # error
    Processor([SALES], process_batch=of_sales)  # error
    Processor([SALES], of_sales, process_batch=batch_of_sales)  # error
    assert_type(SALES.decoded(Record(0, b"ann", b"")), Record[str, Order])
    assert_type(driver.read(TOTALS)[0].value, int | None)
    driver.pipe_many(TOTALS, ["ann", None], [1, None], partition=0)
    driver.pipe_many(TOTALS, ["ann"], ["1"])  # error
    driver.pipe_many("totals", ["ann"], [b"1"])  # error
    Topic("sales", key=STR, value=str)  # error
    Topic("sales", value=STR)  # error


def of_mixed(record: Record[bytes | str, bytes | Order], context: TaskContext) -> None:
    """Read records of a partition, which are bytes, and of a topic with serdes."""


def batch_of_mixed(batch: Batch[bytes | str, bytes | Order], context: TaskContext) -> None:
    """Read records of both, many at a time."""


def anything(record: Record[Any, Any], context: TaskContext) -> None:
    """Read records of any input."""


ID = TaskId(0, 0)


def tasks(log: Changelog, given: Sequence[TopicPartition]) -> None:
    """Give tasks the inputs that their functions read."""
    lines = TopicPartition("lines", 0)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[lines], process=of_bytes)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=given, process_batch=batch_of_bytes)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES], process=of_sales)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES], process_batch=batch_of_sales)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES, LINES], process=of_both)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[lines, SALES], process=of_mixed)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES, lines], process=anything)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES, lines], process_batch=batch_of_mixed)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES], process=lambda record, _: None)
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES], process=of_bytes)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[lines], process=of_sales)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[LINES], process=of_sales)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES, LINES], process=of_sales)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[lines, SALES], process=of_sales)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[lines, SALES], process=of_bytes)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[SALES], process=batch_of_sales)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=[LINES], process_batch=batch_of_sales)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=given, process_batch=batch_of_sales)  # error
    StreamTask("a", ID, state_dir="s", changelog=log, stores=[], inputs=["lines"], process=of_bytes)  # error


def many(context: TaskContext) -> None:
    """Read and write many records at once."""
    counts, rates, visits = context.store(COUNTS), context.store(RATES), context.store(VISITS)
    assert_type(counts.get_many(["a"]), list[int | None])
    counts.put_many({"a": 1})
    counts.put_many([("a", 1), ("b", None)])
    counts.put_many({"a": "1"})  # error
    counts.delete_many([b"a"])  # error
    rates.put_many([b"a"], [1.5], [1_000])
    rates.put_many([b"a"], ["1.5"], [1_000])  # error
    assert_type(context.store(PER_MINUTE).get_many([("a", 0)]), list[int | None])
    context.store(PER_MINUTE).put_many({("a", 0): 1})
    context.store(PER_MINUTE).put_many({("a", 0): "1"})  # error
    context.store(TIMED).put_many({("a", 0): 1}, [1_000])
    assert_type(context.store(TIMED).get_many([("a", 0)]), list[ValueAndTimestamp[int] | None])
    visits.put_many({Windowed("a", 0, 5): 1})
    visits.delete_many([("a", 0)])  # error
