"""Offsets and positions as meta entries of an engine, and how they are merged.

An entry's key is a letter (``o`` for a changelog offset, ``p`` for an input position), the partition as four bytes
big-endian and the topic in UTF-8. Its value is the offset as eight bytes big-endian, signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from stores.errors import StoreCorruptedError, damaged
from stores.interface import TopicPartition

OFFSET, POSITION = b"o", b"p"

_pack = Struct(">q").pack


class _Keys(dict[TopicPartition, bytes]):
    """A cache of the keys of one kind of entries: every commit needs those of the same few partitions."""

    _MOST = 4_096

    def __init__(self, kind: bytes) -> None:
        self._kind = kind

    def __missing__(self, partition: TopicPartition) -> bytes:
        if len(self) >= self._MOST:
            self.clear()
        self[partition] = key = self._kind + partition.partition.to_bytes(4, "big") + partition.topic.encode()
        return key


_KEYS = {kind: _Keys(kind) for kind in (OFFSET, POSITION)}


def encode(kind: bytes, offsets: Mapping[TopicPartition, int | None]) -> dict[bytes, bytes | None]:
    """Return the meta entries for ``offsets``; None removes one."""
    keys = _KEYS[kind]
    entries: dict[bytes, bytes | None] = {}
    # A loop, as below: in every commit a comprehension costs more than its one or two entries.
    for partition, offset in offsets.items():
        entries[keys[partition]] = None if offset is None else _pack(offset)
    return entries


def decode(kind: bytes, meta: Mapping[bytes, bytes]) -> dict[TopicPartition, int]:
    """Return the offsets of one kind among all meta entries. Raises: StoreCorruptedError for an invalid entry."""
    found = {}
    for key, value in meta.items():
        if key[:1] == kind:
            try:
                topic = key[5:].decode()
            except UnicodeDecodeError as error:
                raise _damaged(key) from error
            if len(key) < 5 or len(value) != 8:
                raise _damaged(key)
            partition = TopicPartition(topic, int.from_bytes(key[1:5], "big"))
            found[partition] = int.from_bytes(value, "big", signed=True)
    return found


def _damaged(key: bytes) -> StoreCorruptedError:
    return damaged(f"offset entry {key!r} is damaged")


def merge(older: Mapping[TopicPartition, int], newer: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Merge two positions by maximum. Source: KIP-796, ``Position#merge``."""
    return {**older, **advanced(older, newer)}


def advanced(older: Mapping[TopicPartition, int], newer: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the entries of ``newer`` that are beyond those of ``older``."""
    beyond: dict[TopicPartition, int] = {}
    for partition, offset in newer.items():
        if offset > older.get(partition, -1):
            beyond[partition] = offset
    return beyond
