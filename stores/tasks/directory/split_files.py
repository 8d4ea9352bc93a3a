"""The checkpoint and origin files of a task in the layout ``store-partition``: one for each store, used like one file.

The entries of different stores are independent, so that the order in which the files are replaced does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from stores.errors import StoreCorruptedError
from stores.interface import TopicPartition
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.origin_file import Origin, OriginFile


class SplitCheckpoint:
    """A ``CheckpointFile`` that is split by changelog partition. ``path`` is the task's file, for messages."""

    def __init__(self, path: Path, files: Mapping[TopicPartition, CheckpointFile]) -> None:
        self.path = path
        self._files = files

    def read(self) -> dict[TopicPartition, int]:
        """Return the offsets by changelog partition. A damaged file has none; the other files still count."""
        found: dict[TopicPartition, int] = {}
        for partition, file in self._files.items():
            with suppress(StoreCorruptedError):
                found |= {key: offset for key, offset in file.read().items() if key == partition}
        return found

    def write(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Replace each file, or remove it if ``offsets`` has no entry for it; durable on return."""
        for partition, file in self._files.items():
            file.write({partition: offsets[partition]} if partition in offsets else {})


class SplitOrigins:
    """An ``OriginFile`` that is split by store."""

    def __init__(self, files: Mapping[str, OriginFile]) -> None:
        self._files = files

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """Return the origins of the stores ``names`` that have an entry; AT_LEAST_ONCE if a file is damaged."""
        found: dict[str, Origin] = {}
        for name in names:
            found |= self._files[name].read([name])
        return found

    def write(self, stores: Mapping[str, Origin]) -> None:
        """Replace each file, or remove it if ``stores`` has no entry for it; durable on return."""
        for name, file in self._files.items():
            file.write({name: stores[name]} if name in stores else {})
