"""A typed store of another process, read by its description alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import open_read_only, open_store
from stores.errors import StoreClosedError, StoreIncompatibleError
from stores.records import (
    INT64,
    STR,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
    Windowed,
)
from stores.tests.read_only.test_open_read_only import COUNTS, ON_DISK

HEADERS = (("trace", b"\x00"), ("none", None))
KINDS: list[RecordKind] = [
    COUNTS,
    TimestampedKeyValue(key=STR, value=INT64),
    TimestampedKeyValueWithHeaders(key=STR, value=INT64),
    Versioned(key=STR, value=INT64, history_retention_ms=1000),
    Window(key=STR, value=INT64, size_ms=10, retention_ms=1000),
    Session(key=STR, value=INT64, retention_ms=1000, headers=True),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("backend", ON_DISK)
def test_a_typed_store_is_read_by_its_description_alone(backend: str, kind: RecordKind, path: Path) -> None:
    writes: dict[str, Callable[[Any], object]] = {
        "key-value": lambda store: store.put("a", 7),
        "timestamped-key-value": lambda store: store.put("a", 7, 20),
        "timestamped-key-value-with-headers": lambda store: store.put("a", 7, 20, HEADERS),
        "versioned-key-value": lambda store: store.put("a", 7, 20),
        "window": lambda store: store.put("a", 7, 20),
        "session": lambda store: store.put(Windowed("a", 20, 30), 7, 40, HEADERS),
    }
    with kind.over(open_store(backend, path)) as store:
        writes[kind.kind](store)
        store.commit()
        keeps_marks = store.store.keeps_marks
    with open_read_only(path, kind) as view:
        found: dict[str, Callable[[Any], object]] = {
            "key-value": lambda view: view.get("a"),
            "timestamped-key-value": lambda view: tuple(view.get("a")),
            "timestamped-key-value-with-headers": lambda view: tuple(view.get("a")),
            "versioned-key-value": lambda view: [view.get("a", 20), *view.get_versions("a")],
            "window": lambda view: list(view.fetch("a", 0, 100)),
            "session": lambda view: list(view.fetch("a")),
        }
        expected = {
            "key-value": 7,
            "timestamped-key-value": (7, 20),
            "timestamped-key-value-with-headers": (7, 20, HEADERS),
            "versioned-key-value": [(7, 20), (7, 20, None)],
            "window": [(20, 7)],
            "session": [(Windowed("a", 20, 30), (7, 40, HEADERS))],
        }
        assert found[kind.kind](view) == expected[kind.kind]
        with view.snapshot() as snapshot:
            assert found[kind.kind](snapshot) == expected[kind.kind]
    for other in KINDS:
        if keeps_marks and other.kind != kind.kind:
            with pytest.raises(StoreIncompatibleError):
                open_read_only(path, other)
    if keeps_marks and kind is not COUNTS:
        with open_read_only(path) as plain:
            assert plain.approximate_num_entries() == 1


@pytest.mark.parametrize("backend", ON_DISK)
def test_all_windows_of_a_segment_are_read(backend: str, path: Path) -> None:
    """The second scan of the query ends before the first."""
    kind = Window(key=STR, value=INT64, size_ms=10, retention_ms=1000)
    with kind.over(open_store(backend, path)) as store:
        for number in range(5):
            store.put("a", number, 10 * number)
        store.commit()
    with open_read_only(path, kind) as view:
        assert [value for _, value in view.all()] == [value for _, value in view.fetch_all(0, 40)] == [0, 1, 2, 3, 4]
        scan = view.backward_all()
        assert [value for _, value in scan] == [4, 3, 2, 1, 0]
        scan.close()
        with pytest.raises(StoreClosedError):
            next(scan)
