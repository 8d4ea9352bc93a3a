"""The figures of a batch: they equal a count of all that the state holds, whatever was repeated, failed or restored."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stores.changelog.files import Retention, VersionLog
from stores.command import main as shell
from stores.config import StoreConfig
from stores.records import (
    INT64,
    STR,
    KeyValue,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
    Windowed,
)
from stores.records.record_kind import RecordKind
from stores.spark import local_state
from stores.spark.__main__ import main
from stores.spark.context import Context
from stores.spark.figures import ABSENT, FIGURES_COLUMN, figures_of, with_figures
from stores.spark.local_state import RecordingStore
from stores.spark.plan import Plan, QueryBatch
from stores.spark.rows import Rows
from stores.spark.task import BatchResult, run
from stores.tests.spark.counting import QUERY, batches, close_all, plan

Write = Callable[[Any, Random, int], None]


def write_bytes(store: Any, random: Random, version: int) -> None:
    key = bytes([random.randrange(8)])
    if random.random() < 0.1:
        store.delete_range(key, None)
    else:
        read = random.choice([store.get, lambda key: store.get_many([key, b"z"]), len])
        read(key)
        store.put(key, random.choice([None, b"", b"value" * random.randrange(1, 5)]))
        read(key)


def write_named(store: Any, random: Random, version: int) -> None:
    """Write some keys by one call or by several, and read some before and some after that."""
    names = [f"N{number}" for number in random.sample(range(8), 3)]
    if random.random() < 0.5:
        store.get(names[0])
    if random.random() < 0.5:
        store.get_many(names[1:])
    if random.random() < 0.5:
        store.put_many({name: random.choice([None, 1, 2]) for name in names[:2]})
    else:
        store.put(names[0], random.choice([None, 1, 2]))
    store.get_many(names)


def write_timed(store: Any, random: Random, version: int) -> None:
    store.put(f"N{random.randrange(8)}", random.choice([None, 1, 2]), version * 40 + random.randrange(10))


def write_headed(store: Any, random: Random, version: int) -> None:
    headers = (("draw", b"%d" % random.randrange(99)),)
    store.put(f"N{random.randrange(8)}", random.choice([None, 1, 2]), version * 40 + random.randrange(10), headers)


def write_windows(store: Any, random: Random, version: int) -> None:
    store.put(f"N{random.randrange(3)}", random.choice([None, 1, 2]), version * 40 + 10 * random.randrange(3))


def write_sessions(store: Any, random: Random, version: int) -> None:
    start_ms = version * 40 + random.randrange(3)
    store.put(Windowed(f"N{random.randrange(3)}", start_ms, start_ms + 5), random.choice([None, 1]))


KINDS: Mapping[str, tuple[RecordKind | None, Write]] = {
    "bytes": (None, write_bytes),
    "named": (KeyValue(key=STR, value=INT64), write_named),
    "timed": (TimestampedKeyValue(key=STR, value=INT64, ttl_ms=90), write_timed),
    "headed": (TimestampedKeyValueWithHeaders(key=STR, value=INT64, ttl_ms=90), write_headed),
    "versions": (Versioned(key=STR, value=INT64, history_retention_ms=90), write_timed),
    "windows": (Window(key=STR, value=INT64, size_ms=10, retention_ms=90), write_windows),
    "sessions": (Session(key=STR, value=INT64, retention_ms=90), write_sessions),
}


def process(rows: Rows, context: Context) -> Iterator[tuple[str, int]]:
    random = Random(context.version)
    for _ in range(12):
        for name, (_, write) in KINDS.items():
            write(context.store(name), random, context.version)
    yield "N1", 1


def given(folder: Path, backend: str, **changed: Any) -> Plan:
    stores = {name: StoreConfig(backend, records=kind) for name, (kind, _) in KINDS.items()}
    return plan(folder, changed.pop("process", process), stores=stores, stores_id=backend, **changed)


def compute(query_plan: Plan, number: int) -> BatchResult:
    result = run(query_plan, QueryBatch(0, number, QUERY), batches(["N1"]))
    assert sum(batch.num_rows for batch in result) == 1
    return result


def in_log(folder: Path, version: int) -> tuple[dict[str, dict[bytes, bytes]], Counter[str], Counter[str]]:
    """Return the state at a version, and how many of its changes put a key, and removed one, by store."""
    log = VersionLog.open(folder / "state").partition(0)
    state: dict[str, dict[bytes, bytes]] = {name: {} for name in KINDS}
    updated: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    for number in range(version + 1):
        [piece] = log.restore(None if number == 0 else number - 1, number)
        for name, is_mark, key, value in piece.records:
            if is_mark:
                continue
            was_there = state[name].pop(key, None) is not None
            if value is not None:
                state[name][key] = value
            if number == version:
                updated[name] += value is not None
                removed[name] += value is None and was_there
    return state, updated, removed


def check(folder: Path, result: BatchResult, version: int) -> None:
    state, updated, removed = in_log(folder, version)
    assert result.version.figures == {
        name: {
            "rows_updated": updated[name],
            "rows_removed": removed[name],
            "keys": len(pairs),
            "state_bytes": sum(len(key) + len(value) for key, value in pairs.items()),
        }
        for name, pairs in state.items()
    }
    sums = [sum(updated.values()), sum(removed.values()), sum(map(len, state.values()))]
    assert figures_of(result.version, 7)[:4] == [0, *sums]
    assert figures_of(result.version, 7)[5:] == [result.version.restored, 7]


@pytest.mark.parametrize("backend", ["rocksdb", "rocksdb-dual-store", "lmdb-native", "sqlite-native", "memory"])
def test_figures_equal_a_count_of_the_log_after_failures_repeats_and_restores(tmp_path: Path, backend: str) -> None:
    def fails(rows: Rows, context: Context) -> Iterator[tuple[str, int]]:
        yield from process(rows, context)
        raise ZeroDivisionError

    query_plan = given(tmp_path, backend, retention=Retention())
    for number in range(6):
        if number == 2:
            with pytest.raises(ZeroDivisionError):
                compute(replace(query_plan, process=fails), number)
        if number == 4:
            close_all()
            shutil.rmtree(tmp_path / "local", ignore_errors=True)
        result = compute(query_plan, number)
        check(tmp_path, result, number)
        again = compute(replace(query_plan, process=fails), number)
        assert (again.version, again.commit_ms) == (result.version, 0)
        expected = number if number == 4 or (number == 2 and backend == "memory") else 0
        assert result.version.restored == expected
        assert (result.version.previous_commit_ms is None) == (number in (0, 2, 4))
    assert sum(in_log(tmp_path, 5)[2].values()) > 0


def test_figures_are_the_same_if_few_sizes_of_what_was_read_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_state, "SIZES_MAX", 2)
    for number in range(4):
        check(tmp_path, compute(given(tmp_path, "rocksdb", retention=Retention()), number), number)


def test_sizes_are_kept_of_keys_that_are_read_before_their_change_and_of_no_others(tmp_path: Path) -> None:
    with StoreConfig("memory").open(tmp_path / "store") as inner:
        inner.put_many({b"a": b"12", b"b": b""})
        inner.commit()
        store = RecordingStore(inner)
        assert (store.get(b"a"), store.get_many([b"b", b"c"])) == (b"12", [b"", None])
        store.put_many({b"a": b"123", b"d": b""})
        assert (store.get(b"d"), store.get_many([b"a", b"e"])) == (b"", [b"123", None])
        assert store.take_sizes() == {b"a": 2, b"b": 0, b"c": ABSENT, b"e": ABSENT}
        assert store.take_sizes() == {}


def test_a_row_with_figures_follows_the_rows_also_where_columns_may_not_be_null() -> None:
    inner = pa.struct([pa.field("x", pa.binary(), nullable=False), pa.field("y", pa.int8())])
    fields = {
        "text": pa.string(),
        "flag": pa.bool_(),
        "number": pa.float32(),
        "money": pa.decimal128(9, 2),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "list": pa.list_(pa.int8()),
        "map": pa.map_(pa.string(), pa.int8()),
        "inner": inner,
    }
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])
    whole = schema.append(pa.field("other", pa.string())).append(pa.field(FIGURES_COLUMN, pa.list_(pa.int64())))
    [batch] = with_figures(iter(()), whole, [1, 2, 3])
    assert batch.schema == whole
    batch.validate(full=True)
    [row] = batch.to_pylist()
    assert {name for name, value in row.items() if value is None} == {"other"}
    assert row[FIGURES_COLUMN] == [1, 2, 3]


def test_both_commands_show_the_figures_of_the_newest_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = {"partitions": 2, "stores": {name: {"kind": name} for name in KINDS}}
    query_plan = given(tmp_path, "rocksdb", description=described, retention=Retention())
    for number in range(3):
        compute(query_plan, number)
    state, updated, _ = in_log(tmp_path, 2)
    for command in (main, shell):
        assert command(["inspect", "--json", str(tmp_path / "state")]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert {each["store"]: each["keys"] for each in facts["stores"]} == {n: len(of) for n, of in state.items()}
        assert facts["partitions"][0]["keys"] == sum(map(len, state.values()))
        assert facts["partitions"][0]["rows_updated"] == sum(updated.values())
        assert facts["partitions"][0]["commit_ms"] >= 0
        assert "keys" not in facts["partitions"][1]
        assert command(["inspect", str(tmp_path / "state")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"keys {len(state['named'])}" in next(line for line in lines if line.startswith("store named"))
    assert shell(["inspect", "--tables", str(tmp_path / "state")]) == 2
