"""Marks and records of a typed store that another program wrote, or that are damaged: the store works, or names what is
wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.errors import SerdeMismatchError, StoreCorruptedError, StoreError
from stores.interface import KeyValueStore
from stores.records import (
    INT64,
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
from stores.records.expiry import CURSOR, STREAM_TIME
from stores.records.record_kind import RECORDS, RecordKind
from stores.records.segment_values import DROPPED, OLD_SEGMENTS, SEQUENCE
from stores.records.timestamped import TimestampedKind
from stores.records.version_history import COMPLETE_FROM
from stores.records.versions import LATEST
from stores.registry import open_store
from stores.shell.decoding import Decoder
from stores.tests.json_values import JSON_VALUES

KINDS: dict[str, RecordKind] = {
    "key-value": KeyValue(STR, INT64),
    "timestamped": TimestampedKeyValue(STR, INT64),
    "expiring": TimestampedKeyValue(STR, INT64, ttl_ms=1_000),
    "headers": TimestampedKeyValueWithHeaders(STR, INT64, ttl_ms=1_000),
    "versioned": Versioned(STR, INT64, history_retention_ms=1_000),
    "versioned with headers": VersionedWithHeaders(STR, INT64, history_retention_ms=1_000),
    "window": Window(STR, INT64, size_ms=10, retention_ms=1_000),
    "duplicates": Window(STR, INT64, size_ms=10, retention_ms=1_000, retain_duplicates=True),
    "session": Session(STR, INT64, retention_ms=1_000),
    "timestamped window": Window(STR, INT64, size_ms=10, retention_ms=1_000, timestamped=True),
    "timestamped session": Session(STR, INT64, retention_ms=1_000, timestamped=True),
    "window with headers": Window(STR, INT64, size_ms=10, retention_ms=1_000, headers=True),
    "session with headers": Session(STR, INT64, retention_ms=1_000, headers=True),
}
NUMBERS = (STREAM_TIME, SEQUENCE, DROPPED, OLD_SEGMENTS, CURSOR, COMPLETE_FROM)


def use(kind: RecordKind, plain: KeyValueStore) -> None:
    """Put, look up, scan and commit."""
    store: Any = kind.over(plain)
    if isinstance(kind, Session):
        store.put(Windowed("a", 20, 30), 1)
        list(store.fetch("a"))
    elif isinstance(kind, Window):
        store.put("a", 1, 20)
        list(store.fetch("a", 0, 50))
    elif isinstance(kind, Versioned | VersionedWithHeaders):
        store.put("a", 1, 20)
        list(store.get_versions("a"))
        store.get("a", 10)
    elif isinstance(kind, TimestampedKind):
        store.put("a", 1, 20)
        store.get_many(["a", "b"])
    else:
        store.put("a", 1)
    if not isinstance(kind, Session):
        list(store.all())
    store.commit()


def try_with(kind: RecordKind, marks: dict[str, bytes]) -> None:
    """Make a store with a record, give it ``marks``, and use it again. Only errors of the library may come."""
    with open_store("memory", "unused") as plain:
        use(kind, plain)
        plain.restore([], {}, marks=marks)
        try:
            use(kind, plain)
            Decoder("s", {RECORDS: plain.mark(RECORDS) or b"", **marks}, "str", None)
        except StoreError as error:
            assert len(str(error)) < 2_000


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_a_description_of_any_bytes_and_structure_is_read_or_refused(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    own = kind._whole_description()
    changed = st.fixed_dictionaries({each: JSON_VALUES | st.just(value) for each, value in own.items()})
    mark = data.draw(
        st.binary(max_size=20)
        | JSON_VALUES.map(lambda value: json.dumps(value).encode())
        | changed.map(lambda value: json.dumps(value).encode())
        | st.sets(st.sampled_from(sorted(own))).map(
            lambda left_out: json.dumps({each: own[each] for each in own if each not in left_out}).encode()
        )
    )
    try_with(kind, {RECORDS: mark})


@pytest.mark.parametrize("name", ["versioned", "versioned with headers"])
@pytest.mark.parametrize("retention_ms", [-1, 1 << 62, -(1 << 64), None, 1.5, "1"])
def test_a_retention_that_no_store_can_have_is_damage(name: str, retention_ms: object) -> None:
    kind = KINDS[name]
    with open_store("memory", "unused", name="counts") as plain:
        use(kind, plain)
        mark = json.dumps({**kind._whole_description(), "history_retention_ms": retention_ms}).encode()
        plain.restore([], {}, marks={RECORDS: mark})
        with pytest.raises(StoreCorruptedError, match="counts"):
            kind.over(plain)


@pytest.mark.parametrize("name", KINDS)
@given(mark=st.binary(max_size=20), which=st.sampled_from(NUMBERS))
def test_a_number_of_any_bytes_is_read_or_refused(name: str, mark: bytes, which: str) -> None:
    try_with(KINDS[name], {which: mark})


@pytest.mark.parametrize(
    ("which", "mark"),
    [(STREAM_TIME, b"?"), (SEQUENCE, b"?"), (RECORDS, b"?"), (RECORDS, b"[" * 30_000), (RECORDS, b'{"kind": 1}')],
    ids=["stream time", "sequence", "no JSON", "deep JSON", "another structure"],
)
def test_a_mark_that_can_t_be_read_is_named_with_its_store_when_it_is_opened(which: str, mark: bytes) -> None:
    with open_store("memory", "unused", name="counts") as plain:
        use(KINDS["duplicates"], plain)
        plain.restore([], {}, marks={which: mark})
        with pytest.raises(StoreCorruptedError, match="'counts' can't be read: wipe the store and restore it"):
            KINDS["duplicates"].over(plain)


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_records_of_any_bytes_are_read_or_refused(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    with open_store("memory", "unused") as plain:
        use(kind, plain)
        with plain.all() as pairs:
            [own] = [key for key, _ in pairs]
        keys = st.binary(min_size=1, max_size=30) | st.integers(1, len(own)).map(lambda length: own[:length])
        plain.restore(data.draw(st.lists(st.tuples(keys, st.binary(max_size=20)), min_size=1, max_size=3)), {})
        with suppress(StoreError):
            use(kind, plain)


def test_a_time_to_live_that_can_t_be_read_is_damage_and_not_another_setting() -> None:
    with open_store("memory", "unused") as plain:
        use(KINDS["expiring"], plain)
        mark = plain.mark(RECORDS)
        assert mark is not None
        plain.restore([], {}, marks={RECORDS: mark.replace(b'"ttl_ms":1000', b'"ttl_ms":"1"')})
        with pytest.raises(StoreCorruptedError):
            KINDS["expiring"].over(plain)


def test_a_value_without_its_time_is_named_and_does_not_stop_the_expiry_of_others() -> None:
    kind = TimestampedKeyValue(STR, INT64, ttl_ms=1_000)
    with open_store("memory", "unused") as plain:
        store: Any = kind.over(plain)
        store.put("b", 1, 20)
        store.commit()
        plain.restore([(b"a", b"short")], {})
        for _ in range(3):
            store.put("c", 1, 5_000)
            store.commit()
        assert plain.get(b"b") is None
        for read in (lambda: store.get("a"), lambda: store.get_many(["a"]), lambda: list(store.all())):
            with pytest.raises(SerdeMismatchError, match="a"):
                read()


@pytest.mark.parametrize("kind", ["window", "session"])
def test_a_value_of_a_window_or_session_without_its_time_is_named(kind: str) -> None:
    """The value's own serde takes any bytes, and names nothing."""
    with open_store("memory", "unused") as plain:
        if kind == "window":
            store: Any = Window(STR, STR, size_ms=10, retention_ms=1_000, timestamped=True).over(plain)
            store.put("a", "b", 20)
            reads: Any = (lambda: store.fetch_one("a", 20), lambda: list(store.fetch("a", 0, 50)))
        else:
            store = Session(STR, STR, retention_ms=1_000, timestamped=True).over(plain)
            store.put(Windowed("a", 20, 30), "b")
            reads = (lambda: store.fetch_session("a", 20, 30), lambda: list(store.fetch("a")))
        store.commit()
        with plain.all() as pairs:
            [own] = [key for key, _ in pairs]
        plain.restore([(own, b"short")], {})
        for read in reads:
            with pytest.raises(SerdeMismatchError, match="of timestamps"):
                read()


def test_a_late_version_names_the_latest_one_if_its_headers_cannot_be_read() -> None:
    """That one is logged again."""
    with open_store("memory-indexed-batch", "unused") as store, Versioned(STR, INT64, 1_000).over(store) as versions:
        versions.put("key", 1, 7)
        store.put(LATEST + b"key", b"\x40" + bytes(6) + b"\7\2")
        with pytest.raises(StoreCorruptedError, match="key"):
            versions.put("key", 2, 3)
