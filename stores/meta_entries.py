"""Offsets, positions and marks as meta entries of an engine: small values that a store keeps beside its data.

The key of an offset's entry is a letter (``o`` for a changelog offset, ``p`` for an input position), the partition as
four bytes big-endian and the topic in UTF-8. Its value is the offset as eight bytes big-endian, signed.

The key of a mark's entry is the letter ``m``, the mark's name, a zero byte and the number of the part, as one byte. Its
value is that part of the mark's bytes. All parts but the last have ``_PART_BYTES``, since an engine keeps short entries
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from stores.contract.arguments import check_type
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


def encode_offsets(kind: bytes, offsets: Mapping[TopicPartition, int | None]) -> dict[bytes, bytes | None]:
    """Return the meta entries for ``offsets``; None removes one."""
    keys = _KEYS[kind]
    entries: dict[bytes, bytes | None] = {}
    # A loop, as below: in every commit a comprehension costs more than its one or two entries.
    for partition, offset in offsets.items():
        entries[keys[partition]] = None if offset is None else _pack(offset)
    return entries


def decode_offsets(kind: bytes, meta: Mapping[bytes, bytes]) -> dict[TopicPartition, int]:
    """Return the offsets of one kind among all meta entries. Raises: StoreCorruptedError for an invalid entry."""
    offsets = {}
    for key, value in meta.items():
        if key[:1] == kind:
            try:
                topic = key[5:].decode()
            except UnicodeDecodeError as error:
                raise _damaged(key) from error
            if len(key) < 5 or len(value) != 8:
                raise _damaged(key)
            partition = TopicPartition(topic, int.from_bytes(key[1:5], "big"))
            offsets[partition] = int.from_bytes(value, "big", signed=True)
    return offsets


def _damaged(key: bytes) -> StoreCorruptedError:
    return damaged(f"offset entry {key!r} is damaged")


def merge_positions(
    older: Mapping[TopicPartition, int], newer: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Merge two positions by maximum. Source: KIP-796, ``Position#merge``."""
    return {**older, **offsets_beyond(older, newer)}


def offsets_beyond(
    older: Mapping[TopicPartition, int], newer: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the entries of ``newer`` that are beyond those of ``older``."""
    beyond: dict[TopicPartition, int] = {}
    for partition, offset in newer.items():
        if offset > older.get(partition, -1):
            beyond[partition] = offset
    return beyond


MARK = b"m"
MARK_NAME_CHARACTERS_MAX = 64
MARK_BYTES_MAX = 64 << 10
_PART_BYTES = 1 << 10


def check_mark_name(name: str) -> None:
    """Refuse what is no name of a mark: 1 to 64 printable ASCII characters. Raises: TypeError, ValueError."""
    check_type(name, str, "a mark's name is a str")
    if not (0 < len(name) <= MARK_NAME_CHARACTERS_MAX and name.isascii() and name.isprintable()):
        raise ValueError(f"a mark's name has 1 to {MARK_NAME_CHARACTERS_MAX} printable ASCII characters, not {name!r}")


def check_mark_value(value: bytes | None) -> None:
    """Refuse what a mark can't hold: it holds up to 64 KiB of bytes, or None. Raises: TypeError, ValueError."""
    check_type(value, bytes | None, "a mark is bytes or None")
    if value is not None and len(value) > MARK_BYTES_MAX:
        raise ValueError(f"a mark has up to {MARK_BYTES_MAX:,} bytes, not {len(value):,}")


def check_marks(marks: Mapping[str, bytes | None]) -> None:
    """Refuse names and values that are none. Raises: TypeError, ValueError."""
    for name, value in marks.items():
        check_mark_name(name)
        check_mark_value(value)


def changed_marks(kept: Mapping[str, bytes], staged: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return the marks of ``staged`` that are not in ``kept`` as they are; None removes one."""
    return {name: value for name, value in staged.items() if kept.get(name) != value}


def encode_marks(kept: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[bytes, bytes | None]:
    """Return the meta entries that make ``changes`` to the marks ``kept``."""
    entries: dict[bytes, bytes | None] = {}
    for name, value in changes.items():
        key = MARK + name.encode() + b"\x00"
        old = kept.get(name)
        for part in range(_num_parts(value), _num_parts(old)):
            entries[key + bytes([part])] = None
        if value is not None:
            for part in range(_num_parts(value)):
                entries[key + bytes([part])] = value[part * _PART_BYTES : (part + 1) * _PART_BYTES]
    return entries


def decode_marks(meta: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Return the marks among all meta entries. Raises: StoreCorruptedError for an entry that is no part of one."""
    parts: dict[str, list[bytes]] = {}
    for key in sorted(key for key in meta if key[:1] == MARK):
        name = key[1:-2].decode("ascii", errors="replace")
        values = parts.setdefault(name, [])
        if key[-2:] != bytes([0, len(values)]) or (values and len(values[-1]) != _PART_BYTES):
            raise damaged(f"mark entry {key!r} is damaged")
        values.append(meta[key])
    return {name: b"".join(values) for name, values in parts.items()}


def merge_marks(kept: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return the marks ``kept`` with ``changes`` made."""
    return {name: value for name, value in {**kept, **changes}.items() if value is not None}


def _num_parts(value: bytes | None) -> int:
    return 0 if value is None else max(1, -(-len(value) // _PART_BYTES))
