"""The state as rows, and the command that looks at it: what the log has at a version, in all partitions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.changelog.files import StoreChanges, VersionLog
from stores.config import StoreConfig
from stores.errors import ChangelogError, OffsetOutOfRangeError, SerdeMismatchError, StoreError
from stores.records import (
    BYTES,
    FLOAT64,
    INT64,
    JSON,
    STR,
    KeyValue,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    VersionedWithHeaders,
    Window,
    Windowed,
)
from stores.records.expiry import STREAM_TIME
from stores.records.record_kind import RecordKind
from stores.spark.__main__ import main
from stores.spark.arguments import description_of
from stores.spark.context import TIMES, Context
from stores.spark.local_state import TTL
from stores.spark.plan import Plan
from stores.spark.rows import Rows
from stores.spark.sources import rows_of
from stores.tests.spark.counting import compute, plan

KINDS: dict[str, RecordKind | None] = {
    "bytes": None,
    "floats": KeyValue(key=BYTES, value=FLOAT64),
    "headed": TimestampedKeyValueWithHeaders(key=STR, value=JSON),
    "headed windows": Window(key=STR, value=INT64, size_ms=10, retention_ms=1000, headers=True),
    "named": TimestampedKeyValue(key=STR, value=JSON),
    "sessions": Session(key=STR, value=INT64, retention_ms=1000),
    "sources": VersionedWithHeaders(key=STR, value=INT64, history_retention_ms=1000),
    "versions": Versioned(key=STR, value=INT64, history_retention_ms=1000),
    "windows": Window(key=STR, value=INT64, size_ms=10, retention_ms=1000, timestamped=True),
}


def process(rows: Rows, context: Context) -> Iterator[Any]:
    if context.version == 2:
        context.store("bytes").put(b"\x01", None)
        return
    context.store("bytes").put(b"\x01", b"\x02")
    context.store("floats").put(b"\x01", context.version + 0.5)
    context.store("headed").put("a", [1], 2000, (("trace", b"x"), ("none", None)))
    context.store("headed windows").put("a", 7, 20, 25, (("trace", b"x"), ("none", None)))
    context.store("named").put("a", {"b": [1]}, 3000)
    context.store("sessions").put(Windowed("a\x00", 1000, 3000), -5)
    context.store("sources").put("a", 9, 2500, (("trace", b"x"), ("none", None)))
    context.store("versions").put_many(["a\x00"] * 3, [context.version, 8, None], [2000, 2500, 1500])
    context.store("windows").put("a\x00", 7, 20, 25)
    yield "N1", 1


def state(folder: Path) -> VersionLog:
    stores = {name: StoreConfig("lmdb", records=kind) for name, kind in KINDS.items()}
    described = {
        name: {"kind": "bytes"} if kind is None else {"kind": kind.kind, **kind.description()}
        for name, kind in KINDS.items()
    }
    VersionLog.open_or_create(folder / "state", {"partitions": 2})
    log = VersionLog.open(folder / "state")
    query_plan = plan(folder, process, stores=stores)
    for version in range(3):
        compute(query_plan, version, ["N1"])
    return VersionLog(log._folder, log.id, {"partitions": 2, "stores": described}, log._retention)


def time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def test_each_kind_of_store_has_rows_with_its_key_value_and_times(tmp_path: Path) -> None:
    rows = [row[1:] for row in rows_of(state(tmp_path), 0, 1)]
    assert rows == [
        ("bytes", "01", "02", None, None, None),
        ("floats", "01", "1.5", None, None, None),
        ("headed", "a", "[1]", time(2000), None, None),
        ("headed windows", "a", "7", time(25), time(20), time(30)),
        ("named", "a", json.dumps({"b": [1]}), time(3000), None, None),
        ("sessions", "a\x00", "-5", None, time(1000), time(3000)),
        ("sources", "a", "9", time(2500), None, None),
        ("versions", "a\x00", "8", time(2500), None, None),
        ("versions", "a\x00", None, time(1500), None, None),
        ("versions", "a\x00", "1", time(2000), None, None),
        ("windows", "a\x00", "7", time(25), time(20), time(30)),
    ]


def test_rows_are_those_of_the_version_and_the_store_that_are_asked_for(tmp_path: Path) -> None:
    log = state(tmp_path)
    assert [row[3] for row in rows_of(log, 0, 0, "floats")] == ["0.5"]
    assert [row[3] for row in rows_of(log, 0, 2, "floats")] == ["1.5"]
    assert list(rows_of(log, 0, 2, "bytes")) == []
    with pytest.raises(OffsetOutOfRangeError):
        list(rows_of(log, 0, 3))
    with pytest.raises(OffsetOutOfRangeError):
        list(rows_of(log, 1, 0))


def test_bytes_of_another_type_are_an_error_of_ours(tmp_path: Path) -> None:
    log = state(tmp_path)
    wrong = {"partitions": 2, "stores": {**log.description["stores"], "bytes": {"kind": "key-value", "value": "int64"}}}  # type: ignore[dict-item]
    with pytest.raises(SerdeMismatchError):
        list(rows_of(VersionLog(log._folder, log.id, wrong, log._retention), 0, 1))


def version_of(kind: object, pairs: Mapping[bytes, bytes], marks: Mapping[str, bytes]) -> Any:
    """A log with one version of one store, as a file of another program may have it."""
    piece = SimpleNamespace(fresh=True, changes={"s": StoreChanges({**pairs}, {**marks})})
    partition = SimpleNamespace(restore=lambda reached, version: [piece])
    return SimpleNamespace(location="f", description={"stores": {"s": kind}}, partition=lambda number: partition)


ANY_JSON = st.none() | st.booleans() | st.integers(-1, 9) | st.text(max_size=3) | st.lists(st.none(), max_size=1)
DESCRIPTIONS = [
    description_of(name, StoreConfig("lmdb", records=kind)) for name, kind in {**KINDS, TIMES: None}.items()
]


@given(data=st.data())
def test_a_version_of_any_bytes_and_description_has_rows_or_an_error_of_ours(data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(DESCRIPTIONS))
    changed = st.fixed_dictionaries({}, optional={name: st.just(value) | ANY_JSON for name, value in own.items()})
    kind = data.draw(st.just(own) | changed | ANY_JSON)
    names = st.sampled_from((STREAM_TIME, TTL))
    pairs = data.draw(st.dictionaries(st.binary(min_size=1, max_size=30), st.binary(max_size=12), min_size=1))
    marks = data.draw(st.dictionaries(names, st.binary(max_size=9)))
    with suppress(StoreError):
        list(rows_of(version_of(kind, pairs, marks), 0, 1))


@pytest.mark.parametrize("kind", [None, 5, [], {}, {"kind": 5}, {"kind": "window"}, {"kind": "bytes", "key": []}])
def test_a_store_with_another_description_than_the_library_writes_is_named(kind: object) -> None:
    with pytest.raises(ChangelogError, match="'s'"):
        list(rows_of(version_of(kind, {b"k": b"v"}, {}), 0, 1))


def test_inspect_prints_versions_and_refuses_a_folder_without_a_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state(tmp_path)
    assert main(["inspect", str(tmp_path / "state")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "none" in lines[0]
    assert [line.split()[:4] for line in lines[-2:]] == [["0", "0", "2", "0"], ["1", "none", "none", "3"]]
    assert main(["inspect", str(tmp_path / "local")]) == 2
    process = subprocess.run(
        [sys.executable, "-m", "stores.spark", "inspect", str(tmp_path / "none")], capture_output=True, check=False
    )
    assert process.returncode == 2
    assert b"Traceback" not in process.stderr


def expiring(ttl_ms: int | None) -> dict[str, RecordKind]:
    return {
        "sessions": Session(key=STR, value=INT64, retention_ms=100),
        "timed": TimestampedKeyValue(key=STR, value=INT64, ttl_ms=ttl_ms),
        "windows": Window(key=STR, value=INT64, size_ms=10, retention_ms=100),
    }


def test_records_that_have_expired_at_the_stream_time_of_the_version_are_not_shown(tmp_path: Path) -> None:
    times_ms = (10, 60, 110)

    def process(rows: Rows, context: Context) -> None:
        if context.version < len(times_ms):
            time_ms, name = times_ms[context.version], f"{9 - context.version}"
            context.store("sessions").put(Windowed(name, time_ms, time_ms), 1)
            context.store("timed").put(name, 1, time_ms)
            context.store("windows").put(name, 1, time_ms)

    def given(ttl_ms: int | None) -> Plan:
        stores = {name: StoreConfig("lmdb", records=kind) for name, kind in expiring(ttl_ms).items()}
        return plan(tmp_path, process, stores=stores, stores_id=str(ttl_ms))

    for version in range(3):
        compute(given(100), version, ["N1"])
    compute(given(None), 3, ["N1"])
    described = {name: {"kind": kind.kind, **kind.description()} for name, kind in expiring(None).items()}
    opened = VersionLog.open(tmp_path / "state")
    log = VersionLog(opened._folder, opened.id, {"partitions": 2, "stores": described}, opened._retention)

    def keys(version: int) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in described}
        for _, store, key, *_ in rows_of(log, 0, version):
            found[store].append(key)
        return found

    keys_by_version = {version: keys(version) for version in (1, 2, 3)}
    for name in described:
        assert keys_by_version[1][name] == ["8", "9"]
        assert keys_by_version[2][name] == ["7", "8"]
        assert keys_by_version[3][name] == (["7", "8", "9"] if name == "timed" else ["7", "8"])
    in_log = dict.fromkeys(described, 0)
    for piece in log.partition(0).restore(None, 2):
        for name, is_mark, _, value in piece.records:
            in_log[name] += not is_mark and (1 if value is not None else -1)
    assert in_log == dict.fromkeys(described, 3)
