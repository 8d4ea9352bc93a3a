"""Windows and sessions with headers over every backend, and stores that become such by being opened as one.

Source: KIP-1271, ``TimestampedWindowStoreWithHeaders``, ``SessionStoreWithHeaders``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, SerdeMismatchError, StoreIncompatibleError
from stores.changelog.interface import Record
from stores.records import BYTES, STR, Session, ValueTimestampHeaders, Window, Windowed
from stores.records.segment_values import OLD_SEGMENTS, preparable
from stores.records.segments import packed
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ROLLED_BACK, carries
from stores.tests.conformance.test_headers import HEADERS, REFUSED, Reopen, raw

pytestmark = pytest.mark.typed

SIZE, GAP, SEGMENT = 10, 5, 100
SHARED: dict[str, Any] = {"retention_ms": 1_000, "segment_ms": SEGMENT}
DAMAGED = [b"\x40" + bytes(7) + b"\x02", b"\x40" + bytes(7) + b"\x04\x02\x02value", b"\x40", b""]
"""Stored values whose headers or time can't be read."""


@dataclass(frozen=True)
class Kind:
    """A kind of store, with its calls. A place is a key and a window, or session, that begins at a time."""

    description: Any
    place: Callable[[Any, int], Any]
    put: Callable[..., None]
    get: Callable[[Any, Any], Any]
    change: Callable[..., Any]
    """Stages ``fn`` of the value at a key and time, None without one."""
    scans: Callable[[Any, Any], Iterator[Any]]
    """The values of a key, by each way to scan."""

    def over(self, store: KeyValueStore, **settings: Any) -> Any:
        return self.described(**settings).over(store)

    def described(self, **settings: Any) -> Any:
        return replace(self.description, **{"headers": True, **settings})


def scans_of_windows(reader: Any, key: Any) -> Iterator[Any]:
    yield from (reader.fetch(key, 0, 999), reversed([*reader.backward_fetch(key, 0, 999)]))
    yield from (reader.fetch_range(key, key, 0, 999), reversed([*reader.backward_fetch_range(key, key, 0, 999)]))
    yield from (reader.fetch_all(0, 999), reversed([*reader.backward_fetch_all(0, 999)]))
    yield from (reader.all(), reversed([*reader.backward_all()]), *reader.fetch_many([(key, 0, 999)]))


def scans_of_sessions(reader: Any, key: Any) -> Iterator[Any]:
    yield from (reader.fetch(key), reversed([*reader.backward_fetch(key)]), *reader.fetch_many([key]))
    yield from (reader.find_sessions(key, 0, 999), reversed([*reader.backward_find_sessions(key, 0, 999)]))
    yield from (reader.fetch_range(key, key), reversed([*reader.backward_fetch_range(key, key)]))
    yield from (reader.find_sessions_range(key, key, 0, 999), *reader.find_sessions_many([(key, 0, 999)]))


KINDS = {
    "window": Kind(
        Window(STR, STR, size_ms=SIZE, **SHARED),
        place=lambda key, at: (key, at),
        put=lambda store, place, value, *more: store.put(place[0], value, place[1], *more),
        get=lambda reader, place: reader.fetch_one(*place),
        change=lambda store, key, at, fn, **more: store.update(key, at, fn, **more),
        scans=scans_of_windows,
    ),
    "session": Kind(
        Session(STR, STR, **SHARED),
        place=lambda key, at: Windowed(key, at, at),
        put=lambda store, place, value, *more: store.put(place, value, *more),
        get=lambda reader, place: reader.fetch_session(*place),
        change=lambda store, key, at, fn, **more: store.merge(
            key, at, GAP, lambda values: fn(values[0] if values else None), **more
        ),
        scans=scans_of_sessions,
    ),
}
over_each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
OF_BYTES: dict[str, Any] = {"key": BYTES, "value": BYTES}


def shown(store: Any, value: Any, timestamp_ms: int, headers: Any = ()) -> Any:
    """Return the value that ``store`` shows after such a put: one of plain values keeps nothing else."""
    keeps = store.store.timestamps.are_kept
    return ValueTimestampHeaders(value, timestamp_ms if keeps else -1, headers if keeps else ())


def readers(store: Any) -> list[Any]:
    return [store, store.read_only(IsolationLevel.READ_UNCOMMITTED)]


