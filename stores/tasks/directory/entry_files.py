"""The two files beside the stores of a task: the changelog offset of each store, and the guarantee that wrote it.

The checkpoint file has the changelog offset that each store's files reflect. It is text in Kafka's format, version 0:
the version, the number of lines that follow, and the lines, each with ``topic partition offset``. The last line ends in
a checksum of the whole: the 32 bits of a CRC-32 as whitespace, a space for 0 and a tab for 1. Kafka splits a line at
whitespace and ignores everything after the offset. A file that Kafka wrote has no checksum and is accepted. A checksum
in a separate file could not change atomically with this one.

The origin file has the guarantee under which the stores were written. It matters for stores that do not isolate
uncommitted writes: their content is only known to be committed after an exactly-once task has closed them cleanly. The
file is durable before a task makes its first write to such a store, and says CLEAN only after a clean close. The
guarantee of a store without an entry is unknown. A store that isolates uncommitted writes and keeps its offsets with
its data needs no entry. It is JSON with a checksum: ``{"stores": {"NAME": "exactly_once"}, "checksum": 1}``.

Source: KIP-129, ``processing.guarantee`` ("swap and restart").
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from zlib import crc32

from stores.errors import StoreCorruptedError
from stores.files.plain_files import (
    StrangeFileError,
    atomic_write,
    read_file,
    read_json,
    remove_durably,
    replace_file,
    sync_folder,
    translated_system_errors,
)
from stores.interface import TopicPartition

VERSION = 0
_BLANKS = b" \t"
_BYTES_MAX = 64 << 20
"""Enough for the lines of 200,000 stores."""
UNKNOWN_OFFSET = -4
"""The entry of a store with an unknown offset. Source: Kafka, ``OffsetCheckpoint.OFFSET_UNKNOWN``."""
_PARTITIONS, _OFFSETS = range(1 << 31), range(UNKNOWN_OFFSET, 1 << 63)
"""The valid values. Source: Kafka, ``OffsetCheckpoint.read``, where a partition is an int and an offset a long."""


class CheckpointFile:
    """The checkpoint file at ``path``, always replaced atomically. Raises, all methods: StoreUnavailableError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[TopicPartition, int]:
        """Return the offsets by changelog partition; none without a file. Raises: StoreCorruptedError for garbage."""
        with translated_system_errors(self.path):
            try:
                raw = read_file(self.path, _BYTES_MAX)
            except FileNotFoundError:
                return {}
            except StrangeFileError as error:
                if self.path.is_dir():
                    # The file is not damaged: a folder has its name, and only a person should remove that.
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.path)) from error
                raise self._garbage(f"not a plain file of up to {_BYTES_MAX:,} bytes") from error
            # The writer may have been killed before the file's name was synced, and the task relies on the file now.
            sync_folder(self.path.parent)
        if not raw.endswith(b"\n"):
            raise self._garbage("its last line has no end")
        content = raw[:-1].rstrip(_BLANKS)
        blanks = raw[len(content) : -1]
        if blanks and blanks != _checksum(content):
            raise self._garbage("its checksum does not fit")
        try:
            version, count, *entries = content.decode("ascii").splitlines()
            if int(version) != VERSION or int(count) != len(entries):
                raise self._garbage(f"it says that it is of version {version} and has {count} lines")
            offsets = {}
            for entry in entries:
                topic, partition, offset = entry.split(" ")
                offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError as error:
            raise self._garbage("a line does not fit") from error
        if len(offsets) != len(entries):
            raise self._garbage("its lines contradict each other")
        for (_, number), at in offsets.items():
            if number not in _PARTITIONS or at not in _OFFSETS:
                raise self._garbage(f"partition {number} and offset {at} can't be")
        return {partition: offset for partition, offset in offsets.items() if offset >= 0}

    def known(self) -> dict[TopicPartition, int]:
        """Return the offsets as a task reads them: a damaged file has none."""
        try:
            return self.read()
        except StoreCorruptedError:
            return {}

    def write(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Replace the file durably, or remove it if there are no offsets. ``read`` leaves out None, an unknown one."""
        if not offsets:
            self._remove()
            return
        lines = [str(VERSION), str(len(offsets))]
        lines += [
            f"{topic} {partition} {UNKNOWN_OFFSET if offset is None else offset}"
            for (topic, partition), offset in sorted(offsets.items())
        ]
        with translated_system_errors(self.path):
            content = "\n".join(lines).encode("ascii")
            atomic_write(self.path, content + _checksum(content) + b"\n")

    def forget(self, partition: TopicPartition) -> None:
        """Remove the offset of ``partition``. A damaged file is removed whole: it has no valid offset."""
        try:
            offsets = self.read()
        except StoreCorruptedError:
            self._remove()
            return
        if offsets.pop(partition, None) is not None:
            self.write(offsets)

    def _remove(self) -> None:
        with translated_system_errors(self.path):
            remove_durably(self.path)

    def _garbage(self, reason: str) -> StoreCorruptedError:
        return StoreCorruptedError(
            f"{self.path} is not a valid checkpoint file, {reason}: remove it. Stores that need it are restored from "
            "their changelogs"
        )


class SplitCheckpoint:
    """A ``CheckpointFile`` that is split by changelog partition. ``path`` is the task's file, for messages."""

    def __init__(self, path: Path, files: Mapping[TopicPartition, CheckpointFile]) -> None:
        self.path = path
        self._files = files

    def read(self) -> dict[TopicPartition, int]:
        """Return the offsets of all files. A damaged file has none; the other files still count."""
        offsets: dict[TopicPartition, int] = {}
        for partition, file in self._files.items():
            offsets |= {key: offset for key, offset in file.known().items() if key == partition}
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Replace each file, or remove it if ``offsets`` has no entry for it; durable on return."""
        for partition, file in self._files.items():
            file.write({partition: offsets[partition]} if partition in offsets else {})


def _checksum(content: bytes) -> bytes:
    bits = f"{crc32(content):032b}".encode()
    return bits.translate(bytes.maketrans(b"01", _BLANKS))


_ORIGINS_BYTES_MAX = 16 << 20


class Origin(StrEnum):
    """The knowledge of a task about a store's content and its changelog."""

    CLEAN = "clean"
    """Its task was closed cleanly: it matches its changelog up to its offset."""
    EXACTLY_ONCE = "exactly_once"
    """An exactly-once task has it open, or did not close it cleanly: it may have writes that were never committed."""
    AT_LEAST_ONCE = "at_least_once"
    """It may have writes that were never committed, even from before the last opening: an at-least-once task keeps
    them."""


class OriginFile:
    """The origin file at ``path``, always replaced atomically. Raises, all methods: StoreUnavailableError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """The origins of the stores ``names`` that have an entry; AT_LEAST_ONCE for each if the file is damaged."""
        with translated_system_errors(self.path):
            try:
                content = read_json(self.path, _ORIGINS_BYTES_MAX)
            except FileNotFoundError:
                return {}
            except ValueError:
                content = None
            # Its writer may have been killed before the name was synced, and later writes rely on this file.
            sync_folder(self.path.parent)
        try:
            if not isinstance(content, dict):
                raise TypeError("it is not a JSON object")
            stores = {name: Origin(origin) for name, origin in content["stores"].items()}
            if content["checksum"] == checksum(stores):
                return stores
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        return dict.fromkeys(names, Origin.AT_LEAST_ONCE)

    def write(self, stores: Mapping[str, Origin]) -> None:
        """Replace the file by one with these entries, or remove it if there are none; durable on return."""
        with translated_system_errors(self.path):
            if stores:
                entries = dict(sorted(stores.items()))
                replace_file(self.path, json.dumps({"stores": entries, "checksum": checksum(entries)}) + "\n")
            else:
                remove_durably(self.path)


class SplitOrigins:
    """An ``OriginFile`` that is split by store."""

    def __init__(self, files: Mapping[str, OriginFile]) -> None:
        self._files = files

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """Return the origins of the stores ``names``; AT_LEAST_ONCE where a file is damaged."""
        origins: dict[str, Origin] = {}
        for name in names:
            origins |= self._files[name].read([name])
        return origins

    def write(self, stores: Mapping[str, Origin]) -> None:
        """Replace each file, or remove it if ``stores`` has no entry for it; durable on return."""
        for name, file in self._files.items():
            file.write({name: stores[name]} if name in stores else {})


def checksum(content: Mapping[str, object]) -> int:
    """Return the checksum of ``content`` as JSON."""
    return crc32(json.dumps(content, sort_keys=True).encode())
