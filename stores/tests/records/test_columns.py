"""Columns of keys and values: a serde's functions of lists change how fast they are read and written, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from stores.errors import SerdeMismatchError
from stores.records import BYTES, FLOAT64, INT64, JSON, STR, Serde
from stores.records.codec import Codec
from stores.tasks import Topic

SEED = 41
MANY = 64
"""The fewest elements for which the functions of lists are called."""


class Listed:
    """A serde of numbers as text, with functions of lists; notes the length of each list."""

    name = "listed"
    keeps_order = keeps_prefixes = False

    def __init__(self, broken: Callable[[list[Any]], Any] | None = None) -> None:
        self.lengths: list[int] = []
        self._broken = broken

    def serialize(self, value: int, /) -> bytes:
        return b"%d" % value

    def deserialize(self, data: bytes, /) -> int:
        return int(data)

    def serialize_many(self, values: list[int], /) -> Any:
        return self._many([self.serialize(value) for value in values])

    def deserialize_many(self, data: list[bytes], /) -> Any:
        return self._many([self.deserialize(each) for each in data])

    def _many(self, done: list[Any]) -> Any:
        self.lengths.append(len(done))
        return done if self._broken is None else self._broken(done)


def raising(done: list[Any]) -> Any:
    raise RuntimeError(len(done))


BROKEN: dict[str, Callable[[list[Any]], Any] | None] = {
    "whole": None,
    "raising": raising,
    "one less": lambda done: done[1:],
    "one more": lambda done: [*done, done[0]],
    "no list": lambda done: 5,
}
VALUES: dict[str, tuple[Callable[[], Any], Callable[[Random], Any]]] = {
    "bytes": (lambda: BYTES, lambda random: random.randbytes(random.randrange(4))),
    "str": (lambda: STR, lambda random: "é" * random.randrange(4)),
    "int64": (lambda: INT64, lambda random: random.choice([-(2**63), -1, 0, 2**63 - 1, random.getrandbits(60)])),
    "float64": (lambda: FLOAT64, lambda random: random.choice([-0.0, -math.inf, math.inf, 5e-324, random.random(), 3])),
    "json": (lambda: JSON, lambda random: {"n": random.randrange(9)}),
    **{name: (partial(Listed, broken), lambda random: random.randrange(-5, 9)) for name, broken in BROKEN.items()},
}


@pytest.mark.parametrize("length", [0, 1, MANY - 1, MANY, MANY + 9])
@pytest.mark.parametrize("gaps", ["no None", "some None", "only None"])
@pytest.mark.parametrize("kind", VALUES)
def test_a_column_has_what_its_elements_have_one_by_one(kind: str, gaps: str, length: int) -> None:
    make, draw = VALUES[kind]
    serde, random = make(), Random(SEED)
    absent = {"no None": 0.0, "some None": 0.3, "only None": 1.0}[gaps]
    column = [None if random.random() < absent else draw(random) for _ in range(length)]
    data = [None if value is None else serde.serialize(value) for value in column]
    read = [None if each is None else serde.deserialize(each) for each in data]
    topic = Topic("t", key=serde, value=serde)
    assert topic.encoded_columns(column, column[::-1]) == (data, data[::-1])
    for part in ("key", "value"):
        assert topic.decoded_column(part, data) == read
    codec: Codec[Any, Any] = Codec("s", BYTES, serde)
    keys = [b"k"] * length
    assert codec.encode_values(keys, column) == data
    assert codec.decode_values(keys, data) == read
    present = [value for value in column if value is not None]
    assert Codec("s", serde, BYTES).encode_keys(present) == [serde.serialize(value) for value in present]


def test_a_serde_gets_long_lists_without_none_at_once_and_short_ones_one_by_one() -> None:
    serde = Listed()
    topic = Topic("t", key=serde, value=serde)
    for length, calls in ((MANY - 1, []), (MANY, [MANY, MANY - 1, MANY]), (MANY + 1, [MANY + 1, MANY, MANY + 1])):
        serde.lengths.clear()
        topic.encoded_columns(range(length), [None, *range(length - 1)])
        topic.decoded_column("value", [b"1"] * length)
        assert serde.lengths == calls


REFUSED: list[tuple[Serde[Any], Any, list[Any]]] = [
    (STR, "a", [5, b"a", "\ud800"]),
    (INT64, 1, [True, 1.5, "1", 2**63]),
    (FLOAT64, 1.5, [True, "1", math.nan, 2**60 + 1]),
    (JSON, 1, [{1, 2}, math.inf]),
    (Listed(), 1, ["one", b"1"]),
]
UNREADABLE: list[tuple[Serde[Any], Any, list[bytes]]] = [
    (STR, "a", [b"\xff"]),
    (INT64, 1, [b"", b"1234", b"123456789"]),
    (FLOAT64, 1.5, [b"", b"1234", b"\xff" * 8]),
    (JSON, 1, [b"", b"{", b"NaN"]),
    (Listed(), 1, [b"", b"one"]),
]


def error_of(call: Callable[..., Any], *arguments: Any) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as caught:
        call(*arguments)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("length", [8, MANY])
@pytest.mark.parametrize(("serde", "fine", "refused"), REFUSED, ids=[serde.name for serde, *_ in REFUSED])
def test_a_refused_element_has_the_error_that_it_has_alone(
    serde: Serde[Any], fine: Any, refused: list[Any], length: int
) -> None:
    topic: Topic[Any, Any] = Topic("t", key=serde, value=serde)
    codec: Codec[Any, Any] = Codec("s", serde, serde)
    all_fine = [fine] * length
    for bad in refused:
        column = [*all_fine[3:], bad, fine, bad]
        alone = error_of(topic.encoded, bad, fine)
        assert alone[0] in (TypeError, ValueError)
        assert error_of(topic.encoded_columns, column, all_fine) == alone
        # Its record is the first one with an error: the value of an earlier record goes before a key.
        first = error_of(topic.encoded, fine, bad)
        assert error_of(topic.encoded_columns, column, [fine, bad, *all_fine[2:]]) == first != alone
        assert error_of(codec.encode_keys, column) == error_of(codec.encode_key, bad)
        assert error_of(codec.encode_values, all_fine, column) == error_of(codec.encode_value, fine, bad)


@pytest.mark.parametrize("length", [8, MANY])
@pytest.mark.parametrize(("serde", "fine", "unreadable"), UNREADABLE, ids=[serde.name for serde, *_ in UNREADABLE])
def test_an_unreadable_element_has_the_error_that_it_has_alone(
    serde: Serde[Any], fine: Any, unreadable: list[bytes], length: int
) -> None:
    topic: Topic[Any, Any] = Topic("t", key=serde, value=serde)
    codec: Codec[Any, Any] = Codec("s", serde, serde)
    data = serde.serialize(fine)
    keys = [b"%d" % number for number in range(length)]
    for bad in unreadable:
        column = [*[data] * (length - 3), bad, data, bad]
        for part in ("key", "value"):
            assert error_of(topic.decoded_column, part, column) == error_of(serde.deserialize, bad)
        alone = error_of(codec.decode_value, keys[length - 3], bad)
        assert alone[0] is SerdeMismatchError
        assert error_of(codec.decode_values, keys, column) == alone