@over_each_kind
def test_a_value_comes_back_with_its_time_and_headers(kind: Kind, store: KeyValueStore, reopen: Reopen) -> None:
    headed = kind.over(store)
    places = [kind.place("k", at) for at in (0, 20, 40, 300)]
    kind.put(headed, places[1], "two", 20, HEADERS)
    kind.put(headed, places[0], "one", 10)
    kind.put(headed, places[3], "")
    kind.put(headed, places[2], "three", 0, HEADERS[:1])
    values = [
        shown(headed, "one", 10),
        shown(headed, "two", 20, HEADERS),
        shown(headed, "three", 0, HEADERS[:1]),
        shown(headed, "", -1),
    ]
    for _ in range(2):
        for reader in readers(headed):
            assert [kind.get(reader, place) for place in places] == values
            assert reader.get_many([*places, kind.place("k", 50)]) == [*values, None]
            assert [[value for _, value in scan] for scan in kind.scans(reader, "k")] == [values] * len(
                list(kind.scans(reader, "k"))
            )
        headed.commit()
    with headed.read_only().snapshot() as snapshot:
        kind.put(headed, places[1], "two", 20, HEADERS[1:])
        if carries(store, ROLLED_BACK):
            headed.rollback()
            assert kind.get(headed, places[1]) == values[1]
        headed.commit()
        assert kind.get(snapshot, places[1]) == values[1]
    if store.persistent:
        before = [kind.get(headed, place) for place in places]
        again = kind.over(reopen())
        assert [kind.get(again, place) for place in places] == before


@over_each_kind
def test_every_write_of_a_value_takes_headers_and_one_without_leaves_none(kind: Kind, store: KeyValueStore) -> None:
    headed = kind.over(store)
    place, other = kind.place("a", 10), kind.place("b", 20)
    kind.change(headed, "a", 10, lambda value: f"{value}", headers=HEADERS)
    assert kind.get(headed, place) == shown(headed, "None", 10, HEADERS)
    kind.change(headed, "a", 10, lambda value: f"{value}!", headers=HEADERS[1:])
    assert kind.get(headed, place) == shown(headed, "None!", 10, HEADERS[1:])
    kind.change(headed, "a", 10, lambda value: f"{value}!")
    assert kind.get(headed, place) == shown(headed, "None!!", 10)
    headed.put_many({place: "1", other: "2"}, [5, 6], [HEADERS, ()])
    assert headed.get_many([place, other]) == [shown(headed, "1", 5, HEADERS), shown(headed, "2", 6)]
    headed.put_many([(place, "3"), (other, "4"), (place, "5")], headers=[(), HEADERS, HEADERS[:2]])
    assert headed.get_many([place, other]) == [shown(headed, "5", -1, HEADERS[:2]), shown(headed, "4", -1, HEADERS)]
    headed.put_many([(place, "6")], [7])
    kind.put(headed, other, None, 8, HEADERS)
    assert headed.get_many([place, other]) == [shown(headed, "6", 7), None]
    kind.put(headed, place, "7", None, list(HEADERS))
    assert kind.get(headed, place) == shown(headed, "7", -1, HEADERS)
    with pytest.raises((TypeError, ValueError)):
        headed.put_many([(place, "8"), (other, "9")], headers=[()])
    with pytest.raises(TypeError):
        headed.put_many([(place, "8")], headers=5)
    headed.delete_many([place, other])
    assert headed.get_many([place, other]) == [None, None]


@over_each_kind
@pytest.mark.parametrize("refused", [*REFUSED, HEADERS], ids=repr)
def test_headers_that_are_refused_stage_nothing(kind: Kind, store: KeyValueStore, refused: Any) -> None:
    """A store without headers refuses any: they would be lost."""
    headed = kind.over(store, headers=refused is not HEADERS, timestamped=True)
    place, other = kind.place("a", 10), kind.place("b", 20)
    writes: list[Callable[[], object]] = [
        lambda: kind.put(headed, place, "one", 1, refused),
        lambda: kind.put(headed, place, None, 1, refused),
        lambda: kind.change(headed, "a", 10, str, headers=refused),
        lambda: headed.put_many([(other, "two"), (place, "one")], [1, 1], [(), refused]),
    ]
    for write in writes:
        with pytest.raises((TypeError, ValueError)):
            write()
    assert list(next(kind.scans(headed, "a"))) == list(next(kind.scans(headed, "b"))) == []
    assert headed.store.approximate_num_uncommitted_bytes() == 0
    kind.put(headed, place, "one", 1, ())
    headed.put_many([(other, "two")], [1], [[]])
    assert [value.value for value in headed.get_many([place, other])] == ["one", "two"]


@over_each_kind
def test_a_value_is_stored_as_in_a_timestamped_store_and_headers_lie_before_it(
    kind: Kind, store: KeyValueStore
) -> None:
    headed = kind.over(store, **OF_BYTES)
    if not store.timestamps.are_kept:
        return
    kind.put(headed, kind.place(b"k", 10), b"v", 7, (("a", b"xy"), ("bc", None)))
    headed.put_many([(kind.place(b"k", 20), b"w")], [256])
    assert [value for key, value in sorted(raw(headed).items()) if key < packed(1)] == [
        b"\x40" + bytes(6) + b"\x07" + b"\x14" + b"\x04\x02a\x04xy\x04bc\x01" + b"v",
        bytes(6) + b"\x01\x00" + b"w",
    ]


