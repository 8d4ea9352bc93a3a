"""Records as rows with the columns of Spark's Kafka source, and queries whose functions get batches of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from stores.changelog.files import Retention, VersionLog
from stores.changelog.interface import Record
from stores.config import StoreConfig
from stores.records import INT64, STR, KeyValue, TimestampedKeyValue, Window
from stores.spark import task
from stores.spark.context import TIMES
from stores.spark.plan import PARTITION_COLUMN, Plan, QueryBatch
from stores.spark.record_wise import BatchWise, RecordWise, topics_by_name
from stores.tasks import Batch, Topic
from stores.tests.spark.counting import QUERY, plan

HEADERS = (("own", b"1"),)
COLUMNS = ("topic", "key", "value", "timestamp", "headers", "partition")
OUTPUT = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("partition", pa.int32()),
    ]
)
KINDS: dict[str, StoreConfig] = {
    "counts": StoreConfig("rocksdb", records=KeyValue(key=STR, value=INT64)),
    "hours": StoreConfig(
        "rocksdb", records=Window(key=STR, value=INT64, size_ms=1000, retention_ms=20_000, timestamped=True)
    ),
    "latest": StoreConfig("rocksdb", records=TimestampedKeyValue(key=STR, value=STR, ttl_ms=9_000)),
    "raw": StoreConfig("rocksdb"),
}
TEXTS = Topic("in", key=STR, value=STR)
TOTALS = Topic("out", key=STR, value=INT64)
FEW: dict[str, Any] = {"max_records": 1_000, "max_bytes": 1 << 20}


def given(folder: Path, wise: RecordWise, **changed: Any) -> Plan:
    output = pa.schema([OUTPUT.field(name) for name in wise.columns])
    settings = {"stores": {**KINDS, TIMES: StoreConfig("rocksdb")}, "key": ("key",), "output": output}
    on_timer = wise.on_timer if wise.timer else None
    return plan(folder, wise, **{**settings, "on_timer": on_timer, **changed})


def batch_plan(folder: Path, function: Any, topics: Any = (), *, timer: Any = None, **changed: Any) -> Plan:
    bounds: dict[str, Any] = {
        name: changed.pop(name) for name in ("max_records", "max_bytes", "in_order") if name in changed
    }
    by_name = topics_by_name(topics, ["topic"])
    wise = BatchWise(function, "key", changed.pop("columns", COLUMNS), timer, by_name, **{**FEW, **bounds})
    return given(folder, wise, **changed)


def rows_of(query_plan: Plan, number: int, rows: Any) -> list[dict[str, Any]]:
    return [row for batch in task.run(query_plan, QueryBatch(0, number, QUERY), rows) for row in batch.to_pylist()]


def random_records(random: Random, count: int) -> list[Record]:
    """Records with keys, tombstones, headers and times that are missing, late and early."""
    return [
        Record(
            number,
            b"N%d" % random.randrange(6),
            random.choice([None, b"", random.randbytes(random.randrange(40)).hex().encode()]),
            random.choice([-1, random.randrange(40_000), 500 * number]),
            HEADERS if random.random() < 0.3 else (),
        )
        for number in range(count)
    ]


def as_rows(some: list[Record], random: Random) -> Iterator[pa.RecordBatch]:
    """Rows with the columns of Spark's Kafka source, in Arrow batches of any size."""
    at = 0
    while at < len(some):
        part = some[at : at + random.randrange(1, 30)]
        at += len(part)
        times = pa.array([None if each.timestamp_ms < 0 else each.timestamp_ms * 1000 for each in part], pa.int64())
        headers = [[{"key": name, "value": content} for name, content in each.headers] or None for each in part]
        yield pa.record_batch(
            {
                "key": pa.array([each.key for each in part], pa.binary()),
                "value": pa.array([each.value for each in part], pa.binary()),
                "topic": pa.array(["in"] * len(part), pa.string()),
                "partition": pa.array([0] * len(part), pa.int32()),
                "offset": pa.array([each.offset for each in part], pa.int64()),
                "timestamp": times.cast(pa.timestamp("us", "UTC")),
                "headers": pa.array(headers, OUTPUT.field("headers").type),
                PARTITION_COLUMN: pa.array([0] * len(part), pa.int32()),
            }
        )


def state_of(folder: Path) -> dict[tuple[str, bytes], bytes]:
    log = VersionLog.open(folder / "state").partition(0)
    newest = log.listing().newest
    assert newest is not None
    state: dict[tuple[str, bytes], bytes] = {}
    for piece in log.restore(None, newest):
        for store, is_mark, key, value in piece.records:
            state.pop((store, key), None)
            if value is not None:
                state[store, b"mark " * is_mark + key] = value
    return state


def counting(batch: Batch, context: Any) -> None:
    """Count the keys of a batch, and give out their new counts."""
    counts = context.store("counts")
    numbers = Counter(batch.keys)
    names = [(key or b"").decode() for key in numbers]
    totals = [(old or 0) + new for old, new in zip(counts.get_many(names), numbers.values(), strict=True)]
    counts.put_many(dict(zip(names, totals, strict=True)))
    context.store("raw").put_many({key: b"%d" % total for key, total in zip(numbers, totals, strict=True)})
    context.forward_many(TOTALS, names, totals)


def counted_rows(query_plan: Plan, number: int) -> list[tuple[bytes, int]]:
    """Compute a batch of Spark with its own records; return its keys and counts."""
    some = random_records(Random(number), 40)
    rows = rows_of(query_plan, number, as_rows(some, Random(number)))
    return [(row["key"], INT64.deserialize(row["value"])) for row in rows]


def expected(number: int) -> Counter[bytes | None]:
    """The count of each key after a batch of Spark."""
    return Counter(record.key for before in range(number + 1) for record in random_records(Random(before), 40))


QUICK = {"counts": replace(KINDS["counts"], backend="lmdb"), "raw": StoreConfig("lmdb"), TIMES: StoreConfig("lmdb")}


def quick_plan(folder: Path) -> Plan:
    """A plan with few stores that open quickly, and a snapshot of each version."""
    return batch_plan(folder, counting, max_records=6, stores=QUICK, retention=Retention(snapshot_versions=1))


def compute_batch(folder: Path, number: int) -> None:
    """Compute a batch of Spark by ``quick_plan``."""
    counted_rows(quick_plan(folder), number)
