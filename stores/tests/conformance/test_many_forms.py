"""``put_many``, ``get_many`` and ``delete_many`` keep what ``put``, ``get`` and ``delete`` promise, in every kind.

One table of kinds, and each case of it in both forms: record by record, and all records in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, NotUpToBoundError, PositionBound, StoreClosedError, TopicPartition, WrongThreadError
from stores.errors import SerdeMismatchError
from stores.records import (
    INT64,
    STR,
    KeyValue,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    VersionedWithHeaders,
    Window,
    Windowed,
)
from stores.tests.conformance.cases import Case

pytestmark = pytest.mark.typed

INPUT = TopicPartition("input", 0)
BEYOND = PositionBound({INPUT: 9})
SEGMENTS: Mapping[str, Any] = {"retention_ms": 100, "segment_ms": 20}
Record = tuple[Any, Any, int]
"""A key, window or session, its value, and its time."""


@dataclass(frozen=True)
class Kind:
    """A kind of store, with its calls for one record and for many."""

    name: str
    description: RecordKind | None
    put: Callable[[Any, Any, Any, int], None]
    put_many: Callable[[Any, Sequence[Record]], None]
    get: Callable[[Any, Any], Any]
    delete: Callable[[Any, Any], None]
    place: Callable[[str], Any]
    """The key, window or session for a name."""
    value: Callable[[int], Any] = int
    wrong_values: Sequence[Any] = ("text", 1.5, 2**63)
    wrong_places: Sequence[Any] = ()
    wrong_written: Sequence[Any] = ()
    """Places that writes refuse, and lookups do not."""
    delete_many: Callable[[Any, Sequence[Any]], None] = lambda store, places: store.delete_many(places)

    def __str__(self) -> str:
        return self.name

    def open(self, case: Case, path: Path) -> Any:
        store = case.open(path)
        return store if self.description is None else self.description.over(store)


def put_pairs(store: Any, records: Sequence[Record]) -> None:
    store.put_many([(key, value) for key, value, _ in records])


def put_mapping(store: Any, records: Sequence[Record]) -> None:
    """As a mapping, unless a key is there twice or has no hash."""
    try:
        pairs = {key: value for key, value, _ in records}
    except TypeError:
        pairs = {}
    store.put_many(pairs if len(pairs) == len(records) else [record[:2] for record in records])


def put_columns(store: Any, records: Sequence[Record]) -> None:
    store.put_many([record[0] for record in records], [record[1] for record in records], [at for _, _, at in records])


def put_with_times(store: Any, records: Sequence[Record]) -> None:
    store.put_many([record[:2] for record in records], [at for _, _, at in records])


def put_with_times_and_headers(store: Any, records: Sequence[Record]) -> None:
    pairs, times = [record[:2] for record in records], [at for _, _, at in records]
    store.put_many(pairs, times, [HEADERS] * len(records))


def put_columns_with_headers(store: Any, records: Sequence[Record]) -> None:
    keys, values, times = ([record[place] for record in records] for place in range(3))
    store.put_many(keys, values, times, [HEADERS] * len(keys))


HEADERS = (("trace", b"\x00\xff"), ("none", None))
WRONG_KEYS = [7, None, b"bytes", "\ud800", ["k"]]
KEYED: Mapping[str, Any] = {
    "get": lambda store, key: store.get(key),
    "delete": lambda store, key: store.delete(key),
    "place": str,
    "wrong_places": WRONG_KEYS,
}
WINDOWED: Mapping[str, Any] = {
    "put": lambda store, window, value, at: store.put(window[0], value, window[1], at),
    "put_many": put_with_times,
    "get": lambda store, window: store.fetch_one(*window),
    "delete": lambda store, window: store.put(window[0], None, window[1]),
    "place": lambda name: (name, 10 * (ord(name[0]) - ord("a"))),
    "wrong_places": [*((key, 40) for key in WRONG_KEYS), ("k", "0"), ("k", 2**62), ("k", 1.5)],
}
WINDOWED_WITH_HEADERS: Mapping[str, Any] = {
    **WINDOWED,
    "put": lambda store, window, value, at: store.put(window[0], value, window[1], at, HEADERS),
    "put_many": put_with_times_and_headers,
}
SESSIONS: Mapping[str, Any] = {
    "get": lambda store, session: store.fetch_session(*session),
    "delete": lambda store, session: store.remove(session),
    "place": lambda name: Windowed(name, 3, 10 * (ord(name[0]) - ord("a")) + 5),
    "wrong_places": [Windowed(key, 3, 45) for key in WRONG_KEYS],
    "wrong_written": [("k", 3, 45), Windowed("k", -1, 45), Windowed("k", 46, 45)],
}
KINDS = [
    Kind(
        "bytes",
        None,
        put=lambda store, key, value, at: store.put(key, value),
        put_many=put_mapping,
        **{**KEYED, "place": str.encode, "wrong_places": ["text", 7, None, bytearray(b"k")]},
        value=lambda number: b"%d" % number,
        wrong_values=("text", 7, bytearray(b"v")),
    ),
    Kind(
        "key-value",
        KeyValue(STR, INT64),
        put=lambda store, key, value, at: store.put(key, value),
        put_many=put_pairs,
        **KEYED,
    ),
    Kind(
        "timestamped",
        TimestampedKeyValue(STR, INT64),
        put=lambda store, key, value, at: store.put(key, value, at),
        put_many=put_columns,
        **KEYED,
    ),
    Kind(
        "ttl",
        TimestampedKeyValue(STR, INT64, ttl_ms=100),
        put=lambda store, key, value, at: store.put(key, value, at),
        put_many=put_columns,
        **KEYED,
    ),
    Kind(
        "headers",
        TimestampedKeyValueWithHeaders(STR, INT64),
        put=lambda store, key, value, at: store.put(key, value, at, HEADERS),
        put_many=put_columns_with_headers,
        **KEYED,
    ),
    Kind(
        "headers and ttl",
        TimestampedKeyValueWithHeaders(STR, INT64, ttl_ms=100),
        put=lambda store, key, value, at: store.put(key, value, at, HEADERS),
        put_many=put_columns_with_headers,
        **KEYED,
    ),
    Kind(
        "versioned",
        Versioned(STR, INT64, 100),
        # A deletion has to be later than what it deletes.
        put=lambda store, key, value, at: store.put(key, value, 80 if value is None else at),
        put_many=lambda store, records: put_columns(
            store, [(key, value, 80 if value is None else at) for key, value, at in records]
        ),
        get=lambda store, key: store.get(key),
        delete=lambda store, key: store.delete(key, 90),
        delete_many=lambda store, keys: store.delete_many(keys, [90] * len(keys)),
        place=str,
        wrong_places=WRONG_KEYS,
        wrong_written=[""],
    ),
    Kind(
        "versioned with headers",
        VersionedWithHeaders(STR, INT64, 100),
        put=lambda store, key, value, at: store.put(key, value, 80 if value is None else at, HEADERS),
        put_many=lambda store, records: put_columns_with_headers(
            store, [(key, value, 80 if value is None else at) for key, value, at in records]
        ),
        get=lambda store, key: store.get(key),
        delete=lambda store, key: store.delete(key, 90),
        delete_many=lambda store, keys: store.delete_many(keys, [90] * len(keys)),
        place=str,
        wrong_places=WRONG_KEYS,
        wrong_written=[""],
    ),
    Kind("window", Window(STR, INT64, size_ms=5, **SEGMENTS), **WINDOWED),
    Kind("timestamped window", Window(STR, INT64, size_ms=5, timestamped=True, **SEGMENTS), **WINDOWED),
    Kind("window with headers", Window(STR, INT64, size_ms=5, headers=True, **SEGMENTS), **WINDOWED_WITH_HEADERS),
    Kind("window with duplicates", Window(STR, INT64, size_ms=5, retain_duplicates=True, **SEGMENTS), **WINDOWED),
    Kind(
        "session",
        Session(STR, INT64, timestamped=True, **SEGMENTS),
        put=lambda store, session, value, at: store.put(session, value, at),
        put_many=put_with_times,
        **SESSIONS,
    ),
    Kind(
        "session with headers",
        Session(STR, INT64, headers=True, **SEGMENTS),
        put=lambda store, session, value, at: store.put(session, value, at, HEADERS),
        put_many=put_with_times_and_headers,
        **SESSIONS,
    ),
]
FORMS = ("one by one", "many")
EXPIRING = ("ttl", "headers and ttl", "window", "window with headers", "session")


def write(kind: Kind, form: str, store: Any, records: Sequence[Record]) -> None:
    if form == "many":
        kind.put_many(store, records)
        return
    for record in records:
        kind.put(store, *record)


def read(kind: Kind, form: str, reader: Any, names: Sequence[str]) -> list[Any]:
    places = [kind.place(name) for name in names]
    return list(reader.get_many(places)) if form == "many" else [kind.get(reader, place) for place in places]


def remove(kind: Kind, form: str, store: Any, names: Sequence[str]) -> None:
    places = [kind.place(name) for name in names]
    if form == "many":
        kind.delete_many(store, places)
        return
    for place in places:
        kind.delete(store, place)


def numbers(kind: Kind, values: Sequence[Any]) -> list[Any]:
    """The numbers of what was put, None for a missing one."""
    return [None if value is None else int(getattr(value, "value", value)) for value in values]


def records_of(kind: Kind, **named: int | None) -> list[Record]:
    return [
        (kind.place(name), None if number is None else kind.value(number), 50 if number is None else 50 + number)
        for name, number in named.items()
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_written_is_read_at_each_level_until_the_store_is_closed(
    case: Case, tmp_path: Path, kind: Kind, form: str
) -> None:
    names = ["b", "missing", "a", "c", "b", "f"]
    keeps_all = "duplicates" in kind.name
    with closing(kind.open(case, tmp_path / "s")) as store:
        below = getattr(store, "store", store)
        views = {level: store.read_only(level) for level in IsolationLevel}
        behind = store.read_only(IsolationLevel.READ_UNCOMMITTED, BEYOND)
        write(kind, form, store, records_of(kind, a=1, b=2))
        write(kind, form, store, [*records_of(kind, a=3, f=5), *records_of(kind, f=6)])
        write(kind, form, store, [])
        below.advance_position(INPUT, 3)
        assert numbers(kind, read(kind, form, store, names)) == [2, None, 3, None, 2, 6]
        store.commit()
        snapshot = views[IsolationLevel.READ_COMMITTED].snapshot()
        write(kind, form, store, records_of(kind, b=4, c=5, a=None))
        remove(kind, form, store, ["f", "e"])
        staged = [4, None, 3 if keeps_all else None, 5, 4, 6 if keeps_all else None]
        committed = [2, None, 3, None, 2, 6]
        seen = {
            IsolationLevel.READ_UNCOMMITTED: staged,
            IsolationLevel.READ_COMMITTED: committed if below.transactional else staged,
        }
        with pytest.raises(NotUpToBoundError):
            read(kind, form, behind, names)
        below.advance_position(INPUT, 9)
        assert numbers(kind, read(kind, form, behind, names)) == staged
        for level, view in views.items():
            assert numbers(kind, read(kind, form, view, names)) == seen[level]
        assert numbers(kind, read(kind, form, store, names)) == staged
        with snapshot:
            assert numbers(kind, read(kind, form, snapshot, names)) == committed
            store.commit()
            assert numbers(kind, read(kind, form, snapshot, names)) == committed
        for view in (*views.values(), store):
            assert numbers(kind, read(kind, form, view, names)) == staged
        assert read(kind, form, store, []) == []
    calls: list[Callable[[], object]] = [
        lambda: read(kind, form, store, ["a"]),
        *(partial(read, kind, form, view, ["a"]) for view in (*views.values(), snapshot)),
        lambda: write(kind, form, store, records_of(kind, a=1)),
        lambda: remove(kind, form, store, ["a"]),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_refused_alone_is_refused_among_many_with_the_same_error_and_changes_nothing(
    case: Case, tmp_path: Path, kind: Kind
) -> None:
    with closing(kind.open(case, tmp_path / "s")) as store, ThreadPoolExecutor(1) as pool:
        below = getattr(store, "store", store)
        write(kind, "many", store, records_of(kind, a=1))
        names = [chr(ord("a") + number % 6) * (number // 6 + 1) for number in range(1_000)]
        before = (list(below.all()), below.approximate_num_uncommitted_bytes(), store.metrics.late_total)

        def refuses(single: Callable[[], object], many: Sequence[Callable[[], object]], *told: str) -> None:
            with pytest.raises(Exception) as alone:
                single()
            for call in many:
                with pytest.raises(type(alone.value)) as among:
                    call()
                assert str(among.value) == str(alone.value)
                assert all(text in str(among.value) for text in told)
            assert (list(below.all()), below.approximate_num_uncommitted_bytes(), store.metrics.late_total) == before

        filling = [(kind.place(name), kind.value(7), 60) for name in names]
        for value in kind.wrong_values:
            wrong = (kind.place("c"), value, 60)
            told = () if kind.description is None else ("'c'", type(value).__name__)
            refuses(
                partial(kind.put, store, *wrong),
                [partial(kind.put_many, store, [*filling[:500], wrong, *filling[500:]])],
                *told,
            )
        for place in (*kind.wrong_places, *kind.wrong_written):
            wrong = (place, kind.value(7), 60)
            refuses(partial(kind.put, store, *wrong), [partial(kind.put_many, store, [*filling[:5], wrong])])
            refuses(partial(kind.delete, store, place), [partial(kind.delete_many, store, [kind.place("a"), place])])
        for place in kind.wrong_places:
            for reader in (store, store.read_only(IsolationLevel.READ_UNCOMMITTED)):
                refuses(partial(kind.get, reader, place), [partial(reader.get_many, [kind.place("a"), place])])
        for form in FORMS:
            for write_elsewhere in (
                partial(write, kind, form, store, records_of(kind, c=1)),
                partial(remove, kind, form, store, ["a"]),
            ):
                with pytest.raises(WrongThreadError):
                    pool.submit(write_elsewhere).result(60)
        for call in ("get_many", "put_many", "delete_many"):
            arguments: tuple[Any, ...] = ([], []) if call == "put_many" and "time" in kind.put_many.__name__ else ()
            for no_list in ("ab", b"ab", 5, None, *(() if call == "put_many" else ([5],))):
                with pytest.raises(TypeError):
                    getattr(store, call)(no_list, *arguments[: call == "put_many"])
        assert (list(below.all()), below.approximate_num_uncommitted_bytes()) == before[:2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.description is not None], ids=str)
def test_bytes_that_the_serde_never_writes_name_their_key(case: Case, tmp_path: Path, kind: Kind, form: str) -> None:
    with closing(kind.open(case, tmp_path / "s")) as store:
        write(kind, form, store, records_of(kind, a=1, b=2))
        damaged = max(key for key, _ in store.store.all() if b"b" in key)
        store.store.put(damaged, b"short")
        view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        for reader in (store, view):
            with pytest.raises(SerdeMismatchError) as error:
                read(kind, form, reader, ["a", "b"])
            # Among duplicates, the number at the end is that of the first one.
            assert repr(damaged[:-8] or damaged)[:-1] in str(error.value)
            assert numbers(kind, read(kind, form, reader, ["a"])) == [1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in EXPIRING], ids=str)
def test_what_has_expired_is_hidden(case: Case, tmp_path: Path, kind: Kind, form: str) -> None:
    """The write of a later time hides the earlier ones at once. One that comes too late is dropped."""
    with closing(kind.open(case, tmp_path / "s")) as store:
        a, m = kind.place("a"), kind.place("m")
        write(kind, form, store, [(a, 1, 5)])
        write(kind, form, store, [(m, 2, 145), (a, 3, 5), (kind.place("d"), 4, 60)])
        for reader in (store, store.read_only(IsolationLevel.READ_UNCOMMITTED)):
            assert numbers(kind, read(kind, form, reader, ["a", "m", "d"])) == [None, 2, 4]
        assert store.late_total == (0 if "ttl" in kind.name else 1)
