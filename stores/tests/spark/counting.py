"""A stateful function without Spark: batches of events for one partition, and the answer that dictionaries give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from stores.changelog.files import Retention, VersionLog
from stores.config import StoreConfig
from stores.records import INT64, STR, KeyValue
from stores.spark.context import Context
from stores.spark.plan import PARTITION_COLUMN, Plan, QueryBatch
from stores.spark.rows import Rows
from stores.spark.task import _open, run

OUTPUT = pa.schema([pa.field("plane", pa.string()), pa.field("count", pa.int64())])
QUERY = "11111111-2222-3333-4444-555555555555"
COUNTS = KeyValue(key=STR, value=INT64)


def count(rows: Rows, context: Context) -> Iterator[tuple[str, int]]:
    """Give out the new count of each plane in the batch."""
    counts = context.store("counts")
    for plane, number in Counter(row.plane for row in rows).items():
        total = (counts.get(plane) or 0) + number
        counts.put(plane, total)
        yield plane, total


def plan(folder: Path, process: Any = count, *, backend: str = "rocksdb", **changed: Any) -> Plan:
    """A plan of a state in ``folder``/state with local copies in ``folder``/local."""
    stores = changed.pop("stores", {"counts": StoreConfig(backend, records=COUNTS)})
    log = VersionLog.open_or_create(folder / "state", changed.pop("description", {"partitions": 2}))
    settings = {
        "location": log.location,
        "log_id": log.id,
        "stores": stores,
        "stores_id": backend,
        "process": process,
        "output": OUTPUT,
        "key": ("plane",),
        "order_by": None,
        "null_keys": "refuse",
        "retention": Retention(snapshot_versions=3, keep_versions=3),
        "put_if_absent": None,
        "local": str(folder / "local"),
        "version": None,
        "job": None,
        "batch_id": None,
        "query": None,
    }
    return Plan(**{**settings, **changed})


def events(number: int, rows: int = 30) -> list[str | None]:
    """The planes of batch ``number``; the same at each call."""
    random = Random(number)
    return [f"N{random.randrange(12)}" for _ in range(rows)]


def batches(planes: list[str | None], partition: int = 0) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(planes), 7):
        part = planes[at : at + 7]
        numbers = pa.array([partition] * len(part), pa.int32())
        yield pa.record_batch([pa.array(part, pa.string()), numbers], names=["plane", PARTITION_COLUMN])


def compute(given: Plan, number: int, planes: list[str | None] | None = None, query: str = QUERY) -> list[Any]:
    """Compute a batch in partition 0; return its rows."""
    rows = run(given, QueryBatch(0, number, query), batches(events(number) if planes is None else planes))
    return [tuple(row.values()) for batch in rows for row in batch.to_pylist()]


def expected(number: int) -> dict[str | None, int]:
    """The state after batch ``number``."""
    return dict(Counter(plane for before in range(number + 1) for plane in events(before)))


def expected_rows(number: int) -> list[tuple[str | None, int]]:
    """The rows of batch ``number``."""
    totals = expected(number)
    return [(plane, totals[plane]) for plane in Counter(events(number))]


def state_in_log(folder: Path, version: int | None = None) -> dict[str, int]:
    """The state in the log at a version, by default the newest, without the library's stores."""
    log = VersionLog.open(folder / "state").partition(0)
    newest = log.listing().newest
    assert newest is not None
    state: dict[str, int] = {}
    for piece in log.restore(None, newest if version is None else version):
        for _, is_mark, key, value in piece.records:
            assert not is_mark
            if value is None:
                state.pop(key.decode(), None)
            else:
                state[key.decode()] = int.from_bytes(value, "big") - (1 << 63)
    return state


def close_all() -> None:
    """Close the stores that this process has open."""
    while _open:
        _open.popitem()[1][1].close()
