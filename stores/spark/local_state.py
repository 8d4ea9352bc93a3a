"""The stores of one partition on an executor's disk: a local copy, found as it was left, and restored from the log.

Python workers of one executor take turns with a partition. Each that has it open holds its own copy, in a numbered
folder whose lock says so; a copy that is free is used first. A copy is never the truth: it may be wiped at any time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stores.changelog.files import PartitionLog, StoreChanges
from stores.changelog.files.format import Record, folder_name
from stores.changelog.files.partition_log import Piece
from stores.config import StoreConfig
from stores.errors import (
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.failpoints import Part, declare, reach
from stores.files.plain_files import check_no_link
from stores.interface import KeyValueStore, TopicPartition
from stores.records.record_kind import is_empty
from stores.registry import backend_named
from stores.spark.context import RecordTime, TimedStaging
from stores.spark.recording_store import LOGGED_MARKS, RecordingStore, keep_ttl, logged_marks

RESTORED = declare("spark.restored", "a version of the log is in the stores", part=Part.CHANGE)
BETWEEN_STORES = declare("spark.between_stores", "one store has the version, and another lacks it", part=Part.CHANGE)
COMMITTED = declare("spark.committed", "all stores have the version, no row of it is given out", part=Part.CHANGE)
COPIES_MAX = 256
VERSION_ID = "version_id"
"""The mark of a local store with the ID of its version. The log does not have it."""

_log = logging.getLogger(__name__)


class LocalState:
    """The open stores of one partition, at one version of its log. For the thread that opens it."""

    def __init__(self, folder: Path, partition: int, configs: Mapping[str, StoreConfig]) -> None:
        """Open a free copy below ``folder``, that of the log.

        Raises: StoreUnavailableError; StoreIncompatibleError if a link leads to a copy; ConfigError.
        """
        self._partition = TopicPartition("versions", partition)
        self._configs = configs
        self._folder = folder
        self._opened: dict[str, KeyValueStore] = {}
        self._recorders: dict[str, RecordingStore] = {}
        self.stores: dict[str, Any] = {}
        """The stores as a function sees them, by name."""
        self.record_time = RecordTime()
        """The time that a typed store takes if it is given none."""
        for number in range(COPIES_MAX):
            self._path = folder / folder_name(partition) / str(number)
            try:
                with full_disk_named(self._path):
                    self._open_all()
                return
            except StoreLockedError:
                self.close()
            except BaseException:
                self.close()
                raise
        raise StoreUnavailableError(
            f"all {COPIES_MAX} copies of partition {partition} in {folder} are in use: use fewer Python workers"
        )

    @property
    def version(self) -> int | None:
        """The version that all stores have reached, None if one has none."""
        reached = [store.committed_offset(self._partition) for store in self._opened.values()]
        return None if None in reached else min((number for number in reached if number is not None), default=None)

    def bring_to(self, log: PartitionLog, version: int | None, version_id: str | None = None) -> int:
        """Bring the stores to ``version`` of the log, None for its beginning; return how many versions were read.

        Stores that have another version of that number, whose ID is not ``version_id``, are wiped and restored.

        Raises: as ``PartitionLog.restore``, and StoreUnavailableError on an error of the local disk.
        """
        with full_disk_named(self._path):
            try:
                return self._bring_to(log, version, version_id)
            except StoreCorruptedError:
                self._wipe_all()
                return self._bring_to(log, version, version_id)

    def take_changes(self) -> dict[str, StoreChanges]:
        """Return the changes of all stores since the last version, with those that a typed store makes at a commit."""
        for store in self.stores.values():
            if not isinstance(store, RecordingStore):
                store.before_commit()
        for name, recorder in self._recorders.items():
            keep_ttl(recorder, self._configs[name].records)
        return {
            name: taken for name, recorder in self._recorders.items() if (taken := recorder.take()).pairs or taken.marks
        }

    def commit(self, version: int, version_id: str | None = None) -> None:
        """Commit what is staged as ``version``, which the log has with that ID. Raises: as ``StateStore.commit``."""
        for number, store in enumerate(self._opened.values()):
            if number:
                reach(BETWEEN_STORES)
            if store.keeps_marks:
                store.set_mark(VERSION_ID, None if version_id is None else version_id.encode())
            store.commit({self._partition: version})
        reach(COMMITTED)

    def records(self) -> Iterator[Record]:
        """Return all that is committed, for a snapshot."""
        for name, store in self._opened.items():
            marks = logged_marks(store)
            for mark in [LOGGED_MARKS, *marks] if marks else []:
                yield name, True, mark.encode(), store.mark(mark)
            with store.all() as pairs:
                for key, value in pairs:
                    yield name, False, key, value

    def close(self) -> None:
        """Close the stores, without a commit. An error of one is logged: the log has all that counts."""
        for name, store in self._opened.items():
            try:
                store.close()
            except StoreError as error:
                _log.warning("store %r could not be closed: %s", name, error)
        self._opened, self._recorders, self.stores = {}, {}, {}

    def _bring_to(self, log: PartitionLog, version: int | None, version_id: str | None) -> int:
        reached = self.version
        offsets = [store.committed_offset(self._partition) for store in self._opened.values()]
        ahead = any(offset is not None and (version is None or offset > version) for offset in offsets)
        if ahead or (reached is None and not self._is_empty()) or not self._is_of(log, version, version_id):
            # Without a version a restore was interrupted. Beyond the log, or with another version of a number, the log
            # was brought back from a copy.
            self._wipe_all()
            reached = None
        elif all(offset == version for offset in offsets):
            return 0
        num_versions = 0
        for piece in [] if version is None else log.restore(reached, version):
            if piece.fresh and not self._is_empty():
                self._wipe_all()
            self._restore(piece)
            num_versions += 1
            reach(RESTORED)
        self._make_views()
        return num_versions

    def _is_empty(self) -> bool:
        return all(
            store.committed_offset(self._partition) is None and is_empty(store) and not logged_marks(store)
            for store in self._opened.values()
        )

    def _is_of(self, log: PartitionLog, version: int | None, version_id: str | None) -> bool:
        """Return True if each store has the version of its number that the log has."""
        known: dict[int | None, str | None] = {version: version_id}
        for store in self._opened.values():
            offset = store.committed_offset(self._partition)
            kept = store.mark(VERSION_ID) if store.keeps_marks and offset is not None else None
            if offset is None or kept is None:
                continue
            if offset not in known:
                known[offset] = log.id_of(offset)
            if known[offset] not in (None, kept.decode(errors="replace")):
                return False
        return True

    def _restore(self, piece: Piece) -> None:
        version = piece.reached
        for name, store in self._opened.items():
            offset = store.committed_offset(self._partition)
            if version is not None and offset is not None and offset >= version:
                continue
            changed = piece.changes.get(name, StoreChanges())
            own = {} if piece.id is None else {VERSION_ID: piece.id.encode()}
            store.restore(
                changed.pairs.items(),
                {} if version is None else {self._partition: version},
                marks={**changed.marks, **own} if store.keeps_marks else None,
            )

    def _open_all(self) -> None:
        for name in self._configs:
            self._open(name)
        self._make_views()

    def _open(self, name: str) -> None:
        config, path = self._configs[name], self._path / name
        check_no_link(self._folder.parent, path)
        try:
            store = config.open(path, name=name)
        except (StoreCorruptedError, StoreIncompatibleError) as error:
            _log.warning("the local copy of store %r in %s is wiped: %s", name, path, error)
            backend_named(config.backend).wipe(path)
            store = config.open(path, name=name)
        self._opened[name] = store
        if config.records is not None:
            try:
                config.records.prepare(store)
            except (StoreCorruptedError, StoreIncompatibleError):
                if store.committed_offset(self._partition) is None:
                    raise
                store.close()
                backend_named(config.backend).wipe(path)
                self._opened[name] = store = config.open(path, name=name)
                config.records.prepare(store)

    def _make_views(self) -> None:
        """Make the stores that a function sees. A typed store reads marks when it is made."""
        for name, store in self._opened.items():
            records = self._configs[name].records
            recorder = self._recorders[name] = RecordingStore(store)
            self.stores[name] = (
                recorder if records is None else records.staged(TimedStaging(recorder, self.record_time))
            )

    def _wipe_all(self) -> None:
        for name, store in list(self._opened.items()):
            with suppress(StoreError):
                store.close()
            del self._opened[name]
            backend_named(self._configs[name].backend).wipe(self._path / name)
        self._open_all()


ROOM_BYTES = 1 << 20
"""A disk with less free space counts as full: engines allocate their files in pieces of up to this size."""


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Raise an error of this block as one that names the full disk of ``folder``, if it is full.

    Engines report a full disk in words of their own, some as an I/O error. Raises: StoreUnavailableError.
    """
    try:
        yield
    except StoreLockedError:
        raise
    except StoreError as error:
        free = _free_bytes(folder)
        if free is None or free >= ROOM_BYTES:
            raise
        raise StoreUnavailableError(
            f"No space left on device for the local copies in {folder} ({free:,} bytes are free): make room on this "
            f"executor, or give another folder as local. The state in the log is whole. {error}"
        ) from error


def _free_bytes(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
