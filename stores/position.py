"""Offsets and positions as meta entries of an engine, and how they are merged.

An entry's key is a letter (``o`` for a changelog offset, ``p`` for an input position), the partition as four bytes
big-endian and the topic in UTF-8; its value the offset as eight bytes big-endian, signed.
"""

from __future__ import annotations

from collections.abc import Mapping

from stores.errors import StoreCorruptedError
from stores.interface import TopicPartition

OFFSET, POSITION = b"o", b"p"


def encode(kind: bytes, offsets: Mapping[TopicPartition, int | None]) -> dict[bytes, bytes | None]:
    """Meta entries for ``offsets``; None removes one."""
    return {
        kind + partition.partition.to_bytes(4, "big") + partition.topic.encode(): None
        if offset is None
        else offset.to_bytes(8, "big", signed=True)
        for partition, offset in offsets.items()
    }


def decode(kind: bytes, meta: Mapping[bytes, bytes]) -> dict[TopicPartition, int]:
    """The offsets of one kind among all meta entries. Raises StoreCorruptedError for an entry that is none."""
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
    return StoreCorruptedError(f"offset entry {key!r} is damaged: wipe the store and restore it from its changelog")


def merge(older: Mapping[TopicPartition, int], newer: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Both positions, by maximum. Source: KIP-796, ``Position#merge``."""
    merged = dict(older)
    for partition, offset in newer.items():
        if offset > merged.get(partition, -1):
            merged[partition] = offset
    return merged
