"""Restore of a store: write its changelog's tail straight into the engine, in pieces of bounded size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from stores.changelog.interface import Changelog, Record
from stores.errors import ChangelogError
from stores.failpoints import Part, declare, reach
from stores.interface import (
    IsolationLevel,
    KeyValueStore,
    Position,
    PositionBound,
    RecoveryOutcome,
    TopicPartition,
)
from stores.records.record_kind import UnfitRecordError
from stores.tasks.stores.conversion import Conversion
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


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The report of a restore, on opening or on a return to the last commit.

    ``records`` of its changelog were written, from ``from_offset`` up to but without ``to_offset``.

    ``wiped`` is True if the local state was wiped first, and ``reason`` says why. It also names the offsets that the
    changelog has lost, if the whole store was restored without them. ``bytes`` counts keys and values.
    ``recovery`` is the outcome of the store's own recovery.
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


def restore(
    store: KeyValueStore,
    changelog: Changelog,
    partition: TopicPartition,
    offset: int | None,
    position: Position,
    on_restore: OnRestore | None,
    bound: ReplayBound,
    conversion: Conversion,
    *,
    max_records: int | None = None,
) -> Restored:
    """Write the committed records after ``offset`` (None: all) into the store, each piece with its last offset.

    It ends at the last stable offset as of the call, and does not wait for gaps or aborted records at the end. The last
    piece is stored with ``position``, that of the input whose effects the changelog has. ``conversion`` maps the
    records to the store's pairs and marks. With ``max_records`` it ends after that number of records, and then without
    ``position``.

    Raises: OffsetOutOfRangeError if the changelog no longer has the next record; ChangelogError with the offset of a
    record that the store can't have; as ``StateStore.restore``.
    Source: KIP-892, "Restoring"; KIP-844, step 1.
    """
    began = told = perf_counter()
    end = changelog.end_offset(partition)
    if offset is None:
        start, needed = changelog.start_offset(partition), needed_from(changelog, partition)
        # An offset beyond the end is that of an earlier changelog of this name.
        needed = needed if needed <= end else 0
        done = Restored(max(start, needed), end, missing=(needed, start) if needed < start else None)
    else:
        done = Restored(offset + 1, end)
    from_offset = done.from_offset
    piece: list[tuple[bytes, bytes | None]] = []
    piece_bytes = piece_records = skipped = 0
    plain, keeps_marks = conversion.plain, store.keeps_marks

    def write(position: Position | None = None) -> None:
        nonlocal told
        reach(BEFORE_WRITE)
        assert done.last_offset is not None
        bound.make_room(piece_bytes)
        if keeps_marks and not plain:
            store.restore(piece, {partition: done.last_offset}, position, conversion.marks())
        else:
            store.restore(piece, {partition: done.last_offset}, position)
        if store.manages_offsets:
            bound.committed(piece_bytes)
        reach(AFTER_WRITE)
        done.records += piece_records
        done.bytes += piece_bytes
        now = perf_counter()
        if now - told >= PROGRESS_S:
            told = now
            _log.info(
                "store %r is being restored: at offset %d, to before %d, %d records in %.0f s so far",
                store.name,
                done.last_offset,
                done.to_offset,
                done.records,
                now - began,
            )
        if on_restore is not None:
            seconds = now - began
            on_restore(RestoreProgress(store.name, done.last_offset, done.to_offset, done.records, done.bytes, seconds))

    records = changelog.read(partition, from_offset)
    key_bytes_max = store.max_key_bytes
    for record in records if max_records is None else islice(records, max_records):
        if record.key is None:
            skipped += 1
            continue  # This is not of a store: each change of a store is logged under its key.
        if plain and not record.headers and 0 < len(record.key) <= key_bytes_max:
            piece.append((record.key, record.value))
        else:
            piece.extend(_checked(record, partition, conversion, key_bytes_max))
        piece_records += 1
        piece_bytes += len(record.key) + len(record.value or b"")
        done.last_offset = record.offset
        if piece_records >= PIECE_RECORDS_MAX or piece_bytes >= PIECE_BYTES_MAX:
            write()
            piece, piece_bytes, piece_records = [], 0, 0
    done.cut = max_records is not None and done.records + piece_records + skipped >= max_records
    if done.cut:
        if piece_records:
            write()
    elif piece_records:
        write(position)
    elif PositionBound(position).behind(store.position(IsolationLevel.READ_COMMITTED)):
        store.restore([], {}, position)
    return done


def reported(
    store: KeyValueStore, partition: TopicPartition, done: Restored, seconds: float, wiped_because: str | None
) -> RestoreReport:
    """Return the report of a restore, and log what was restored and what is missing.

    ``seconds`` is the time since the store began to open, and ``wiped_because`` says why it was wiped, None if it
    was not.
    """
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


def _checked(
    record: Record, partition: TopicPartition, conversion: Conversion, key_bytes_max: int
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the pairs of a record that the store keeps. Raises: ChangelogError for a record that no store can have."""
    try:
        for key, value in conversion.convert(record):
            if 0 < len(key) <= key_bytes_max:
                yield key, value
            elif value is not None:
                raise _unfit(
                    record, partition, f"its key has {len(key)} bytes, and the store takes 1 to {key_bytes_max}"
                )
    except UnfitRecordError as error:
        raise _unfit(record, partition, str(error)) from error


def _unfit(record: Record, partition: TopicPartition, reason: str) -> ChangelogError:
    return ChangelogError(
        f"record {record.offset} of the changelog {partition.topic}-{partition.partition} can't be restored: {reason}. "
        "Choose a configuration that takes it, or delete its key with the application that logged it, and restore once "
        "the topic is compacted"
    )
