"""A file of pairs with a number each: a partition's events, or a task's state. It is written and read as a stream."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<IIq")
_BUFFER_BYTES = 1 << 20


class Pair(NamedTuple):
    """A pair. ``number`` is an event's time in ms, or the place of the pair's store among the workload's stores."""

    key: bytes
    value: bytes
    number: int


def write_pairs(path: Path, pairs: Iterable[tuple[bytes, bytes, int]]) -> int:
    """Write a new file, or replace one. Return the number of pairs."""
    count = 0
    with path.open("wb", buffering=_BUFFER_BYTES) as file:
        for key, value, number in pairs:
            file.write(_HEAD.pack(len(key), len(value), number) + key + value)
            count += 1
    return count


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs in order, read one by one. Raises: EOFError if the file ends within a pair."""
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                raise EOFError(f"{path} ends within a pair")
            key_bytes, value_bytes, number = _HEAD.unpack(head)
            body = file.read(key_bytes + value_bytes)
            if len(body) < key_bytes + value_bytes:
                raise EOFError(f"{path} ends within a pair")
            yield Pair(body[:key_bytes], body[key_bytes:], number)
