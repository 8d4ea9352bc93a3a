"""Serializers and deserializers of keys and values.

A serde that keeps the order lets a store's scans run in the order of the values; one that keeps prefixes lets
``prefix_scan`` take a part of a key. None of these uses pickle: what they read runs no code.

Those of msgspec are for structs, dataclasses and all other types that it supports. It is the extra ``msgspec``, which
is imported when such a serde is created.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from stores.errors import ConfigError
from stores.extras import advice

__all__ = [
    "BYTES",
    "FLOAT64",
    "INT64",
    "JSON",
    "STR",
    "BytesSerde",
    "Float64Serde",
    "Int64Serde",
    "JsonSerde",
    "MsgspecJson",
    "MsgspecMessagePack",
    "Serde",
    "StrSerde",
]

T = TypeVar("T")


class Serde(Protocol[T]):
    """Serializes one type. A class of yours needs these attributes and no base class.

    The same value always gives the same bytes, and different values different ones: a key is found by its bytes.
    ``serialize`` raises TypeError or ValueError for what it can't serialize, ``deserialize`` anything for bytes that
    ``serialize`` never returns. A StoreError is one of neither, such as of a service that does not answer. Both are
    called from any thread. A serde may have ``of_topic(topic, part)``, which returns the one for a part of a topic, and
    ``serialize_many`` and ``deserialize_many`` of a list, which return a list. If one of these two raises, or there are
    less than 64 elements, they are taken one by one.
    """

    @property
    def name(self) -> str:
        """Kept in the store: opening it with a serde of another name is refused."""

    @property
    def keeps_order(self) -> bool:
        """True if the bytes of a smaller value are smaller."""

    @property
    def keeps_prefixes(self) -> bool:
        """True if the bytes of a value begin with those of each of its prefixes, and of no others."""

    def serialize(self, value: T, /) -> bytes: ...

    def deserialize(self, data: bytes, /) -> T: ...


def check_serde(what: str, given: object) -> None:
    """Check that ``given`` has what a serde has. Raises: TypeError."""
    if isinstance(given, type):
        # Its methods would take a value for ``self``: each record would be one that can't be read.
        raise TypeError(f"{what} is a serde, such as STR or JSON, not the class {given.__name__}: give an object of it")
    whole = callable(getattr(given, "serialize", None)) and callable(getattr(given, "deserialize", None))
    if not whole or not isinstance(getattr(given, "name", None), str):
        raise TypeError(f"{what} is a serde, such as STR or JSON, not {given!r}")


def of_topic(serde: Serde[T], topic: str, part: str) -> Serde[T]:
    """Return the serde for the key or the value of a topic: itself, unless it has a method for that."""
    method: Callable[[str, str], Serde[T]] | None = getattr(serde, "of_topic", None)
    return serde if method is None else method(topic, part)


class _Named:
    """A serde that shows itself as the constant of this module that it is."""

    name: str = ""

    def __repr__(self) -> str:
        return self.name.upper()


class BytesSerde(_Named):
    """Bytes, as they are."""

    name: str = "bytes"
    keeps_order: bool = True
    keeps_prefixes: bool = True

    @staticmethod
    def serialize(value: bytes, /) -> bytes:
        if type(value) is not bytes and not isinstance(value, bytes):
            raise TypeError(f"bytes are expected, not {type(value).__name__}")
        return value

    # Gives back what it is given, without a call of a function of ours.
    deserialize = staticmethod(bytes)


class StrSerde(_Named):
    """Text as UTF-8, whose bytes have the order of the code points. A lone surrogate is refused."""

    name: str = "str"
    keeps_order: bool = True
    keeps_prefixes: bool = True
    # The methods of the types themselves: a function around them would take longer than they do.
    serialize = staticmethod(str.encode)
    deserialize = staticmethod(bytes.decode)


_UNSIGNED = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_BLOCK = 256
"""The values that are cut at once. A format takes 32 bytes for each, and there is one for each smaller number."""
_FLIPPED = bytes(byte ^ 0x80 for byte in range(256))


def _int64_functions() -> tuple[Callable[[int], bytes], Callable[[bytes], int]]:
    """Functions that find all they need within themselves: that takes a third of their time away."""
    unpack, bias = _UNSIGNED.unpack, 1 << 63

    def serialize(value: int, /) -> bytes:
        if type(value) is int:
            try:
                # Big-endian; faster than a ``Struct``.
                return (value + bias).to_bytes(8)
            except OverflowError:
                raise ValueError("an INT64 is from -2**63 to 2**63 - 1") from None
        raise TypeError(f"an int is expected, not {type(value).__name__}")

    def deserialize(data: bytes, /) -> int:
        (number,) = unpack(data)
        return int(number) - bias

    return serialize, deserialize


@lru_cache(maxsize=64)
def _sign_bits(count: int) -> int:
    """Return a number of ``count`` times eight bytes, each with its sign bit set: one operation flips all of them."""
    return int.from_bytes(b"\x80\0\0\0\0\0\0\0" * count)


def _all_ones(signs: int) -> int:
    """Return the number that has all bits set in each eight bytes whose sign bit is set in ``signs``."""
    lowest = signs >> 63
    return (lowest << 64) - lowest


@cache
def _eights(count: int) -> struct.Struct:
    """Return the format of up to ``_BLOCK`` values of eight bytes: with one code for each, they are cut fastest."""
    return struct.Struct("8s" * count)


def _cut(data: bytes | bytearray) -> list[bytes]:
    """Return values of eight bytes each."""
    rest = (len(data) >> 3) % _BLOCK
    last = _eights(rest).unpack_from(data, len(data) - 8 * rest)
    if len(data) < 8 * _BLOCK:
        return list(last)
    blocks = _eights(_BLOCK).iter_unpack(memoryview(data)[: len(data) - 8 * rest])
    return [*chain.from_iterable(blocks), *last]


def _joined(data: Sequence[bytes]) -> int:
    """Return values of eight bytes as one number. Raises: ValueError if one has another length."""
    if not {8}.issuperset(map(len, data)):
        raise ValueError("a value has eight bytes")
    return int.from_bytes(b"".join(data))


def _check_types(values: Sequence[object], kind: type) -> None:
    if not {kind}.issuperset(map(type, values)):
        raise TypeError(f"all are {kind.__name__}s")


class Int64Serde(_Named):
    """Integers from -2**63 to 2**63 - 1 in eight bytes, big-endian with the sign bit flipped. ``bool`` is refused."""

    name: str = "int64"
    keeps_order: bool = True
    keeps_prefixes: bool = False

    _functions = _int64_functions()
    serialize = staticmethod(_functions[0])
    deserialize = staticmethod(_functions[1])

    @staticmethod
    def serialize_many(values: Sequence[int], /) -> list[bytes]:
        _check_types(values, int)
        data = bytearray(struct.pack(f">{len(values)}q", *values))
        data[::8] = data[::8].translate(_FLIPPED)
        return _cut(data)

    @staticmethod
    def deserialize_many(data: Sequence[bytes], /) -> list[int]:
        count = len(data)
        return list(struct.unpack(f">{count}q", (_joined(data) ^ _sign_bits(count)).to_bytes(8 * count)))


class Float64Serde(_Named):
    """Floats in eight bytes, from -inf to inf: those of IEEE 754 with the sign bit flipped, of negative ones all bits.

    -0.0 becomes 0.0, since equal keys have to be one key. NaN is refused: it equals nothing, and has no place in an
    order. An int is taken where a float has exactly its value.
    """

    name: str = "float64"
    keeps_order: bool = True
    keeps_prefixes: bool = False

    @staticmethod
    def serialize(value: float, /) -> bytes:
        if type(value) is not float:
            value = _as_float(value)
        if math.isnan(value):
            raise ValueError("NaN can't be ordered: leave it out, or use another serde")
        # Adding 0.0 turns -0.0 into it.
        bits: int = _UNSIGNED.unpack(_DOUBLE.pack(value + 0.0))[0]
        return _UNSIGNED.pack(bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits >> 63 else bits | 1 << 63)

    @staticmethod
    def deserialize(data: bytes, /) -> float:
        bits: int = _UNSIGNED.unpack(data)[0]
        restored = bits ^ 1 << 63 if bits >> 63 else bits ^ 0xFFFF_FFFF_FFFF_FFFF
        number: float = _DOUBLE.unpack(_UNSIGNED.pack(restored))[0]
        if math.isnan(number):
            raise ValueError("these bytes are not a serialized float")
        return number

    @staticmethod
    def serialize_many(values: Sequence[float], /) -> list[bytes]:
        _check_types(values, float)
        count = len(values)
        bits = int.from_bytes(struct.pack(f">{count}d", *[value + 0.0 for value in values]))
        if any(map(math.isnan, values)):
            raise ValueError("NaN can't be ordered")
        return _cut((bits ^ (_all_ones(bits & _sign_bits(count)) | _sign_bits(count))).to_bytes(8 * count))

    @staticmethod
    def deserialize_many(data: Sequence[bytes], /) -> list[float]:
        bits, signs = _joined(data), _sign_bits(len(data))
        restored = bits ^ (_all_ones(~bits & signs) | signs)
        numbers = struct.unpack(f">{len(data)}d", restored.to_bytes(8 * len(data)))
        if any(map(math.isnan, numbers)):
            raise ValueError("these bytes are not serialized floats")
        return list(numbers)


def _as_float(value: object) -> float:
    if isinstance(value, float):
        return float(value)
    if type(value) is not int:
        raise TypeError(f"a float is expected, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number != value:
        raise ValueError("no float has exactly the value of this int: use a float")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


class JsonSerde(_Named):
    """JSON values, as UTF-8 without spaces and with the keys of each object in order: equal values, equal bytes.

    As with Python's ``json``, a tuple comes back as a list, and a key that is a number as text. NaN and the infinities
    are refused, and None as the whole value: as a value of a store it means that there is none.
    """

    name: str = "json"
    keeps_order: bool = False
    keeps_prefixes: bool = False

    def __init__(self) -> None:
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        self._encode = encoder.encode
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).decode

    def __reduce__(self) -> tuple[type[JsonSerde], tuple[()]]:
        # The decoder can't be pickled.
        return JsonSerde, ()

    def serialize(self, value: Any, /) -> bytes:
        if value is None:
            raise TypeError("None can't be a key or a value")
        return self._encode(value).encode()

    def deserialize(self, data: bytes, /) -> Any:
        return self._decode(data.decode())


BYTES: Final = BytesSerde()
STR: Final = StrSerde()
INT64: Final = Int64Serde()
FLOAT64: Final = Float64Serde()
JSON: Final = JsonSerde()


class _MsgspecSerde(Generic[T]):
    """A serde for values of one type, which are validated when they are read. Each value has one serialized form.

    The store keeps ``name``; its default is made of the format and the type. Pass your own name to rename a type. A
    field with a default may be added to a struct at any time. msgspec's JSON writes NaN as null.
    """

    keeps_order: bool = False
    keeps_prefixes: bool = False

    def __init__(self, of: type[T], format_name: str, codec: Any, name: str | None) -> None:
        self.name = f"msgspec-{format_name}:{getattr(of, '__qualname__', of)}" if name is None else name
        encode = codec.Encoder(order="deterministic").encode
        self._of = of
        self._type: Any = of if isinstance(of, type) else object
        self._encode = encode
        self.deserialize: Callable[[bytes], T] = codec.Decoder(of).decode

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return partial(type(self), self._of, name=self.name), ()

    def serialize(self, value: T, /) -> bytes:
        if value is None:
            raise TypeError("None can't be a key or a value")
        if not isinstance(value, self._type):
            raise TypeError(f"a {self._type.__qualname__} is expected, not {type(value).__name__}")
        data: bytes = self._encode(value)
        return data


class MsgspecJson(_MsgspecSerde[T]):
    """A serde for values of type ``of`` as JSON. Raises: ConfigError if msgspec is not installed."""

    def __init__(self, of: type[T], *, name: str | None = None) -> None:
        super().__init__(of, "json", _msgspec().json, name)


class MsgspecMessagePack(_MsgspecSerde[T]):
    """A serde for values of type ``of`` as MessagePack. Raises: ConfigError if msgspec is not installed."""

    def __init__(self, of: type[T], *, name: str | None = None) -> None:
        super().__init__(of, "msgpack", _msgspec().msgpack, name)


def _msgspec() -> Any:
    try:
        import msgspec
    except ImportError as error:
        raise ConfigError(f"msgspec is missing: {advice('msgspec')}") from error
    return msgspec
