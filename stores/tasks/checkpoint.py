"""The checkpoint file of a task: which changelog offset each store's files reflect.

Text, in Kafka's format, version 0: the version, the number of lines that follow, then ``topic partition offset`` each.
The last line ends in a checksum of the whole that no reader of the format sees: the bits of a CRC-32 as blanks, a space
for 0 and a tab for 1. Kafka parts a line at whitespace and passes over what is behind the offset; a file of Kafka's own
has no such end, and is taken as it is. Beside the file it would need a protocol of its own to change with it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from stores.errors import StoreCorruptedError
from stores.files import StrangeFileError, make_file, read_file, sync_folder, system_errors_told
from stores.interface import TopicPartition

VERSION = 0
_BLANKS = b" \t"
_BYTES_MAX = 64 << 20
"""Enough for the lines of 200,000 stores."""
UNKNOWN_OFFSET = -4
"""Stands for a store whose offset is not known. Source: Kafka, ``OffsetCheckpoint.OFFSET_UNKNOWN``."""
_PARTITIONS, _OFFSETS = range(1 << 31), range(UNKNOWN_OFFSET, 1 << 63)
"""What there are of both. Source: Kafka, ``OffsetCheckpoint.read``, whose partition is an int and offset a long."""


class CheckpointFile:
    """The file at ``path``: whole or not there, whatever happens while it is written.

    Raises, all methods: StoreUnavailableError where the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[TopicPartition, int]:
        """Offset by changelog partition; empty where there is no file.

        Raises: StoreCorruptedError for garbage, and for a checksum that does not fit.
        """
        with system_errors_told(self.path):
            try:
                raw = read_file(self.path, _BYTES_MAX)
            except FileNotFoundError:
                return {}
            except StrangeFileError as error:
                if self.path.is_dir():
                    # Nothing that was here is damaged: a folder is in the way, which only a person should remove.
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.path)) from error
                raise self._garbage(f"not a plain file of up to {_BYTES_MAX:,} bytes") from error
            # Whoever put it there may have been killed before its name was synced: what is gone on from must stay.
            sync_folder(self.path.parent)
        if not raw.endswith(b"\n"):
            raise self._garbage("its last line has no end")
        told = raw[:-1].rstrip(_BLANKS)
        blanks = raw[len(told) : -1]
        if blanks and blanks != _checksum(told):
            raise self._garbage("its checksum does not fit")
        try:
            version, count, *entries = told.decode("ascii").splitlines()
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

    def write(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Replace the file by one with ``offsets``, or remove it where there are none; survives power loss.

        None stands for an offset that is not known: it is written as such, and read as none.
        """
        if not offsets:
            self._remove()
            return
        lines = [str(VERSION), str(len(offsets))]
        lines += [
            f"{topic} {partition} {UNKNOWN_OFFSET if offset is None else offset}"
            for (topic, partition), offset in sorted(offsets.items())
        ]
        new = self.path.with_name(self.path.name + ".new")
        with system_errors_told(self.path):
            told = "\n".join(lines).encode("ascii")
            with open(make_file(new), "wb") as file:
                file.write(told + _checksum(told) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            sync_folder(self.path.parent)

    def forget(self, partition: TopicPartition) -> None:
        """Take one offset out. A file that is garbage is removed: it vouches for nothing."""
        try:
            offsets = self.read()
        except StoreCorruptedError:
            self._remove()
            return
        if offsets.pop(partition, None) is not None:
            self.write(offsets)

    def _remove(self) -> None:
        with system_errors_told(self.path):
            if os.path.lexists(self.path):
                self.path.unlink()
                sync_folder(self.path.parent)

    def _garbage(self, reason: str) -> StoreCorruptedError:
        return StoreCorruptedError(
            f"{self.path} is no checkpoint, {reason}: remove it; stores that need it are restored from their changelog"
        )


def _checksum(told: bytes) -> bytes:
    bits = f"{crc32(told):032b}".encode()
    return bits.translate(bytes.maketrans(b"01", _BLANKS))
