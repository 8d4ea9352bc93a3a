"""Serdes of msgspec, where that is installed; without it, an error that says what to install."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from stores.errors import SerdeMismatchError, StoreIncompatibleError
from stores.records import STR, KeyValue
from stores.records.serdes import MsgspecJson, MsgspecMessagePack
from stores.registry import open_store


def test_without_msgspec_making_a_serde_raises_a_config_error() -> None:
    program = """
import sys
sys.modules["msgspec"] = None
from stores.errors import ConfigError
from stores.records.serdes import MsgspecJson, MsgspecMessagePack
for serde in (MsgspecJson, MsgspecMessagePack):
    try:
        serde(dict)
    except ConfigError:
        continue
    raise SystemExit(1)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@dataclass(frozen=True)
class Order:
    customer: str
    items: dict[str, int]


@dataclass(frozen=True)
class Parcel:
    kilograms: float


@pytest.fixture(params=[MsgspecJson, MsgspecMessagePack], ids=["json", "msgpack"])
def kind(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip("msgspec")
    return request.param


def test_a_typed_value_comes_back_as_its_type(kind: Any) -> None:
    serde = kind(Order)
    order = Order("Ada", {"pen": 2, "ink": 1})
    assert serde.deserialize(serde.serialize(order)) == order


def test_equal_values_have_equal_bytes(kind: Any) -> None:
    serde = kind(Order)
    assert serde.serialize(Order("Ada", {"a": 1, "b": 2})) == serde.serialize(Order("Ada", {"b": 2, "a": 1}))


def test_a_value_of_another_type_is_refused_and_nothing_is_staged(kind: Any) -> None:
    with KeyValue(STR, kind(Order)).over(open_store("memory-indexed-batch", "unused")) as store:
        for refused in ("text", Parcel(1.5), {"customer": "Ada", "items": {}}):
            with pytest.raises(TypeError):
                store.put("key", refused)
        assert list(store.all()) == []


def test_none_is_no_value_of_a_type_that_allows_it(kind: Any) -> None:
    with pytest.raises(TypeError, match="None can't be a key or a value"):
        kind(int | None).serialize(None)


def test_bytes_of_another_type_name_their_key(kind: Any) -> None:
    with KeyValue(STR, kind(Order)).over(open_store("memory-indexed-batch", "unused")) as store:
        store.store.put(b"key", kind(Parcel).serialize(Parcel(1.5)))
        with pytest.raises(SerdeMismatchError) as caught:
            store.get("key")
        assert "b'key'" in str(caught.value)


def test_a_store_of_one_type_is_not_opened_with_another_unless_the_name_is_kept(kind: Any) -> None:
    with open_store("memory-indexed-batch", "unused") as store:
        KeyValue(STR, kind(Order)).over(store)
        with pytest.raises(StoreIncompatibleError):
            KeyValue(STR, kind(Parcel)).over(store)
        KeyValue(STR, kind(Parcel, name=kind(Order).name)).over(store)
