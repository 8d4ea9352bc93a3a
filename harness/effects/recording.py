"""What a process did to the files below a folder, effect by effect, as plain values.

A recording is a file: ``MAGIC``, then one record per effect: ``_HEADER`` (the length of what follows its first field;
the kind, as a place in ``Kind``; flags; the lengths of path and target; index, file, offset, length), path, target,
and data to the end. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stores.errors import ConfigError

MAGIC = b"effects1"
_HEADER = struct.Struct("<IBBIIqqqq")
_SYNCHRONOUS, _GROWS, _UNKEPT = 1, 2, 4


class Kind(StrEnum):
    """What an effect does. All kinds but those in ``NOT_COUNTED`` count, and may be killed at, torn or failed."""

    CREATE = "create"
    """A file appears under ``path``; from now on it is ``file``."""
    WRITE = "write"
    """``data`` at ``offset`` of ``file``, lengthening it where needed."""
    TRUNCATE = "truncate"
    """``file`` gets ``length`` bytes: cut, or zeros appended."""
    ALLOCATE = "allocate"
    """``file`` has space for ``offset`` .. ``offset + length``; its size grows where ``grows`` is true."""
    SYNC = "sync"
    """``file`` (a folder too), its size and its names: fsync and relatives."""
    DATASYNC = "datasync"
    """``file`` and its size: fdatasync."""
    SYNC_ALL = "sync_all"
    """Everything: sync, syncfs."""
    RENAME = "rename"
    """``path`` becomes ``target``, replacing what was there."""
    LINK = "link"
    """``target`` becomes another name of the file at ``path``."""
    UNLINK = "unlink"
    """The name ``path`` goes."""
    MKDIR = "mkdir"
    """A folder appears under ``path``; from now on it is ``file``."""
    RMDIR = "rmdir"
    """The empty folder ``path`` goes."""
    MAP_WRITABLE = "map_writable"
    """``file`` was mapped shared and writable: what is written through the map is not seen. No effect on bytes."""
    NOTE = "note"
    """The process said ``text``, at this place among its effects."""
    SYNC_FAILED = "sync_failed"
    """A sync of ``file`` (of everything where it is -1) returned the error that was planned."""


NOT_COUNTED = (Kind.MAP_WRITABLE, Kind.NOTE, Kind.SYNC_FAILED)


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect. ``index`` counts them from 0 in the order in which they were performed.

    What does not count (a note, a map, a failed sync) carries the index of the effect that follows it. ``file`` numbers
    are given at creation or where the file is first met and are never used again; the folder watched is 0. ``path`` is
    relative to that folder; of an effect through a descriptor it is the file's name at that moment (one of them, where
    it has several; "" for the folder itself and where the file has none left): so a file that was there before the
    recording began is found by the path of the first effect that bears its number. ``synchronous`` writes went through
    O_SYNC or O_DSYNC descriptors; ``unkept`` is one whose sync returned the error that was planned: its bytes are
    there to be read, and the disk did not take them. ``length`` is of TRUNCATE, ALLOCATE and MAP_WRITABLE.
    """

    index: int
    kind: Kind
    file: int = -1
    path: str = ""
    target: str = ""
    offset: int = 0
    length: int = 0
    data: bytes = b""
    synchronous: bool = False
    unkept: bool = False
    grows: bool = False
    text: str = ""


def read_recording(path: Path) -> list[Effect]:
    """The effects of a recording, in order. A last record that the process died in is left out.

    Raises: ConfigError where the file is no recording, or a damaged one.
    """
    raw = path.read_bytes()
    if not MAGIC.startswith(raw[: len(MAGIC)]):
        raise ConfigError(f"{path} is no recording of effects: give a file that steering.begin has written")
    try:
        effects = _parsed(raw)
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{path} is a damaged recording ({error}): make a new one") from error
    counted = 0
    for effect in effects:
        if effect.index != counted:
            raise ConfigError(f"{path} is a damaged recording: behind effect {counted - 1} comes {effect.index}")
        counted += effect.kind not in NOT_COUNTED
    return effects


def _parsed(raw: bytes) -> list[Effect]:
    """Raises: IndexError or ValueError where the bytes can't be a recording's."""
    effects = []
    kinds = tuple(Kind)
    at = len(MAGIC)
    while at + _HEADER.size <= len(raw):
        rest, kind, flags, path_bytes, target_bytes, index, file, offset, length = _HEADER.unpack_from(raw, at)
        end = at + 4 + rest
        target_at = at + _HEADER.size + path_bytes
        data_at = target_at + target_bytes
        if data_at > end:
            raise ValueError(f"the record at byte {at} is shorter than it says")
        if end > len(raw):
            break
        data = raw[data_at:end]
        is_note = kinds[kind] is Kind.NOTE
        effects.append(
            Effect(
                index=index,
                kind=kinds[kind],
                file=file,
                path=raw[target_at - path_bytes : target_at].decode(errors="surrogateescape"),
                target=raw[target_at:data_at].decode(errors="surrogateescape"),
                offset=offset,
                length=length,
                data=b"" if is_note else data,
                synchronous=bool(flags & _SYNCHRONOUS),
                unkept=bool(flags & _UNKEPT),
                grows=bool(flags & _GROWS),
                text=data.decode() if is_note else "",
            )
        )
        at = end
    return effects
