"""The promises of each serde: values come back, refused ones raise, and bytes have the declared order and prefixes."""

from __future__ import annotations

import math
import pickle
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores import open_store
from stores.errors import ConfigError, SerdeMismatchError, StoreIncompatibleError
from stores.records import BYTES, FLOAT64, INT64, JSON, STR, KeyValue, Serde
from stores.records.serdes import MsgspecJson, MsgspecMessagePack

INT64S = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
).filter(lambda document: document is not None)

OF: list[Any] = [(BYTES, st.binary()), (STR, TEXTS), (INT64, INT64S), (FLOAT64, FLOATS), (JSON, DOCUMENTS)]
IDS = [serde.name for serde, _ in OF]


@pytest.mark.parametrize(("serde", "values"), OF, ids=IDS)
@given(st.data())
def test_a_value_comes_back_as_it_was(serde: Serde[Any], values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    written = serde.serialize(value)
    assert type(written) is bytes
    read = serde.deserialize(written)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("serde", "values"), [(INT64, INT64S), (FLOAT64, FLOATS)], ids=["int64", "float64"])
@given(st.data())
def test_a_list_has_the_bytes_of_its_values(serde: Any, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(values))
    written = serde.serialize_many(numbers)
    assert written == [serde.serialize(number) for number in numbers]
    read = serde.deserialize_many(written)
    assert read == numbers
    assert [type(number) for number in read] == [type(number) for number in numbers]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 511, 512, 513, 3000])
@pytest.mark.parametrize("serde", [INT64, FLOAT64])
def test_a_long_list_is_cut_into_its_values_at_each_length(serde: Any, count: int) -> None:
    """They are cut in blocks of 256."""
    kind = int if serde is INT64 else float
    numbers = [kind((number - 1_000) * 7_919) for number in range(count)]
    written = serde.serialize_many(numbers)
    assert written == [serde.serialize(number) for number in numbers]
    assert {bytes}.issuperset(map(type, written))
    assert serde.deserialize_many(written) == numbers


@pytest.mark.parametrize(
    ("serde", "fine", "refused"),
    [
        (INT64, 1, [True, 1.0, "1", None, 2**63, -(2**63) - 1]),
        (FLOAT64, 1.5, [True, 1, "1", None, math.nan]),
    ],
    ids=["int64", "float64"],
)
def test_a_list_with_a_value_that_is_refused_or_unlike_the_others_is_refused(
    serde: Any, fine: Any, refused: list[Any]
) -> None:
    """The codec then takes its values one by one."""
    for value in refused:
        with pytest.raises((TypeError, ValueError, struct.error)):
            serde.serialize_many([fine, value, fine])
    bad = [b"", b"short", b"nine bytes"[:9], *([] if serde is INT64 else [b"\xff" * 8])]
    for data in bad:
        with pytest.raises(ValueError):
            serde.deserialize_many([serde.serialize(fine), data])
    # Together they have the right length.
    with pytest.raises(ValueError):
        serde.deserialize_many([b"1234", b"123456789012"])


