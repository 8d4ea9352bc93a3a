"""Typed stores seen as maps: they do what a dict does, and nothing out of its place passes for what should be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.typed_maps import KINDS, RETENTION_MS, SEGMENT_MS, as_map, logged_key, place, view_as_map
from stores.interface import IsolationLevel, KeyValueStore
from stores.records import Windowed
from stores.records.values import StagedWrite, StoreStaging
from stores.registry import open_store

KEYS = [b"k%02d" % number + (b"", b"\0", b"\xff", b"\0\xff")[number % 4] for number in range(24)]


class LoggingStaging(StoreStaging):
    """A store that keeps the pairs that a changelog would get."""

    def __init__(self, store: KeyValueStore) -> None:
        super().__init__(store)
        self.told: list[tuple[bytes, bytes | None]] = []

    logs = True

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        super().put(key, kept, log_key, log_value, timestamp_ms)
        self.told.append((log_key, log_value))

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        super().put_all(writes, marks)
        self.told += [(write.log_key, write.log_value) for write in writes if write.log_key is not None]

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        if logged:
            with self.store.range(start, end) as pairs:
                self.told += [(key, None) for key, _ in pairs]
        super().delete_range(start, end)


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[tuple[Any, LoggingStaging]]:
    with open_store("sqlite", folder / "store") as store:
        record_kind = KINDS[kind].kind
        record_kind.prepare(store)
        staging = LoggingStaging(store)
        yield as_map(kind, record_kind.staged(staging)), staging


@pytest.mark.parametrize("kind", KINDS)
def test_a_typed_store_does_what_a_dict_does_and_logs_the_same_keys(kind: str, tmp_path: Path) -> None:
    choose, model = Random(f"typed map {kind}"), dict[bytes, bytes]()
    logged: list[tuple[bytes, bytes | None]] = []
    with opened(kind, tmp_path) as (typed, staging):
        for number in range(300):
            key, value = choose.choice(KEYS), choose.choice((b"", b"%d" % number))
            action = choose.choice(("put", "put", "absent", "delete", "range"))
            if action == "put":
                typed.put(key, value)
                model[key] = value
                logged.append((key, value))
            elif action == "absent":
                assert typed.put_if_absent(key, value) == model.get(key)
                if key not in model:
                    model[key] = value
                    logged.append((key, value))
            elif action == "delete":
                assert typed.delete(key) == model.pop(key, None)
                logged.append((key, None))
            elif number % 5 == 0:
                last = max(key, choose.choice(KEYS))
                typed.delete_range(key, last)
                gone = sorted(each for each in model if key <= each <= last)
                logged += [(each, None) for each in gone]
                for each in gone:
                    del model[each]
            first, last = sorted(choose.choices(KEYS, k=2))
            for reverse in (False, True):
                wanted = sorted((pair for pair in model.items() if first <= pair[0] <= last), reverse=reverse)
                with typed.range(first, last, reverse=reverse) as pairs:
                    assert list(pairs) == wanted
            if kind in ("window", "session"):
                begin, end = sorted(place(each) + choose.randrange(-2, 3) for each in choose.choices(KEYS, k=2))
                for reverse in (False, True):
                    with typed.of_key(key, begin, end, reverse=reverse) as pairs:
                        here = key in model and KINDS[kind].lies_in(key, begin, end)
                        assert list(pairs) == ([(key, model[key])] if here else [])
            if kind == "window":
                within = [each for each in model if begin <= place(each) <= end]
                within.sort(key=lambda each: (place(each), each))
                with typed.of_times(begin, end) as pairs:
                    assert list(pairs) == [(each, model[each]) for each in within]
                with typed.of_times(begin, end, reverse=True) as pairs:
                    assert list(pairs) == [(each, model[each]) for each in reversed(within)]
        parts = KINDS[kind].kind.log_parts or (lambda value: (value, ()))
        told = [(logged_key(kind, key), value and parts(value)[0]) for key, value in staging.told]
        assert told == logged
        typed.typed.store.commit()
        view = view_as_map(kind, typed.typed.store.read_only(IsolationLevel.READ_COMMITTED))
        with view.all() as pairs:
            assert list(pairs) == sorted(model.items())
        assert view.get_many(KEYS) == [model.get(key) for key in KEYS]


def test_the_keys_of_a_commit_lie_in_several_segments() -> None:
    assert len({place(key) // SEGMENT_MS for key in KEYS}) > 3


@pytest.mark.parametrize("kind", ["window", "session"])
def test_what_lies_elsewhere_passes_for_no_key(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as (typed, staging):
        at = place(b"k") + 1
        if kind == "window":
            typed.typed.put(b"k", b"v", at)
        else:
            typed.typed.put(Windowed(b"k", at - 1, at), b"v", 1)
        assert typed.get(b"k") is None
        with typed.all() as pairs:
            (pair,) = pairs
        assert pair[0] != b"k"
        assert logged_key(kind, staging.told[0][0]) != b"k"


@pytest.mark.parametrize("kind", ["timestamped-key-value-with-headers", "session"])
def test_a_value_with_other_headers_passes_for_no_value(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as (typed, _):
        values = [b"%d" % number for number in range(9)]
        for value in values:
            typed.put(value, value)
        scan = typed.typed.fetch_range if kind == "session" else typed.typed.range
        for place_of, found in list(scan(None, None)):
            typed.typed.put(place_of, found.value, found.timestamp_ms, (*found.headers, ("more", b"")))
            assert typed.get(found.value) not in (None, found.value)
        assert len({found.headers for _, found in scan(None, None)}) > 3


@pytest.mark.parametrize(
    "kind", ["session", "timestamped-key-value", "timestamped-key-value-with-headers", "versioned-key-value"]
)
def test_a_value_with_another_time_passes_for_no_value(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as (typed, _):
        typed.put(b"k", b"v")
        (key, found), *_ = typed.typed.fetch_range(None, None) if kind == "session" else typed.typed.all()
        headers = (found.headers,) if hasattr(found, "headers") else ()
        typed.typed.put(key, b"v", place(b"k") + 7, *headers)
        assert typed.get(b"k") not in (None, b"v")


@pytest.mark.parametrize("kind", ["window", "session"])
def test_records_older_than_the_retention_are_removed(kind: str, tmp_path: Path) -> None:
    def late(key: bytes) -> int:
        return place(b"old") + (RETENTION_MS if key == b"new" else 0)

    with opened(kind, tmp_path) as (typed, _):
        moved = as_map(kind, typed.typed, late)
        moved.put(b"old", b"v")
        moved.put(b"new", b"v")
        with moved.all() as pairs:
            assert list(pairs) == [(b"new", b"v")]
