"""Marks: small named bytes that a store keeps beside its data, as meta entries of an engine.

An entry's key is the letter ``m``, the mark's name, a zero byte and the number of the part, as one byte; its value is
that part of the mark's bytes. All parts but the last have ``_PART_BYTES``, since an engine keeps short entries only.
"""

from __future__ import annotations

from collections.abc import Mapping

from stores.errors import damaged

MARK = b"m"
NAME_CHARACTERS_MAX = 64
VALUE_BYTES_MAX = 64 << 10
_PART_BYTES = 1 << 10


def check_name(name: object) -> None:
    """Refuse what is no name of a mark: 1 to 64 printable ASCII characters. Raises: TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a mark's name is a str, not {type(name).__name__}")
    if not (0 < len(name) <= NAME_CHARACTERS_MAX and name.isascii() and name.isprintable()):
        raise ValueError(f"a mark's name has 1 to {NAME_CHARACTERS_MAX} printable ASCII characters, not {name!r}")


def check_value(value: object) -> None:
    """Refuse what a mark can't hold: it holds up to 64 KiB of bytes, or None. Raises: TypeError, ValueError."""
    if value is None:
        return
    if not isinstance(value, bytes):
        raise TypeError(f"a mark is bytes or None, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"a mark has up to {VALUE_BYTES_MAX:,} bytes, not {len(value):,}")


def check(marks: Mapping[str, bytes | None]) -> None:
    """Refuse names and values that are none. Raises: TypeError, ValueError."""
    for name, value in marks.items():
        check_name(name)
        check_value(value)


def changed(kept: Mapping[str, bytes], staged: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return the marks of ``staged`` that are not in ``kept`` as they are; None removes one."""
    return {name: value for name, value in staged.items() if kept.get(name) != value}


def encode(kept: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[bytes, bytes | None]:
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


def decode(meta: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Return the marks among all meta entries. Raises: StoreCorruptedError for an entry that is no part of one."""
    parts: dict[str, list[bytes]] = {}
    for key in sorted(key for key in meta if key[:1] == MARK):
        name = key[1:-2].decode("ascii", errors="replace")
        found = parts.setdefault(name, [])
        if key[-2:] != bytes([0, len(found)]) or (found and len(found[-1]) != _PART_BYTES):
            raise damaged(f"mark entry {key!r} is damaged")
        found.append(meta[key])
    return {name: b"".join(found) for name, found in parts.items()}


def merge(kept: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return the marks ``kept`` with ``changes`` made."""
    return {name: value for name, value in {**kept, **changes}.items() if value is not None}


def _num_parts(value: bytes | None) -> int:
    return 0 if value is None else max(1, -(-len(value) // _PART_BYTES))
