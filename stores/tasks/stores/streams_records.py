"""The records of the stores of Kafka Streams, as the pairs that a store of the library keeps for them.

    a key-value store        one database: key and value, or eight bytes of a time and the value
    a window store           a database for each segment of time. Its keys are the key, the window start in eight
                             bytes, and in four bytes the number of a duplicate, which counts from 1, or 0
    a session store          the same; its keys are the key, the session's end and its start. It never has timestamps
    a versioned store        one database, whose keys begin with the number of a segment of time in eight bytes. -1 is
                             that of the latest values: eight bytes of a time and the value. In a segment a key has a
                             row: the versions that have ended within it

A row is the end of its latest version, the time of the earliest one, then time and size of each, the latest first,
then the values, the earliest first. A size of -1 is a deletion. A deletion without a version before it has a row that
ends at its own time. What lies between two rows of a key, or behind the last one of a key without a latest value, is
deleted.

No store keeps its stream time: it is the latest time that is found.

Source: Kafka Streams 4.1, ``WindowKeySchema``, ``SessionKeySchema``, ``AbstractSegments``, ``RocksDBVersionedStore``,
``RocksDBVersionedStoreSegmentValueFormatter``.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from stores.changelog.interface import Record
from stores.contract.arguments import TIME_BOUND_MS
from stores.engines.rocksdb.streams import PLAIN, TIMESTAMPED, StreamsDatabase
from stores.errors import damaged
from stores.interface import KeyValueStore
from stores.ordered import prefix_range
from stores.records.expiry import STREAM_TIME
from stores.records.pieces import Pairs
from stores.records.record_kind import RecordConverter
from stores.records.segment_values import LOG_FORM, STREAMS_FORM
from stores.records.segmented import SegmentedKind
from stores.records.segments import SegmentKeys, SessionKeys, WindowKeys, packed
from stores.records.timestamped import TimestampedKind
from stores.records.values import TIME, TIME_BYTES
from stores.records.versioned import VersionedKind
from stores.records.versions import pairs_of_versions
from stores.tasks.directory.store_places import segment_start_ms
from stores.tasks.stores.left_store import End, LeftStore, NotTakenOverError

LATEST: Final = b"\xff" * 8
"""The number of the segment of the latest values, -1."""
_HEAD, _ENTRY = struct.Struct(">qq"), struct.Struct(">qi")


def _end(database: StreamsDatabase) -> End | None:
    end = database.end()
    return None if end is None else End(*end)


def _check_families(database: StreamsDatabase) -> None:
    unknown = sorted(database.families - {PLAIN, TIMESTAMPED})
    if unknown:
        names = ", ".join(unknown)
        raise NotTakenOverError(f"it has the column families {names}, which are not known here", fits_another=True)


def _check_timestamps(*, has: bool, configured: bool, has_older: bool) -> None:
    """Check that a store ``has`` timestamps if one with them is ``configured``, and none from before it had them."""
    if has is not configured:
        raise NotTakenOverError(
            "it has no timestamps, and the configured store has"
            if configured
            else "it has timestamps, and the configured store has none",
            fits_another=True,
        )
    if has_older:
        raise NotTakenOverError("some of its records are from before it had timestamps", fits_another=False)


def _time_before(key: bytes, data: bytes, *, headers: bool) -> int:
    """Return the time before a value, which can be stored with ``headers``. Raises: NotTakenOverError."""
    if len(data) < TIME_BYTES:
        raise damaged(f"the record of Kafka Streams under key {key!r} has no time")
    time_ms: int = TIME.unpack_from(data)[0]
    if headers and not -TIME_BOUND_MS <= time_ms < TIME_BOUND_MS:
        raise NotTakenOverError(
            f"its record under key {key!r} has the time {time_ms}, and those of a store with headers are below 2**62",
            fits_another=True,
        )
    return time_ms


class LeftDatabase(LeftStore):
    """A store of one database: the common part of those below."""

    def __init__(self, path: Path) -> None:
        self._database = StreamsDatabase(path)

    def check_families(self) -> None:
        _check_families(self._database)

    def end(self) -> End | None:
        return _end(self._database)

    def is_empty(self) -> bool:
        return all(map(self._database.is_empty, self._database.families))

    def close(self) -> None:
        self._database.close()


class LeftPairs(LeftDatabase):
    """A key-value store, with timestamps if the configured one has them: that is ``timed``."""

    def __init__(self, path: Path, timed: TimestampedKind[Any, Any, Any] | None) -> None:
        super().__init__(path)
        self._timed = timed
        self._family = PLAIN if timed is None else TIMESTAMPED

    def check(self) -> None:
        has = TIMESTAMPED in self._database.families
        has_older = has and not self._database.is_empty(PLAIN)
        _check_timestamps(has=has, configured=self._timed is not None, has_older=has_older)

    def lacks(self, record: Record) -> bool:
        assert record.key is not None
        value = self._database.get(self._family, record.key)
        if value is not None and self._timed is not None:
            value = value[TIME_BYTES:]
        if value == record.value:
            return False
        latest = self._database.get(PLAIN, LATEST + record.key)
        if latest is not None and latest[TIME_BYTES:] == record.value:
            raise NotTakenOverError("it is a versioned store", fits_another=True)
        return True

    def steps(self, store: KeyValueStore) -> Generator[Pairs, None, None]:
        for chunk in self._database.chunks(self._family):
            if self._timed is not None:
                for key, data in chunk:
                    _time_before(key, data, headers=self._timed.keeps_headers)
            yield [*chunk]


Versions = list[tuple[int, bytes | None]]
"""Times and values, the latest first; None is a deletion."""


class SegmentRow(NamedTuple):
    """The versions of a key in one segment, and the time at which the latest of them ends."""

    end_ms: int
    versions: Versions


def row_of(data: bytes) -> SegmentRow | None:
    """Return the row of a segment, None for bytes that are none."""
    entries: list[tuple[int, int]] = []
    try:
        end_ms, first_ms = _HEAD.unpack_from(data)
        at = _HEAD.size
        while not entries or entries[-1][0] != first_ms:
            time_ms, size = _ENTRY.unpack_from(data, at)
            entries.append((time_ms, size))
            at += _ENTRY.size
    except struct.error:
        return None
    versions: Versions = []
    for time_ms, size in reversed(entries):
        versions.append((time_ms, None if size < 0 else data[at : at + size]))
        at += max(size, 0)
    times = [0, *(time_ms for time_ms, _ in versions), end_ms]
    # A row of a deletion alone ends at its own time.
    is_row = times == sorted(times) and len({*times[1:-1]}) == len(versions) and end_ms < TIME_BOUND_MS
    return SegmentRow(end_ms, versions[::-1]) if is_row and at == len(data) else None


def _latest_of(data: bytes) -> tuple[int, bytes] | None:
    """Return the time and the value of a latest value, None for bytes that are none."""
    time_ms = int.from_bytes(data[:TIME_BYTES], "big")
    return (time_ms, data[TIME_BYTES:]) if len(data) >= TIME_BYTES and time_ms < TIME_BOUND_MS else None


def versions_of(latest: tuple[int, bytes] | None, rows: Sequence[SegmentRow]) -> Versions:
    """Return the versions of a key by its latest value and its rows, which are in the order of their segments.

    Where two of them overlap, the later one counts, as in Kafka Streams.
    """
    versions: Versions = [] if latest is None else [latest]
    before_ms = TIME_BOUND_MS if latest is None else latest[0]
    for row in reversed(rows):
        for time_ms, data in ((row.end_ms, None), *row.versions):
            if time_ms < before_ms:
                versions.append((time_ms, data))
                before_ms = time_ms
    return versions


class LeftVersions(LeftDatabase):
    """A versioned store. Versions that have ended before the configured history are left out."""

    def __init__(self, path: Path, kind: VersionedKind[Any, Any, Any, Any]) -> None:
        super().__init__(path)
        self._retention_ms = kind.history_retention_ms
        self._stream_time_ms = -1
        self._segments: list[bytes] = []
        """The numbers of the segments with rows, in order."""

    def check(self) -> None:
        if TIMESTAMPED in self._database.families:
            raise NotTakenOverError("it is a key-value store with timestamps", fits_another=True)
        for chunk in self._database.chunks(PLAIN):
            for key, data in chunk:
                self._examine(key, data)

    def _examine(self, key: bytes, data: bytes) -> None:
        """Check a pair, and note its segment and its latest time."""
        number = key[: len(LATEST)]
        found = _latest_of(data) if number == LATEST else row_of(data)
        if found is None or len(number) < len(LATEST) or LATEST > number >= packed(TIME_BOUND_MS):
            raise NotTakenOverError(f"the pair under key {key!r} is not one of a versioned store", fits_another=True)
        if number == key:
            raise NotTakenOverError("it has an empty key, which no backend takes", fits_another=True)
        if number != LATEST and self._segments[-1:] != [number]:
            self._segments.append(number)
        self._stream_time_ms = max(self._stream_time_ms, found[0])

    @property
    def _first_ms(self) -> int:
        """The time from which on the history is kept."""
        return self._stream_time_ms - self._retention_ms

    def lacks(self, record: Record) -> bool:
        key = record.key
        assert key is not None
        found = (self._database.get(PLAIN, number + key) for number in (*self._segments, LATEST))
        *rows, latest = (data for data in found)
        versions = self._versions([row for row in rows if row is not None], latest)
        values = dict(versions)
        if record.timestamp_ms in values:
            return values[record.timestamp_ms] != record.value
        # One that came too late was logged, and is not there.
        newest_ms = versions[0][0] if versions else -1
        return record.timestamp_ms >= self._first_ms and record.timestamp_ms > newest_ms

    def _versions(self, rows: Sequence[bytes], latest: bytes | None) -> Versions:
        parsed = [row for row in map(row_of, rows) if row is not None]
        return versions_of(None if latest is None else _latest_of(latest), parsed)

    def steps(self, store: KeyValueStore) -> Generator[Pairs, None, None]:
        with ExitStack() as scans:
            parts = [scans.enter_context(closing(self._part(number))) for number in (*self._segments, LATEST)]
            for key, pairs in groupby(merge(*parts), itemgetter(0)):
                rows = {number: data for _, number, data in pairs}
                latest = rows.pop(LATEST, None)
                yield [*pairs_of_versions(key, self._versions([*rows.values()], latest), self._first_ms)]

    def _part(self, number: bytes) -> Generator[tuple[bytes, bytes, bytes], None, None]:
        """Yield key, number of the segment and bytes of the pairs of one segment."""
        for chunk in self._database.chunks(PLAIN, prefix_range(number)):
            for key, data in chunk:
                yield key[len(number) :], number, data

    def marks(self) -> Mapping[str, bytes | None]:
        return {} if self._stream_time_ms < 0 else {STREAM_TIME: packed(self._stream_time_ms)}


class _Segment(NamedTuple):
    """A segment's folder, its times from ``start_ms`` to before ``end_ms``, and what was found in it."""

    path: Path
    start_ms: int
    end_ms: int
    timestamped: bool
    has_older: bool
    is_empty: bool
    end: End | None


