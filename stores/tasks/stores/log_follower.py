"""A store that follows a log: it is opened, wiped if it does not fit the log, and written in pieces of bounded size.

A reader outside of the function, such as a view or a query, reads what the task itself may not read for long. Its error
comes to a caller who can't restore the store. So it notes the damage beside the store, and the next opening by a task
checks whether it is still there.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, ClassVar

from stores.changelog.interface import Changelog, RecordColumns
from stores.config import StoreConfig
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreTooNewError, damaged
from stores.failpoints import Part, declare, reach
from stores.files.creation import DAMAGE_FILE
from stores.files.plain_files import translated_system_errors
from stores.interface import IsolationLevel, KeyValueStore, Position, PositionBound, RecoveryOutcome, TopicPartition
from stores.records.record_kind import check_untyped
from stores.registry import backend_named
from stores.tasks.stores.log_format import Conversion
from stores.tasks.stores.log_identity import keep_log_id, other_log, too_old
from stores.tasks.stores.log_start import needed_from
from stores.tasks.stores.replay_bound import ReplayBound

BEFORE_WRITE = declare(
    "task.restore.before_write",
    "a piece of the changelog's tail is read, the store has not seen it",
    part=Part.RESTORE,
    twice=True,
)
AFTER_WRITE = declare(
    "task.restore.after_write",
    "a piece of the changelog's tail is in the store, with its last offset",
    part=Part.RESTORE,
    twice=True,
)

_log = logging.getLogger(__name__)

PROGRESS_S = 10.0
"""The time between two messages about one restore."""
PIECE_RECORDS_MAX = 50_000
PIECE_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """The progress of the restore of ``store``: it has reached ``offset``, and ends before ``to_offset``.

    ``bytes`` counts keys and values, ``seconds`` the time since the restore began.
    """

    store: str
    offset: int
    to_offset: int
    records: int
    bytes: int
    seconds: float

    @property
    def left(self) -> int:
        """The offsets that are left."""
        return max(0, self.to_offset - 1 - self.offset)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The report of a restore, on opening or on a return to the last commit.

    ``records`` of its changelog were written, from ``from_offset`` up to but without ``to_offset``.

    ``wiped`` is True if the local state was wiped first, and ``reason`` says why. It also names the offsets that the
    changelog has lost, if the whole store was restored without them, and the snapshots that could not be used.
    ``bytes`` counts keys and values. ``recovery`` is the outcome of the store's own recovery.
    """

    store: str
    from_offset: int
    to_offset: int
    records: int
    bytes: int
    seconds: float
    wiped: bool = False
    reason: str | None = None
    recovery: RecoveryOutcome = RecoveryOutcome.NOTHING_TO_DO
    upgraded: bool = False
    """True if opening found the last record of an older format gone (``Timestamps.split_has_ended``)."""
    snapshot_offset: int | None = None
    """The offset of the snapshot from whose files the store began; None if it began from none."""
    snapshot_bytes: int = 0
    """The bytes of these files."""


OnRestore = Callable[[RestoreProgress], None]
"""Called after each piece that was written. An exception ends the restore, and with it the task or its opening."""


@dataclass(slots=True)
class Restored:
    """The result of ``restore``. ``last_offset`` is that of the last record written into the store, if any."""

    from_offset: int
    to_offset: int
    records: int = 0
    bytes: int = 0
    last_offset: int | None = None
    cut: bool = False
    """True if it ended after ``max_records``: the changelog may have more."""
    missing: tuple[int, int] | None = None
    """The offsets that the restore of a whole store needs and the changelog lacks: the first one, and the end."""


class ColumnReader:
    """A read of a log, in parts of any size."""

    def __init__(self, read: Iterator[RecordColumns]) -> None:
        self._read = read
        self._left: RecordColumns | None = None

    def next(self) -> RecordColumns | None:
        """Return the next records, at least one; None at the end. Raises: ChangelogError."""
        columns, self._left = self._left or next(self._read, None), None
        return columns

    def give_back(self, columns: RecordColumns) -> None:
        """Let ``columns``, the last ones of those that ``next`` returned, come next: at least one record."""
        self._left = columns