@over_each_kind
@pytest.mark.parametrize("damaged", DAMAGED, ids=bytes.hex)
def test_bytes_whose_headers_cannot_be_read_name_their_key(kind: Kind, store: KeyValueStore, damaged: bytes) -> None:
    headed, place = kind.over(store), kind.place("key", 10)
    if not store.timestamps.are_kept:
        return  # Any bytes are a plain value there.
    kind.put(headed, place, "one", 1)
    [key] = [key for key in raw(headed) if key < packed(1)]
    store.put(key, damaged)
    for reader in readers(headed):
        reads: list[Callable[[], object]] = [
            lambda reader=reader: kind.get(reader, place),  # type: ignore[misc]
            lambda reader=reader: reader.get_many([place]),  # type: ignore[misc]
            lambda reader=reader: [list(scan) for scan in kind.scans(reader, "key")],  # type: ignore[misc]
        ]
        for read in reads:
            with pytest.raises(SerdeMismatchError) as error:
                read()
            assert "key" in str(error.value)


@over_each_kind
@pytest.mark.parametrize("timestamped", [False, True])
def test_a_store_becomes_one_with_headers_and_no_record_changes(
    kind: Kind, store: KeyValueStore, reopen: Reopen, timestamped: bool
) -> None:
    """Segments of a plain store stay plain until they expire, those of a timestamped one take headers at once."""
    before = kind.over(store, headers=False, timestamped=timestamped)
    kind.put(before, kind.place("k", 10), "old", 10)
    before.commit()
    stored = raw(before)
    again = reopen() if store.persistent else store
    headed = kind.over(again)
    if again.keeps_marks:
        assert raw(headed) == stored
    assert (preparable(again).mark(OLD_SEGMENTS) is None) is (timestamped or not again.timestamps.are_kept)
    kind.put(headed, kind.place("k", 30), "same segment", 30, HEADERS)
    kind.put(headed, kind.place("k", 300), "new segment", 31, HEADERS)
    old = shown(headed, "old", 10) if timestamped else ValueTimestampHeaders("old", -1, ())
    same = shown(headed, "same segment", 30, HEADERS) if timestamped else ValueTimestampHeaders("same segment", -1, ())
    expected = [old, same, shown(headed, "new segment", 31, HEADERS)]
    headed.commit()
    for reader in readers(headed):
        for scan in kind.scans(reader, "k"):
            assert [value for _, value in scan] == expected
        assert reader.get_many([kind.place("k", at) for at in (10, 30, 300)]) == expected
    stored = raw(headed)
    for settings in ({"headers": False}, {"headers": False, "timestamped": True}, {"value": BYTES}):
        with pytest.raises(StoreIncompatibleError):
            kind.over(again, **settings)
        assert raw(headed) == stored
    again = reopen() if again.persistent else again
    assert [value for _, value in next(kind.scans(kind.over(again), "k"))] == expected


@over_each_kind
def test_other_segments_keep_the_headers_and_expiry_drops_them(kind: Kind, case: Case, store: KeyValueStore) -> None:
    headed = kind.over(store)
    for at in (10, 150, 420):
        kind.put(headed, kind.place("k", at), f"{at}", at, HEADERS)
    headed.commit()
    moved = kind.over(store, segment_ms=33, retention_ms=300)
    assert [value for _, value in next(kind.scans(moved, "k"))] == [
        shown(moved, f"{at}", at, HEADERS) for at in (150, 420)
    ]
    for far_ms in (10_000, 20_000):
        kind.put(moved, kind.place("k", far_ms), "far", far_ms, HEADERS)
        moved.commit()
    assert sum(key < packed(1 << 62) for key in raw(moved)) == 1


@over_each_kind
@pytest.mark.parametrize("headers", [True, False])
def test_what_is_restored_is_what_was_put(kind: Kind, store: KeyValueStore, headers: bool) -> None:
    """A store without headers leaves those of the records out."""
    described = kind.described(**OF_BYTES, headers=headers, timestamped=True)
    headed = described.over(store)
    converter = described.converter(store)
    more = (HEADERS,) if headers else ()
    kind.put(headed, kind.place(b"k", 10), b"one", 1, *more)
    kind.put(headed, kind.place(b"k", 20), b"two", 2)
    logged = [described.keys.logged(b"k", *kind.place(b"k", at)[1:]) for at in (10, 20)]
    records = [Record(0, logged[0], b"one", 1, HEADERS), Record(1, logged[1], b"two", 2)]
    pairs = {key: value for record in records for key, value in converter.convert(record)}
    assert pairs == {**raw(headed), **({} if store.keeps_marks else pairs)}
    assert all(pairs[key] == value for key, value in raw(headed).items())
    [pair, *_] = converter.convert(Record(2, logged[0], None, 4, HEADERS))
    assert pair == (packed(0) + logged[0], None)
    if headers:
        with pytest.raises(StoreIncompatibleError):
            converter.convert(Record(3, logged[0], b"v", 1 << 62))
