"""Columns of keys and of values as Arrow arrays: what serdes read and write without a Python object for each element.

``serialized`` and ``deserialized`` return None for what they have no way for. The serde is then asked for each element,
and raises the error if there is one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from stores.records.serdes import BytesSerde, Int64Serde, Serde, StrSerde

if TYPE_CHECKING:
    import pyarrow

_WIDTH = 8
_SIGN = -(1 << 63)


def is_arrow(column: object) -> bool:
    """Return whether a column is an Arrow array, or a chunked one."""
    return hasattr(column, "to_pylist")


def as_list(column: Any) -> list[Any]:
    """Return the elements of a sequence, or of an Arrow array as Python has them."""
    return column.to_pylist() if is_arrow(column) else list(column)


def one_array(column: pyarrow.Array | pyarrow.ChunkedArray) -> pyarrow.Array:
    """Return a column as one array."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def deserialized(serde: Serde[Any], data: pyarrow.Array) -> pyarrow.Array | None:
    """Return what BYTES, STR or INT64 read of each element of a binary array, null for null."""
    way = _WAYS.get(type(serde))
    return None if way is None else _tried(way.read, data)


def serialized(serde: Serde[Any], column: pyarrow.Array | pyarrow.ChunkedArray) -> pyarrow.Array | None:
    """Return the bytes of each element as a binary array: BYTES of binary arrays, STR of texts, INT64 of integers."""
    import pyarrow as pa

    way = _WAYS.get(type(serde))
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if way is None or not any(getattr(pa.types, f"is_{each}")(kind) for each in way.kinds):
        return None
    return _tried(way.write, one_array(column))


def _tried(convert: Callable[[pyarrow.Array], pyarrow.Array], column: pyarrow.Array) -> pyarrow.Array | None:
    import pyarrow as pa

    try:
        return convert(column)
    except pa.ArrowException:
        return None


def _as_binary(column: pyarrow.Array) -> pyarrow.Array:
    import pyarrow as pa

    return column.cast(pa.binary())


def _as_text(data: pyarrow.Array) -> pyarrow.Array:
    import pyarrow as pa

    return data.cast(pa.string())


def _as_integers(data: pyarrow.Array) -> pyarrow.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.bit_wise_xor(_swapped(data.cast(pa.binary(_WIDTH)).view(pa.int64())), _SIGN)


def _of_integers(numbers: pyarrow.Array) -> pyarrow.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return _swapped(pc.bit_wise_xor(numbers.cast(pa.int64()), _SIGN)).view(pa.binary(_WIDTH)).cast(pa.binary())


def _swapped(numbers: pyarrow.Array) -> pyarrow.Array:
    """Return integers with their bytes in the opposite order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(numbers)
    words = array("q", numbers.buffers()[1].slice(numbers.offset * _WIDTH, count * _WIDTH).to_pybytes())
    words.byteswap()
    swapped = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(words)])
    return pc.if_else(numbers.is_valid(), swapped, None) if numbers.null_count else swapped


class _Way(NamedTuple):
    """The way of one serde."""

    read: Callable[[pyarrow.Array], pyarrow.Array]
    write: Callable[[pyarrow.Array], pyarrow.Array]
    kinds: tuple[str, ...]
    """The Arrow types of what it writes."""


_WAYS: Mapping[type, _Way] = MappingProxyType(
    {
        BytesSerde: _Way(_as_binary, _as_binary, ("binary", "large_binary", "fixed_size_binary")),
        StrSerde: _Way(_as_text, _as_binary, ("string", "large_string")),
        Int64Serde: _Way(_as_integers, _of_integers, ("integer",)),
    }
)