class Piece:
    """Records of a log that a store takes in one step, and the last offset of each partition that they are from."""

    def __init__(self) -> None:
        self.pairs: list[tuple[bytes, bytes | None]] = []
        self.offsets: dict[TopicPartition, int] = {}
        self.read = 0
        """The records that were read, also those without a key, which are of no store."""
        self.records = 0
        """Those with a key."""
        self.num_bytes = 0
        """The bytes of their keys and values."""

    def add(
        self, partition: TopicPartition, reader: ColumnReader, conversion: Conversion, records_max: int, bytes_max: int
    ) -> bool:
        """Add records until the piece is full, by number or bytes; return whether it is. Raises: ChangelogError."""
        while self.read < records_max and self.num_bytes < bytes_max:
            columns = reader.next()
            if columns is None:
                return False
            sizes = _sizes(columns)
            count = min(len(sizes), records_max - self.read)
            if self.num_bytes + sum(sizes) > bytes_max:
                count = min(count, bisect_left(list(accumulate(sizes)), bytes_max - self.num_bytes) + 1)
            if count < len(sizes):
                reader.give_back(columns.part(count))
                columns, sizes = columns.part(0, count), sizes[:count]
            self.pairs.extend(conversion.pairs(partition, columns))
            self.offsets[partition] = columns.offsets[-1]
            self.read += count
            self.records += count - columns.keys.count(None)
            self.num_bytes += sum(sizes)
        return True


def _sizes(columns: RecordColumns) -> list[int]:
    """Return the bytes of the key and value of each record; 0 for one without a key, which is of no store."""
    keys: Sequence[Any] = columns.keys
    values: Sequence[Any] = columns.values
    if None in keys or None in values:
        return [0 if key is None else len(key) + len(value or b"") for key, value in zip(keys, values, strict=True)]
    return list(map(add, map(len, keys), map(len, values)))


class LogFollower:
    """A store that has what a log has up to the offsets that it keeps. For one thread.

    The log is the truth. A store that is damaged, too old, or does not fit the log is wiped, and reads the log from its
    start. A subclass adds its reasons to wipe (``_misfit``), and what is removed with the store (``_forget``). The log
    is ``topic`` of ``changelog``, if that is given: then a topic of another ID is another log.
    """

    store: KeyValueStore
    """The store that was opened last."""
    _wiped_after: ClassVar[tuple[type[StoreError], ...]] = (StoreCorruptedError, StoreTooNewError)
    """The errors of opening after which the store is wiped."""

    def __init__(
        self, name: str, path: Path, config: StoreConfig, changelog: Changelog | None = None, topic: str = ""
    ) -> None:
        self.name, self.path = name, path
        self._log, self._topic = changelog, topic
        self.bound = ReplayBound(config.restore_max_bytes)
        self.restore_bytes = sys.maxsize if config.memory is None else config.memory.restore_bytes
        """The memory for records of all restores and global stores of the process that are read and not written yet."""
        self.wiped_because: str | None = None
        """The reason of the last wipe; None if there was none."""
        self.was_damaged = False
        """True if the store was wiped because of damage, which copies of its files may have as well."""
        self._config = config

    def open_or_wipe(self) -> None:
        """Open the store, and wipe it if it is damaged or does not fit its log. Raises: as ``open_store``."""
        self.wiped_because = None
        log_id, aged = self._log_id(), too_old(self.path, self._config.max_age_s)  # Before files of it are changed.
        try:
            self._open()
            check_noted(self.store, self.path)
            reason = self._misfit() or other_log(self.store, self._topic, log_id) or aged
        except self._wiped_after as error:
            self.was_damaged = isinstance(error, StoreCorruptedError)
            reason = str(error)
        if reason is not None:
            self.wipe(reason, logging.WARNING)
        keep_log_id(self.store, log_id)

    def wipe_after(self, error: StoreError) -> None:
        """Wipe the store because of ``error``. Raises: as ``wipe``."""
        self.was_damaged = isinstance(error, StoreCorruptedError)
        self.wipe(str(error))

    def wipe(self, reason: str, level: int = logging.INFO) -> None:
        """Remove the store, and open an empty one. ``level`` is that of the log message. Raises: as ``open_store``."""
        log_id = self._log_id()
        self.wiped_because = reason
        _log.log(level, "store %r in %s is wiped, to be read whole from its log: %s", self.name, self.path, reason)
        # A failed engine may fail here, too.
        with suppress(StoreError):
            LogFollower.close(self)
        # First: if an offset outlived the data, it would count for the data of an interrupted restore.
        self._forget()
        self.start_empty(log_id)

    def start_empty(self, log_id: str | None = None) -> None:
        """Replace what is in the folder by an empty store of the log, and open that.

        ``log_id`` is the ID of the log; None to ask for it. Raises: as ``open_store``; ChangelogError.
        """
        log_id = self._log_id() if log_id is None else log_id
        with suppress(StoreError):
            LogFollower.close(self)
        backend_named(self._config.backend).wipe(self.path)
        self._open()
        keep_log_id(self.store, log_id)

    def replace(self, place: Callable[[], None]) -> None:
        """Close the store, call ``place``, which puts another one in its folder, and open that.

        Raises: as ``open_store``; the errors of ``place``.
        """
        LogFollower.close(self)
        place()
        self._open()

    def _open(self) -> None:
        """Open the store, and prepare it for its kind of records."""
        self._open_engine()
        if self._config.records is None:
            check_untyped(self.store)
        else:
            self._config.records.prepare(self.store)

    def _open_engine(self) -> None:
        self.store = self._config.open(self.path, name=self.name)
        self.bound.follow(self.store.persistence)

    def _misfit(self) -> str | None:
        """Return the reason why the open store does not fit its log; None if it does."""
        return None

    def _log_id(self) -> str:
        """Return the ID of the log now, "" if it has none. Raises: ChangelogError."""
        log = self._log
        return "" if log is None or type(log).topic_id is Changelog.topic_id else log.topic_id(self._topic)

    def _forget(self) -> None:
        """Remove what is kept of the store outside of its folder."""

    def close(self) -> None:
        """Close the store, if it was ever opened. May be called more than once."""
        if hasattr(self, "store"):
            self.store.close()