@pytest.mark.parametrize(
    ("serde", "values"), [pair for pair in OF if pair[0].keeps_order], ids=[s.name for s, _ in OF if s.keeps_order]
)
@given(st.data())
def test_bytes_have_the_order_of_their_values(
    serde: Serde[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    a, b = data.draw(values), data.draw(values)
    assert (serde.serialize(a) < serde.serialize(b)) is (a < b)
    assert (serde.serialize(a) == serde.serialize(b)) is (a == b)


@pytest.mark.parametrize(("serde", "values"), OF, ids=IDS)
def test_a_serde_can_be_sent_to_another_process(serde: Serde[Any], values: st.SearchStrategy[Any]) -> None:
    copy = pickle.loads(pickle.dumps(serde))
    value = "7" if serde is STR else 7.0 if serde is FLOAT64 else b"7" if serde is BYTES else 7
    assert copy.deserialize(serde.serialize(value)) == value
    assert copy.serialize(value) == serde.serialize(value)


def test_numbers_at_the_edges_are_in_order() -> None:
    ints = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]
    floats = [-math.inf, -1.7976931348623157e308, -1.0, -5e-324, 0.0, 5e-324, 1.0, 1.7976931348623157e308, math.inf]
    of: list[tuple[Any, list[Any]]] = [(INT64, ints), (FLOAT64, floats)]
    for serde, ordered in of:
        written = [serde.serialize(number) for number in ordered]
        assert written == sorted(written)
        assert {len(data) for data in written} == {8}
        assert [serde.deserialize(data) for data in written] == ordered


@pytest.mark.parametrize("serde", [BYTES, STR], ids=["bytes", "str"])
@given(st.data())
def test_the_bytes_of_a_prefix_are_a_prefix(serde: Serde[Any], data: st.DataObject) -> None:
    values: Any = st.binary() if serde is BYTES else TEXTS
    a, b = data.draw(values), data.draw(values)
    assert serde.keeps_prefixes
    assert serde.serialize(a + b).startswith(serde.serialize(a))
    assert serde.serialize(b).startswith(serde.serialize(a)) is b.startswith(a)


@pytest.mark.parametrize(
    ("serde", "prefix"), [(INT64, 1), (FLOAT64, 1.0), (JSON, [1])], ids=["int64", "float64", "json"]
)
def test_a_serde_without_prefix_order_refuses_a_prefix_scan(tmp_path: Path, serde: Serde[Any], prefix: Any) -> None:
    with KeyValue(serde, STR).over(open_store("memory-indexed-batch", tmp_path)) as store:
        store.put(prefix, "value")
        with pytest.raises(ConfigError, match=serde.name):
            store.prefix_scan(prefix)


def test_zero_and_minus_zero_are_one_key() -> None:
    assert FLOAT64.serialize(-0.0) == FLOAT64.serialize(0.0)
    assert math.copysign(1, FLOAT64.deserialize(FLOAT64.serialize(-0.0))) == 1


def test_an_int_is_taken_as_a_float_where_one_has_its_value() -> None:
    assert FLOAT64.serialize(3) == FLOAT64.serialize(3.0)
    assert FLOAT64.serialize(-(2**60)) == FLOAT64.serialize(-float(2**60))


def test_equal_documents_have_equal_bytes() -> None:
    assert (
        JSON.serialize({"b": [1, 2.5], "a": {"y": None, "x": "é"}}) == '{"a":{"x":"é","y":null},"b":[1,2.5]}'.encode()
    )
    assert JSON.serialize({"a": 1, "b": 2}) == JSON.serialize({"b": 2, "a": 1})


REFUSED: list[tuple[Any, Any, type[Exception]]] = [
    (BYTES, "text", TypeError),
    (BYTES, bytearray(b"a"), TypeError),
    (BYTES, None, TypeError),
    (STR, b"bytes", TypeError),
    (STR, 1, TypeError),
    (STR, "\ud800", ValueError),
    (INT64, True, TypeError),
    (INT64, 1.0, TypeError),
    (INT64, "1", TypeError),
    (INT64, 2**63, ValueError),
    (INT64, -(2**63) - 1, ValueError),
    (FLOAT64, math.nan, ValueError),
    (FLOAT64, True, TypeError),
    (FLOAT64, "1", TypeError),
    (FLOAT64, 2**53 + 1, ValueError),
    (FLOAT64, 10**400, ValueError),
    (JSON, math.nan, ValueError),
    (JSON, [math.inf], ValueError),
    (JSON, None, TypeError),
    (JSON, {"a": b"bytes"}, TypeError),
    (JSON, {1: 2, "a": 3}, TypeError),
    (JSON, ["\ud800"], ValueError),
]


@pytest.mark.parametrize(("serde", "value", "error"), REFUSED)
def test_a_value_of_another_type_or_out_of_range_is_refused(
    serde: Serde[Any], value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        serde.serialize(value)


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (STR, b"\xff"),
        (INT64, b"1234567"),
        (INT64, b"123456789"),
        (FLOAT64, b""),
        (FLOAT64, b"\xff" * 8),
        (FLOAT64, b"\x00" * 8),
        (JSON, b"{"),
        (JSON, b"NaN"),
        (JSON, b"\xff"),
    ],
)
def test_bytes_that_no_value_has_raise(serde: Serde[Any], data: bytes) -> None:
    with pytest.raises(Exception):  # noqa: B017 - which one is the serde's own: a store raises SerdeMismatchError
        serde.deserialize(data)


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
        for wrong_value in ("text", Parcel(1.5), {"customer": "Ada", "items": {}}):
            with pytest.raises(TypeError):
                store.put("key", wrong_value)
        assert list(store.all()) == []


def test_none_is_no_value_of_a_type_that_allows_it(kind: Any) -> None:
    with pytest.raises(TypeError, match="None can't be a key or a value"):
        kind(int | None).serialize(None)


def test_bytes_of_another_type_name_their_key(kind: Any) -> None:
    with KeyValue(STR, kind(Order)).over(open_store("memory-indexed-batch", "unused")) as store:
        store.store.put(b"key", kind(Parcel).serialize(Parcel(1.5)))
        with pytest.raises(SerdeMismatchError) as error:
            store.get("key")
        assert "b'key'" in str(error.value)


def test_a_store_of_one_type_is_not_opened_with_another_unless_the_name_is_kept(kind: Any) -> None:
    with open_store("memory-indexed-batch", "unused") as store:
        KeyValue(STR, kind(Order)).over(store)
        with pytest.raises(StoreIncompatibleError):
            KeyValue(STR, kind(Parcel)).over(store)
        KeyValue(STR, kind(Parcel, name=kind(Order).name)).over(store)
