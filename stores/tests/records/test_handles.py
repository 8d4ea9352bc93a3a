"""Descriptions as handles: which store a description stands for, and which ones are refused."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from stores.errors import ConfigError
from stores.records import (
    INT64,
    STR,
    KeyValue,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
)
from stores.records.handles import StoreTable

COUNTS = KeyValue(key=STR, value=INT64, name="counts")


@dataclass
class Unhashable:
    """A serde of another package whose instances are equal by their fields, and have no hash."""

    name: str = "text"
    keeps_order: bool = True
    keeps_prefixes: bool = True
    options: list[str] = field(default_factory=list)

    def serialize(self, value: str, /) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes, /) -> str:
        return data.decode()


def table(**kinds: RecordKind | None) -> StoreTable:
    return StoreTable("task 0_0", {name: f"store {name}" for name in kinds}, kinds, {"prices": "view prices"})


@pytest.mark.parametrize(
    "kind",
    [
        COUNTS,
        KeyValue(key=Unhashable(), value=INT64, name="counts"),
        TimestampedKeyValue(key=STR, value=INT64, ttl_ms=5, name="counts"),
        TimestampedKeyValueWithHeaders(key=STR, value=INT64, ttl_ms=5, name="counts"),
        Versioned(key=STR, value=INT64, history_retention_ms=100, name="counts"),
        Window(key=STR, value=INT64, size_ms=10, retention_ms=100, name="counts"),
        Session(key=STR, value=INT64, retention_ms=100, timestamped=True, name="counts"),
    ],
    ids=lambda kind: kind.kind,
)
def test_a_description_stands_for_the_store_declared_with_it(kind: RecordKind) -> None:
    stores = table(counts=kind, others=None)
    assert stores[kind] == stores["counts"] == "store counts"
    # A process that gets the description as a pickle has other serdes, which equal the first ones in nothing.
    assert stores[pickle.loads(pickle.dumps(kind))] == "store counts"
    assert (stores["others"], stores["prices"]) == ("store others", "view prices")


def test_a_description_stands_for_its_own_name_alone() -> None:
    """A store declared under another name than that in its description is found by that name, and not by both."""
    stores = table(other=COUNTS)
    assert stores["other"] == "store other"
    with pytest.raises(ConfigError):
        stores[COUNTS]


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        (None, COUNTS),
        (COUNTS, KeyValue(key=STR, value=STR, name="counts")),
        (COUNTS, TimestampedKeyValue(key=STR, value=INT64, name="counts")),
        (
            TimestampedKeyValue(key=STR, value=INT64, name="counts"),
            TimestampedKeyValueWithHeaders(key=STR, value=INT64, name="counts"),
        ),
        (COUNTS, KeyValue(key=STR, value=INT64)),
        (COUNTS, KeyValue(key=STR, value=INT64, name="missing")),
        (COUNTS, KeyValue(key=STR, value=INT64, name="prices")),
        (COUNTS, "missing"),
        (Versioned(STR, INT64, 100, name="counts"), Versioned(STR, INT64, 200, name="counts")),
        (Window(STR, INT64, 10, 100, name="counts"), Window(STR, INT64, 20, 100, name="counts")),
        (Window(STR, INT64, 10, 100, name="counts"), Window(STR, INT64, 10, 100, name="counts", headers=True)),
    ],
)
def test_another_description_than_that_of_the_declaration_is_refused(declared: RecordKind | None, asked: Any) -> None:
    with pytest.raises(ConfigError):
        table(counts=declared)[asked]


@pytest.mark.parametrize("asked", [3, b"counts", ("counts",), KeyValue])
def test_what_is_neither_a_description_nor_a_name_is_refused(asked: Any) -> None:
    with pytest.raises(TypeError):
        table(counts=COUNTS)[asked]


@pytest.mark.parametrize("name", [3, b"counts"])
def test_the_name_of_a_description_is_text(name: Any) -> None:
    with pytest.raises(TypeError):
        KeyValue(key=STR, value=INT64, name=name)


def test_equal_descriptions_have_equal_hashes() -> None:
    assert KeyValue(key=STR, value=INT64, name="counts") == COUNTS
    assert hash(COUNTS) == hash(KeyValue(key=STR, value=INT64, name="counts"))
    assert KeyValue(key=STR, value=INT64) != COUNTS