def check_noted(store: KeyValueStore, path: Path) -> None:
    """Check a store in the folder ``path`` whole if a reader has noted damage. The note of a sound store is removed.

    It takes the time of a few scans. Raises: StoreCorruptedError; StoreUnavailableError if the note can't be removed.
    """
    note = path / DAMAGE_FILE
    if not store.persistent or not note.exists():
        return
    if is_damaged(store):
        raise damaged(f"a reader has found damage of {path}, and a check found it again")
    with translated_system_errors(note):
        note.unlink()
    _log.warning("a reader had found damage of %s, and a check of the whole store found none", path)


def is_damaged(store: KeyValueStore) -> bool:
    """Return whether a verification or a scan of all data, staged writes included, finds damage."""
    try:
        store.verify()
        with store.all() as pairs:
            for _ in pairs:
                pass
    except (StoreCorruptedError, CommitFailedError):
        # An engine that has aborted its transaction because of the damage can't be read.
        return True
    return False


def restore(
    store: KeyValueStore,
    changelog: Changelog,
    partition: TopicPartition,
    offset: int | None,
    position: Position,
    on_restore: OnRestore | None,
    bound: ReplayBound,
    conversion: Conversion,
    memory_bytes: int = sys.maxsize,
    *,
    max_records: int | None = None,
) -> Restored:
    """Write the committed records after ``offset`` (None: all) into the store, each piece with its last offset.

    It ends at the last stable offset as of the call, and does not wait for gaps or aborted records at the end. The last
    piece is stored with ``position``, that of the input whose effects the changelog has. ``conversion`` maps the
    records to the store's pairs and marks. All restores of the process share ``memory_bytes`` for what they have read
    and not written. With ``max_records`` it ends after that number of records, and then without ``position``.

    Raises: OffsetOutOfRangeError if the changelog no longer has the next record; ChangelogError with the offset of a
    record that the store can't have; as ``StateStore.restore``.
    Source: KIP-892, "Restoring"; KIP-844, step 1.
    """
    began = last_message = perf_counter()
    result = Restored(0 if offset is None else offset + 1, changelog.end_offset(partition))
    if offset is None:
        start, needed = changelog.start_offset(partition), needed_from(changelog, partition)
        result.from_offset, result.missing = max(start, needed), (needed, start) if needed < start else None
    keeps_marks = store.keeps_marks and not conversion.plain

    def write(piece: Piece, position: Position | None = None) -> None:
        nonlocal last_message
        reach(BEFORE_WRITE)
        bound.make_room(piece.num_bytes)
        store.restore(piece.pairs, piece.offsets, position, conversion.marks() if keeps_marks else None)
        conversion.written()
        if store.manages_offsets:
            bound.committed(piece.num_bytes)
        reach(AFTER_WRITE)
        result.last_offset = offset = piece.offsets[partition]
        result.records += piece.records
        result.bytes += piece.num_bytes
        now = perf_counter()
        progress = RestoreProgress(store.name, offset, result.to_offset, result.records, result.bytes, now - began)
        if now - last_message >= PROGRESS_S:
            last_message = now
            _log.info(
                "store %r is being restored: at offset %d, to before %d, %d records in %.0f s so far",
                store.name,
                offset,
                result.to_offset,
                result.records,
                progress.seconds,
            )
        if on_restore is not None:
            on_restore(progress)

    reader = ColumnReader(changelog.read_columns(partition, result.from_offset))
    left = sys.maxsize if max_records is None else max_records
    piece = Piece()
    with RESTORING:
        while piece.add(partition, reader, conversion, *piece_limits(memory_bytes, left)) and left > piece.read:
            write(piece)
            left -= piece.read
            piece = Piece()
    result.cut = left <= piece.read
    if piece.offsets:
        write(piece, None if result.cut else position)
    elif not result.cut and PositionBound(position).behind(store.position(IsolationLevel.READ_COMMITTED)):
        store.restore([], {}, position)
    return result


