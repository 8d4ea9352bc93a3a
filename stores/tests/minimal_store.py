"""A store of another package that implements lookups, writes and commit, and leaves everything else to the defaults.

It keeps its pairs in one file, rewritten at each commit. ``Direct`` writes it at each put.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stores.contract.reading import PlainIterator
from stores.errors import StoreClosedError
from stores.interface import KeyValueIterator, KeyValueStore, TopicPartition


class Nothing:
    """The resource of a scan over a copy: nothing."""

    def close(self) -> None:
        """Nothing."""


class Direct(KeyValueStore):
    """Not transactional, keeps no offsets; a commit has nothing to do."""

    persistent = True

    def __init__(self, path: Path, *, name: str, **settings: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._file, self._name, self._open = path / "pairs.json", name, True
        self._pairs: dict[bytes, bytes] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self._load()

    def _load(self) -> None:
        if self._file.exists():
            content = json.loads(self._file.read_text())
            self._pairs = {key.encode("latin-1"): value.encode("latin-1") for key, value in content["pairs"]}
            self._offsets = {TopicPartition(topic, number): at for topic, number, at in content["offsets"]}

    def _save(self) -> None:
        new = self._file.with_suffix(".new")
        pairs = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in self._pairs.items()]
        offsets = [(*partition, at) for partition, at in self._offsets.items()]
        new.write_text(json.dumps({"pairs": pairs, "offsets": offsets}))
        os.replace(new, self._file)

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_open(self) -> bool:
        return self._open

    def get(self, key: bytes) -> bytes | None:
        if not self._open:
            raise StoreClosedError("closed")
        return self._pairs.get(key)

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        if not self._open:
            raise StoreClosedError("closed")
        pairs = sorted(
            pair
            for pair in self._pairs.items()
            if (start is None or pair[0] >= start) and (end is None or pair[0] <= end)
        )
        return PlainIterator(pairs, Nothing())  # type: ignore[arg-type]

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = value
        self._save()

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        """Everything is written."""

    def close(self) -> None:
        self._open = False


class DirectWithOffsets(Direct):
    """Not transactional, keeps its offsets."""

    manages_offsets = True

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        self._offsets.update((partition, at) for partition, at in (changelog_offsets or {}).items() if at is not None)
        self._save()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        return self._offsets.get(partition)


class Transactional(Direct):
    """Keeps uncommitted writes in memory, and no offsets."""

    transactional = True

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = value

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        self._save()

    def rollback(self) -> None:
        self._pairs, self._offsets = {}, {}
        self._load()


class TransactionalWithOffsets(Transactional, DirectWithOffsets):
    """Keeps uncommitted writes in memory, and its offsets with its pairs."""

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        DirectWithOffsets.commit(self, changelog_offsets)


class InMemory(Direct):
    """Keeps nothing when its process ends."""

    persistent = False

    def _save(self) -> None:
        """Nowhere."""


KINDS: Mapping[str, type[Direct]] = {
    "minimal-direct": Direct,
    "minimal-direct-offsets": DirectWithOffsets,
    "minimal-transactional": Transactional,
    "minimal-transactional-offsets": TransactionalWithOffsets,
    "minimal-memory": InMemory,
}