class LeftSegments(LeftStore):
    """A window or session store. Records that have expired by the configured retention are left out."""

    def __init__(self, folders: Sequence[Path], kind: SegmentedKind) -> None:
        self._folders, self._kind, self._keys = folders, kind, kind.keys
        self._segments: list[_Segment] = []
        self._stream_time_ms = -1
        self._converter: RecordConverter | None = None

    def check_families(self) -> None:
        starts = [segment_start_ms(folder) for folder in self._folders]
        # The length of segments divides all starts. If that says nothing, it is the configured one.
        ends = [*starts[1:], starts[-1] + (math.gcd(*starts) or self._kind.retention.segment_ms)]
        for folder, start_ms, end_ms in zip(self._folders, starts, ends, strict=True):
            with closing(StreamsDatabase(folder)) as database:
                _check_families(database)
                timestamped = TIMESTAMPED in database.families
                has_plain = not database.is_empty(PLAIN)
                is_empty = not has_plain and not (timestamped and not database.is_empty(TIMESTAMPED))
                has_older = timestamped and has_plain
                end = _end(database)
                self._segments.append(_Segment(folder, start_ms, end_ms, timestamped, has_older, is_empty, end))

    def end(self) -> End | None:
        ends = [segment.end for segment in self._segments]
        # Each commit writes to all segments.
        return ends[0] if all(end == ends[0] for end in ends) else End({}, {})

    def is_empty(self) -> bool:
        return all(segment.is_empty for segment in self._segments)

    def check(self) -> None:
        filled = [segment for segment in self._segments if not segment.is_empty]
        has = any(segment.timestamped for segment in self._segments)
        _check_timestamps(
            has=has,
            configured=self._kind.keeps_times,
            has_older=has and not all(segment.timestamped and not segment.has_older for segment in filled),
        )
        for segment in filled[-1:]:
            self._stream_time_ms = max(self._keys.time(logged) for logged, _ in self._records(segment))

    @property
    def _family(self) -> str:
        return TIMESTAMPED if self._kind.keeps_times else PLAIN

    def _records(self, segment: _Segment) -> Iterator[tuple[bytes, Record]]:
        """Yield the records of a segment, as Kafka Streams has logged them, each behind the key that we log."""
        with closing(StreamsDatabase(segment.path)) as database:
            for chunk in database.chunks(self._family):
                for key, data in chunk:
                    yield self._logged(key, segment), self._record(key, data)

    def _record(self, key: bytes, data: bytes) -> Record:
        if not self._kind.keeps_times:
            return Record(-1, key, data)
        time_ms = _time_before(key, data, headers=self._kind.headers)
        return Record(-1, key, data[TIME_BYTES:], time_ms)

    def _logged(self, key: bytes, segment: _Segment) -> bytes:
        """Return the key that we log for a key in ``segment``. Raises: NotTakenOverError."""
        keys = self._keys
        if (logged := _within(keys, key, segment)) is not None and (not keys.sequenced or keys.sequence(logged)):
            return logged
        others: dict[str, SegmentKeys] = {
            "it is a session store": SessionKeys(),
            "it is a window store": WindowKeys(),
            "it is a window store with duplicates": WindowKeys(sequenced=True),
        }
        for reason, other in others.items():
            is_own = type(other) is type(keys) and other.sequenced == keys.sequenced
            if not is_own and _within(other, key, segment) is not None:
                raise NotTakenOverError(f"{reason}, and the configuration is not of one", fits_another=True)
        raise NotTakenOverError(
            f"its key {key!r} is not one of a {self._kind.kind} store in the segment {segment.path.name}. Those of "
            "EmitStrategy.onWindowClose and of outer joins have other keys",
            fits_another=False,
        )

    def lacks(self, record: Record) -> bool:
        key = record.key
        assert key is not None
        logged = self._keys.of_streams(key)
        if logged is None:
            return True
        time_ms = self._keys.time(logged)
        if time_ms < self._kind.retention.first_live_ms(self._stream_time_ms):
            return False
        at = bisect_right([segment.start_ms for segment in self._segments], time_ms) - 1
        if at < 0:
            return record.value is not None
        with closing(StreamsDatabase(self._segments[at].path)) as database:
            data = database.get(self._family, key)
        return (None if data is None else self._record(key, data).value) != record.value

    def steps(self, store: KeyValueStore) -> Generator[Pairs, None, None]:
        marks: dict[str, bytes | None] = {LOG_FORM: STREAMS_FORM}
        if self._stream_time_ms >= 0:
            # Before the first record: the converter leaves out what has expired by it.
            marks |= self._kind.marks_at(store, self._stream_time_ms)
        store.restore([], {}, marks=marks)
        self._converter = self._kind.converter(store)
        for segment in self._segments:
            for _, record in self._records(segment):
                yield [*self._converter.convert(record)]

    def marks(self) -> Mapping[str, bytes | None]:
        return {} if self._converter is None else self._converter.marks()

    def close(self) -> None:
        """Do nothing: each database is closed once it is read."""


def _within(keys: SegmentKeys, key: bytes, segment: _Segment) -> bytes | None:
    """Return the key that a store of ``keys`` logs for one in ``segment``; None if its time is of another segment."""
    logged = keys.of_streams(key)
    return logged if logged is not None and segment.start_ms <= keys.time(logged) < segment.end_ms else None