class _Restoring:
    """The number of restores that run now, in all threads."""

    def __init__(self) -> None:
        self.number = 0
        self._lock = Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.number += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.number -= 1


RESTORING = _Restoring()
_COPIES, _RECORD_BYTES = 3, 400
"""The memory of a piece: its keys and values are also in the read that it is from, and in the engine's batch. Each
record has objects of Python besides."""


def piece_limits(memory_bytes: int, left: int) -> tuple[int, int]:
    """Return the most records, of those ``left``, and the most bytes of a piece, by this restore's part of memory."""
    part_bytes = memory_bytes // max(RESTORING.number, 1)
    num_bytes = min(PIECE_BYTES_MAX, max(part_bytes // _COPIES, 1))
    return min(PIECE_RECORDS_MAX, max(part_bytes // _RECORD_BYTES, 1), left), num_bytes


def reported(
    store: KeyValueStore, partition: TopicPartition, done: Restored, seconds: float, wiped_because: str | None
) -> RestoreReport:
    """Return the report of a restore, which took ``seconds`` from the opening on, and log what it did and lacks."""
    if done.records:
        _log.info(
            "store %r restored %d records (%d bytes) of %s-%d, from offset %d to before %d, in %.1f s",
            store.name,
            done.records,
            done.bytes,
            *partition,
            done.from_offset,
            done.to_offset,
            seconds,
        )
    reasons = [reason for reason in (wiped_because, warn_of_missing(store.name, partition, done)) if reason is not None]
    recovery = store.recover()
    return RestoreReport(
        store.name,
        done.from_offset,
        done.to_offset,
        done.records,
        done.bytes,
        seconds,
        wiped_because is not None,
        "; ".join(reasons) or None,
        recovery.outcome,
        store.timestamps.split_has_ended,
    )


def warn_of_missing(name: str, partition: TopicPartition, done: Restored) -> str | None:
    """Return what the changelog lacks for a restore of the whole store, and warn of it; None for nothing."""
    if done.missing is None:
        return None
    first, end = done.missing
    missing = (
        f"the records from offset {first} to before {end} of {partition.topic}-{partition.partition} are missing, and "
        "the task has not dropped them: the store lacks what only they had"
    )
    _log.warning("store %r is restored without some records: %s", name, missing)
    return missing
