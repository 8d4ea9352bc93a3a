"""The index of a snapshot: it names the files of a store at one commit, and what they are files of.

A snapshot counts once its index is in place, which comes last. The index is put only if its name is free. The name has
the offset and a digest of the rest of what two indexes of one name share, so that either of two owners may win.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, Self

from stores.errors import StoreCorruptedError
from stores.files.plain_files import parsed_json
from stores.interface import Position, TopicPartition

VERSION = 2
"""The version of the form of an index."""
INDEX_END = ".json"
INDEX_BYTES_MAX = 256 << 20
"""Enough for the parts of a store of some terabytes."""
TOKEN_CHARS = 16
_DIGEST_CHARS = 16
_OFFSET_CHARS = 20
_HEX = frozenset("0123456789abcdef")
_TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999."""


class StoredPart(NamedTuple):
    """A part of a file, which is an object of its own."""

    digest: str
    """The SHA-256 of its content."""
    num_bytes: int
    token: str
    """The upload that has put it there: no other one writes to this object, or relies on it without an index."""

    def __str__(self) -> str:
        return f"{self.digest}-{self.token}"


class SnapshotFile(NamedTuple):
    """A file of the store's engine, or of changes: its name, and its parts in their order."""

    name: str
    parts: Sequence[StoredPart]

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True)
class SnapshotKind:
    """The properties that a snapshot and a store that begins from it share, besides the changelog partition."""

    changelog_id: str
    """The identity of the changelog topic, another one if it was removed and made again."""
    backend: str
    format_version: int
    """The version of the format on disk (``stores.files.identity``)."""
    marks: Mapping[str, str | None]
    """The marks that say what the records are, by name."""

    @property
    def digest(self) -> str:
        """A short digest of all of it."""
        return _digest(self._fields())[:_DIGEST_CHARS]

    def _fields(self) -> dict[str, Any]:
        return {
            "changelog_id": self.changelog_id,
            "backend": self.backend,
            "format_version": self.format_version,
            "marks": dict(self.marks),
        }

    def misfit(self, wanted: SnapshotKind) -> str | None:
        """Return why a store of the kind ``wanted`` can't begin from a snapshot of this one; None if it can.

        Of another backend it can: the records of the snapshot are copied.
        """
        if self.changelog_id != wanted.changelog_id:
            return "it is of another changelog topic of the same name"
        if self.format_version != wanted.format_version:
            return f"it has the format version {self.format_version}, not {wanted.format_version}"
        if self.marks != wanted.marks:
            return "its records are described otherwise, or others were left out"
        return None


class IndexName(NamedTuple):
    """The name of an index, taken apart. Names sort by the offset."""

    offset: int
    digest: str

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return the parts of ``name``, None if it is not the name of an index."""
        offset, dash, digest = name.removesuffix(INDEX_END).partition("-")
        if not (dash and name.endswith(INDEX_END) and len(offset) == _OFFSET_CHARS and offset.isdecimal()):
            return None
        return cls(int(offset), digest) if len(digest) == _DIGEST_CHARS and _HEX.issuperset(digest) else None

    def __str__(self) -> str:
        return f"{self.offset:0{_OFFSET_CHARS}d}-{self.digest}{INDEX_END}"


@dataclass(frozen=True, kw_only=True)
class SnapshotIndex:
    """The content of an index."""

    partition: TopicPartition
    """The changelog partition."""
    offset: int
    """The offset in it that the files reflect (``StoreObjects.offset_in``)."""
    kind: SnapshotKind
    position: Position
    """The highest input offsets that the files reflect."""
    stream_time_ms: int
    """The stream time of the store; -1 if it has none."""
    created_ms: int
    """When it was taken, in milliseconds since 1970, by the clock of the machine."""
    files: Sequence[SnapshotFile]
    """The files of the engine, as they were at ``offset`` or earlier."""
    changes: Sequence[SnapshotFile] = ()
    """Files of the changes since then, which follow each other up to ``offset`` (``stores.engines.changes``)."""

    @property
    def name(self) -> IndexName:
        """The name that the index has."""
        return IndexName(self.offset, self.kind.digest)

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.num_bytes for file in (*self.files, *self.changes))

    def parts(self) -> Iterator[StoredPart]:
        """Return the parts of all files."""
        return (part for file in (*self.files, *self.changes) for part in file.parts)

    def encoded(self) -> bytes:
        """Return the content of the index as JSON, with a checksum."""
        fields = {
            "version": VERSION,
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "offset": self.offset,
            **self.kind._fields(),
            "position": [[*partition, offset] for partition, offset in sorted(self.position.items())],
            "stream_time_ms": self.stream_time_ms,
            "created_ms": self.created_ms,
            "files": [[file.name, [[*part] for part in file.parts]] for file in self.files],
            "changes": [[file.name, [[*part] for part in file.parts]] for file in self.changes],
        }
        return json.dumps({**fields, "sha256": _digest(fields)}).encode()

    @classmethod
    def decode(cls, content: bytes, where: str) -> Self:
        """Return the index that ``encoded`` made. Raises: StoreCorruptedError, which names ``where``."""
        try:
            fields = parsed_json(content)
            if not isinstance(fields, dict) or fields.pop("sha256") != _digest(fields):
                raise ValueError("its checksum does not match")
            if fields["version"] != VERSION:
                raise ValueError(f"it has version {fields['version']}, and this release reads {VERSION}")
            if type(fields["created_ms"]) is not int or not 0 <= fields["created_ms"] <= _TIME_MAX_MS:
                raise ValueError(f"it was taken at {fields['created_ms']!r} ms, which is no time")
            return cls(
                partition=TopicPartition(fields["topic"], fields["partition"]),
                offset=fields["offset"],
                kind=SnapshotKind(fields["changelog_id"], fields["backend"], fields["format_version"], fields["marks"]),
                position={TopicPartition(topic, number): offset for topic, number, offset in fields["position"]},
                stream_time_ms=fields["stream_time_ms"],
                created_ms=fields["created_ms"],
                files=[_file(name, parts) for name, parts in fields["files"]],
                changes=[_file(name, parts) for name, parts in fields["changes"]],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreCorruptedError(f"{where} can't be read: {error}. Remove it") from error


def _file(name: str, parts: Sequence[tuple[str, int, str]]) -> SnapshotFile:
    # The file is made under this name: one with a folder in it would be elsewhere.
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is not the name of a file")
    checked = [StoredPart(*part) for part in parts]
    for part in checked:
        lengths = len(part.digest), len(part.token)
        is_hex = _HEX.issuperset(part.digest + part.token)
        if not (lengths == (64, TOKEN_CHARS) and is_hex and type(part.num_bytes) is int and part.num_bytes > 0):
            raise ValueError(f"the file {name} has an invalid part")
    return SnapshotFile(name, checked)


def _digest(fields: Mapping[str, Any]) -> str:
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
