"""A store by itself, without a task, of which snapshots are taken when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stores.interface import KeyValueStore, TopicPartition
from stores.registry import backend_named, open_store
from stores.snapshots.index import SnapshotIndex
from stores.snapshots.objects import StoreObjects
from stores.snapshots.restoring import kind_of, make_store
from stores.snapshots.taking import SnapshotFigures, SnapshotTaker
from stores.strategies.store import Store
from stores.tests.snapshots.snapshotting import (
    SNAPPED,
    WITHIN_S,
    settings,
)

PARTITION = TopicPartition("changelog", 0)
CHANGING = [name for name in SNAPPED if backend_named(name).load_engine().captures_changes]
over_each_changing_backend = pytest.mark.parametrize("backend", CHANGING)


class Snapping:
    """A store of which a snapshot is taken when ``snap`` says so."""

    def __init__(self, folder: Path, backend: str, options: dict[str, object], **given: Any) -> None:
        self.backend = backend
        self.settings = settings(folder, keep=1_000, cpu_share=None, **given)
        self.objects, self.figures = StoreObjects(self.settings.folder, PARTITION), SnapshotFigures()
        self.store = open_store(backend, folder / "store", options=options)
        self.offset = -1
        self.kind = kind_of("id", backend_named(backend), {})
        self.taker = SnapshotTaker(self.settings, self.objects, folder / "store", lambda _: self.kind, self.figures)
        self.taker.begin()

    def commit(self) -> None:
        self.offset += 1
        self.store.commit({PARTITION: self.offset})

    def snap(self, *, failing: bool = False) -> None:
        """Take a snapshot of the last commit, or attempt it."""
        assert isinstance(self.store, Store)
        done = self.figures.total, self.figures.failed_total
        self.taker.after_commit(self.store, self.offset)
        assert self.taker.wait(WITHIN_S)
        assert (self.figures.total, self.figures.failed_total) == (done[0] + (not failing), done[1] + failing)

    def put_and_snap(self, numbers: range, value: bytes) -> None:
        """Put a value for some keys, commit, and take a snapshot."""
        put(self.store, numbers, value)
        self.commit()
        self.snap()

    def newest(self) -> SnapshotIndex:
        return self.objects.index(self.objects.indexes()[0])

    def close(self) -> None:
        self.taker.end()
        self.store.close()


@contextmanager
def snapping_store(folder: Path, backend: str, **given: Any) -> Iterator[Snapping]:
    with closing(Snapping(folder, backend, given.pop("options", {}), **given)) as opened:
        yield opened


def key_of(number: int) -> bytes:
    return b"key %06d" % number


def keys(numbers: range) -> list[bytes]:
    return [key_of(number) for number in numbers]


def put(store: KeyValueStore, numbers: range, value: bytes) -> None:
    store.put_all([(key_of(number), value) for number in numbers])


def restored(snapping: Snapping, index: SnapshotIndex, folder: Path) -> tuple[dict[bytes, bytes], int | None]:
    """Return the records of a store that is made of a snapshot, and its offset."""
    make_store(snapping.objects, index, folder, backend_named(snapping.backend), 2)
    with open_store(snapping.backend, folder) as store:
        store.verify()
        return dict(store.all()), store.committed_offset(PARTITION)
