"""The stores of one partition on an executor's disk: a local copy, found as it was left, and restored from the log.

Python workers of one executor take turns with a partition. Each that has it open holds its own copy, in a numbered
folder whose lock says so; a copy that is free is used first. A copy is never the truth: it may be wiped at any time. A
function writes to a store of bytes that stages each write in the copy, and records it for the log.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from stores.changelog.files import PartitionLog, StoreChanges
from stores.changelog.files.format import Record, folder_name
from stores.changelog.files.snapshot_chains import RestorePiece
from stores.config import StoreConfig
from stores.errors import (
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.failpoints import Part, declare, reach
from stores.files.plain_files import check_no_link, parsed_json
from stores.forwarding import ForwardedTimestamps, LoggedStore
from stores.interface import HoldsStored, KeyValueStore, TopicPartition
from stores.records.record_kind import RecordKind, is_empty
from stores.records.segments import packed
from stores.records.timestamped import TimestampedKind
from stores.spark.context import RecordTime, TimedStaging
from stores.spark.figures import size_of, store_figures
from stores.tasks.stores.log_follower import LogFollower

RESTORED = declare("spark.restored", "a version of the log is in the stores", part=Part.CHANGE)
BETWEEN_STORES = declare("spark.between_stores", "one store has the version, and another lacks it", part=Part.CHANGE)
COMMITTED = declare("spark.committed", "all stores have the version, no row of it is given out", part=Part.CHANGE)
COPIES_MAX = 256
VERSION_ID = "version_id"
"""The mark of a local store with the ID of its version. The log does not have it."""
TTL = "query_ttl_ms"
"""The mark with the time to live of a store's records. It may change, so the log's description lacks it."""
LOGGED_MARKS = "logged_marks"
"""The mark that lists the names of all marks that were ever set, as JSON: a snapshot has to find them."""

_log = logging.getLogger(__name__)


class LocalCopy(LogFollower):
    """One local store, at a version of its log, and the store that a function sees."""

    _wiped_after = (StoreCorruptedError, StoreIncompatibleError)

    def __init__(self, name: str, path: Path, config: StoreConfig, partition: TopicPartition) -> None:
        super().__init__(name, path, config)
        self._partition = partition
        self.recorder: RecordingStore

    @property
    def version(self) -> int | None:
        """The version that it has reached, None if it has none."""
        return self.store.committed_offset(self._partition)

    @property
    def is_empty(self) -> bool:
        """True if nothing of a version is in it."""
        return self.version is None and is_empty(self.store) and not logged_marks(self.store)

    def shown(self, time: RecordTime) -> Any:
        """Return the store as a function sees it. A typed one reads marks when it is made."""
        self.recorder = RecordingStore(self.store)
        records = self._config.records
        return self.recorder if records is None else records.staged(TimedStaging(self.recorder, time))


class LocalState:
    """The open stores of one partition, at one version of its log. For the thread that opens it."""

    def __init__(self, folder: Path, partition: int, configs: Mapping[str, StoreConfig]) -> None:
        """Open a free copy below ``folder``. Raises: StoreUnavailableError, StoreIncompatibleError, ConfigError."""
        self._partition = TopicPartition("versions", partition)
        self._configs = configs
        self._folder = folder
        self._opened: dict[str, LocalCopy] = {}
        self.stores: dict[str, Any] = {}
        """The stores as a function sees them, by name."""
        self.commit_ms: int | None = None
        """The time that the last commit here took, with that in the log; None before the first."""
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
        reached = [copy.version for copy in self._opened.values()]
        return None if None in reached else min((number for number in reached if number is not None), default=None)

    def bring_to(self, log: PartitionLog, version: int | None, version_id: str | None = None) -> int:
        """Bring the stores to ``version`` of the log, None for its beginning; return how many versions were read.

        Stores that have another version of that number, whose ID is not ``version_id``, are wiped and restored.

        Raises: as ``PartitionLog.restore``, and StoreUnavailableError on an error of the local disk.
        """
        with full_disk_named(self._path):
            try:
                return self._bring_to(log, version, version_id)
            except StoreCorruptedError as error:
                self._wipe_all(str(error))
                return self._bring_to(log, version, version_id)

    def take_changes(self) -> dict[str, StoreChanges]:
        """Return the changes of all stores since the last version, with those that a typed store makes at a commit."""
        for store in self.stores.values():
            if not isinstance(store, RecordingStore):
                store._before_commit()
        for name, copy in self._opened.items():
            keep_ttl(copy.recorder, self._configs[name].records)
        changes = {name: copy.recorder.take() for name, copy in self._opened.items()}
        return {name: change for name, change in changes.items() if change.pairs or change.marks}

    def figures(
        self, changes: Mapping[str, StoreChanges], before: Mapping[str, Mapping[str, int]]
    ) -> dict[str, dict[str, int]]:
        """Return the figures of each store with staged ``changes``, before the commit. Raises: StoreError."""
        return {
            name: store_figures(
                copy.store, changes.get(name, StoreChanges()), before.get(name, {}), copy.recorder.take_sizes()
            )
            for name, copy in self._opened.items()
        }

    def commit(self, version: int, version_id: str | None = None) -> None:
        """Commit what is staged as ``version``, which the log has with that ID. Raises: as ``StateStore.commit``."""
        for number, copy in enumerate(self._opened.values()):
            if number:
                reach(BETWEEN_STORES)
            if copy.store.keeps_marks:
                copy.store.set_mark(VERSION_ID, None if version_id is None else version_id.encode())
            copy.store.commit({self._partition: version})
        reach(COMMITTED)

    def records(self) -> Iterator[Record]:
        """Return all that is committed, for a snapshot."""
        for name, copy in self._opened.items():
            store, marks = copy.store, logged_marks(copy.store)
            for mark in [LOGGED_MARKS, *marks] if marks else []:
                yield name, True, mark.encode(), store.mark(mark)
            with store.all() as pairs:
                for key, value in pairs:
                    yield name, False, key, value

    def close(self) -> None:
        """Close the stores, without a commit. An error of one is logged: the log has all that counts."""
        for name, copy in self._opened.items():
            try:
                copy.close()
            except StoreError as error:
                _log.warning("store %r could not be closed: %s", name, error)
        self._opened, self.stores = {}, {}

    def _bring_to(self, log: PartitionLog, version: int | None, version_id: str | None) -> int:
        misfit = self._misfit(log, version, version_id)
        if misfit is not None:
            self._wipe_all(misfit)
        elif all(copy.version == version for copy in self._opened.values()):
            return 0
        num_versions = 0
        for piece in [] if version is None else log.restore(self.version, version):
            if piece.fresh and not self._is_empty():
                self._wipe_all("the log no longer has the version after it")
            self._restore(piece)
            num_versions += 1
            reach(RESTORED)
        self._make_views()
        return num_versions

    def _misfit(self, log: PartitionLog, version: int | None, version_id: str | None) -> str | None:
        """Return the reason why the stores do not fit the log, which was perhaps brought back from a copy."""
        reached = [copy.version for copy in self._opened.values()]
        if any(number is not None and (version is None or number > version) for number in reached):
            return "it is beyond its log"
        if None in reached and not self._is_empty():
            return "a restore was interrupted"
        return None if self._is_of(log, version, version_id) else "the log has another version of its number"

    def _is_empty(self) -> bool:
        return all(copy.is_empty for copy in self._opened.values())

    def _is_of(self, log: PartitionLog, version: int | None, version_id: str | None) -> bool:
        """Return True if each store has the version of its number that the log has."""
        ids: dict[int | None, str | None] = {version: version_id}
        for copy in self._opened.values():
            number = copy.version
            own_id = copy.store.mark(VERSION_ID) if copy.store.keeps_marks and number is not None else None
            if number is None or own_id is None:
                continue
            if number not in ids:
                ids[number] = log.id_of(number)
            if ids[number] not in (None, own_id.decode(errors="replace")):
                return False
        return True

    def _restore(self, piece: RestorePiece) -> None:
        version, own = piece.reached, {} if piece.id is None else {VERSION_ID: piece.id.encode()}
        for name, copy in self._opened.items():
            if version is not None and copy.version is not None and copy.version >= version:
                continue
            changes = piece.changes.get(name, StoreChanges())
            copy.store.restore(
                changes.pairs.items(),
                {} if version is None else {self._partition: version},
                marks={**changes.marks, **own} if copy.store.keeps_marks else None,
            )

    def _open_all(self) -> None:
        for name, config in self._configs.items():
            path = self._path / name
            check_no_link(self._folder.parent, path)
            self._opened[name] = copy = LocalCopy(name, path, config, self._partition)
            copy.open_or_wipe()
        self._make_views()

    def _make_views(self) -> None:
        self.stores = {name: copy.shown(self.record_time) for name, copy in self._opened.items()}

    def _wipe_all(self, reason: str) -> None:
        for copy in self._opened.values():
            copy.wipe(reason)
        self._make_views()


class RecordedTimestamps(ForwardedTimestamps):
    """Timestamps with the lookup of the store below, which is never replaced."""

    def lookup(
        self, form: type[HoldsStored], otherwise: Callable[[bytes], HoldsStored | None]
    ) -> Callable[[bytes], HoldsStored | None]:
        return self._store.inner.timestamps.lookup(form, otherwise)


SIZES_MAX = 200_000
"""The keys of one batch whose sizes are kept as they are read. Those of others are looked up for the figures."""


class RecordingStore(LoggedStore):
    """A store over ``inner`` that records its changes since the last ``take``.

    The batch commits, restores and closes it: these calls raise StoreError here. Memory is bounded by the keys that one
    batch changes.
    """

    refusals: ClassVar[Mapping[str, str]] = {
        "commit": "is committed with its batch: leave out the call",
        "rollback": "is rolled back with its batch: raise an exception for that",
        "restore": "is restored from the state folder: leave out the call",
        "close": "stays open for the next batch: leave out the call",
    }

    def __init__(self, inner: KeyValueStore) -> None:
        super().__init__(inner)
        self._changes = StoreChanges()
        self._sizes: dict[bytes, int] = {}
        """The sizes of committed values that were read before their keys changed, ``ABSENT`` for none."""

    def get(self, key: bytes) -> bytes | None:
        value = self.inner.get(key)
        if key not in self._changes.pairs and len(self._sizes) < SIZES_MAX:
            self._sizes[key] = size_of(value)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self.inner.get_many(keys)
        if len(self._sizes) < SIZES_MAX and isinstance(keys, list):
            changed = self._changes.pairs
            read = zip(keys, map(size_of, values), strict=True)
            self._sizes.update(((key, size) for key, size in read if key not in changed) if changed else read)
        return values

    def take_sizes(self) -> dict[bytes, int]:
        """Return the sizes of committed values that are known since the last call, by their keys."""
        sizes, self._sizes = self._sizes, {}
        return sizes

    def take(self) -> StoreChanges:
        """Return the changes since the last call."""
        changes, self._changes = self._changes, StoreChanges()
        return changes

    def put(self, key: bytes, value: bytes | None) -> None:
        self.inner.put(key, value)
        self._changes.pairs[key] = value

    def _log_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._changes.pairs.update(pairs)

    def set_mark(self, name: str, value: bytes | None) -> None:
        names = logged_marks(self.inner)
        self.inner.set_mark(name, value)
        self._changes.marks[name] = value
        if name not in names:
            listed = json.dumps(sorted({*names, name})).encode()
            self.inner.set_mark(LOGGED_MARKS, listed)
            self._changes.marks[LOGGED_MARKS] = listed

    @property
    def timestamps(self) -> RecordedTimestamps:
        return RecordedTimestamps(self)

    @property
    def deletes_ranges_whole(self) -> bool:
        """False: the log has each removed key."""
        return False


def logged_marks(store: KeyValueStore) -> list[str]:
    """Return the names of all marks that the log has, without the list of them. Raises: StoreCorruptedError."""
    mark = store.mark(LOGGED_MARKS)
    if mark is None:
        return []
    with suppress(ValueError):
        names = parsed_json(mark)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    raise StoreCorruptedError(
        f"the list of the marks of store {store.name!r} can't be read: remove the local copy, and the next batch "
        "restores it from the state folder"
    )


def keep_ttl(store: KeyValueStore, records: RecordKind | None) -> None:
    """Stage the time to live of ``records`` as a mark, if it is another one than in the state."""
    if not isinstance(records, TimestampedKind) or not store.keeps_marks:
        return
    mark = None if records.ttl_ms is None else packed(records.ttl_ms)
    if mark != store.mark(TTL):
        store.set_mark(TTL, mark)


ROOM_BYTES = 1 << 20
"""A disk with less free space counts as full: engines allocate their files in pieces of up to this size."""


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Name the full disk of ``folder`` in an error of this block: engines have other words, some an I/O error."""
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
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
