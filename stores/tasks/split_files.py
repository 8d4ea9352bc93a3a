"""The checkpoint and origin files of a task whose stores have one each, as if they were one.

Each store's entry stands for itself, so nothing depends on the order in which the files of several stores are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from stores.errors import StoreCorruptedError
from stores.interface import TopicPartition
from stores.tasks.checkpoint import CheckpointFile
from stores.tasks.origin_file import Origin, OriginFile


class SplitCheckpoint:
    """As ``CheckpointFile``, with one file for each changelog partition; ``path`` is the task's, for messages."""

    def __init__(self, path: Path, files: Mapping[TopicPartition, CheckpointFile]) -> None:
        self.path = path
        self._files = files

    def read(self) -> dict[TopicPartition, int]:
        """Offset by changelog partition. A damaged file has none: it concerns its own store alone."""
        found: dict[TopicPartition, int] = {}
        for partition, file in self._files.items():
            with suppress(StoreCorruptedError):
                found |= {told: offset for told, offset in file.read().items() if told == partition}
        return found

    def write(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Replace each file, or remove it where ``offsets`` has none for it; survives power loss."""
        for partition, file in self._files.items():
            file.write({partition: offsets[partition]} if partition in offsets else {})


class SplitOrigins:
    """As ``OriginFile``, with one file for each store."""

    def __init__(self, files: Mapping[str, OriginFile]) -> None:
        self._files = files

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """The origins of the stores ``names`` that have an entry; AT_LEAST_ONCE where a file is damaged."""
        found: dict[str, Origin] = {}
        for name in names:
            found |= self._files[name].read([name])
        return found

    def write(self, stores: Mapping[str, Origin]) -> None:
        """Replace each file, or remove it where ``stores`` has no entry for it; durable on return."""
        for name, file in self._files.items():
            file.write({name: stores[name]} if name in stores else {})
