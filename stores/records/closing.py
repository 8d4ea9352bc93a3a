"""Windows and sessions that are reported when they close: an index of those that are open, by time.

A store with ``on_close`` has a pair for each open window, behind all segments: ``<INDEX><time><rest of its key>``, with
an empty value. The time is the window's start, or the session's end. A window closes once its time is ``open_ms`` or
more behind the stream time. Then it takes no more records, its pair is removed, and the function of ``on_close`` is
called, all in the transaction that has moved the stream time. So the committed stream time says which windows were
reported, and no changelog record has the index: a restore makes it from the records.

The mark ``closed`` is the first time that was open when a window was last reported: a longer grace later opens none of
the windows before it again. A restore may leave pairs of closed windows before the mark. The next look removes them.
The changelog does not have the mark. So the restore of a whole store goes by the present grace alone.

Source: Kafka Streams, ``EmitStrategy.onWindowClose`` (KIP-825).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from stores.interface import KeyValueStore
from stores.records.expiry import stream_time_ms
from stores.records.pieces import Pairs, restore_in_pieces
from stores.records.segment_values import SegmentValues, mark_setter, marks_of, number
from stores.records.segments import SEGMENT_BYTES, RecordRetention, SegmentKeys, packed, unpacked
from stores.records.time_index import TimeIndex, removed
from stores.records.values import TIME_BYTES, RecordStaging, Report, StagedWrite, Windowed

CLOSED: Final = "closed"
"""The mark with the first time that was open when a window was last reported."""
INDEX: Final = packed(1 << 63)
"""The beginning of the keys of the index, in place of a segment's number, which is lower."""
_TIME_AT = slice(SEGMENT_BYTES, SEGMENT_BYTES + TIME_BYTES)


class ClosingIndex:
    """The keys of the index of one kind of store, and the times that are closed."""

    def __init__(self, keys: SegmentKeys, open_ms: int) -> None:
        self._time_part = keys.time_part
        self._behind_bytes = -(keys.time_part.stop or 0)
        """The length of a key behind its time."""
        self.open_ms = open_ms

    def entry(self, logged: bytes) -> bytes:
        """Return the key of the index for the key of a record in the changelog."""
        time_part = self._time_part
        behind = logged[time_part.stop :] if self._behind_bytes else b""
        return INDEX + logged[time_part] + logged[: time_part.start] + behind

    def logged(self, entry: bytes) -> bytes:
        """Return the key in the changelog of the record that a key of the index stands for."""
        rest = entry[_TIME_AT.stop :]
        at = len(rest) - self._behind_bytes
        return rest[:at] + entry[_TIME_AT] + rest[at:]

    def first_open_ms(self, stream_time: int, closed_ms: int) -> int:
        """Return the first time that is open. ``closed_ms`` is that of the mark."""
        return max(closed_ms, stream_time - self.open_ms + 1)


class Closing:
    """The open windows of one writer's store."""

    def __init__(
        self,
        staging: RecordStaging,
        index: ClosingIndex,
        retention: RecordRetention,
        values: SegmentValues,
        windowed: Callable[[bytes], Windowed[Any]],
        on_close: Callable[[Windowed[Any], Any, Any], None],
    ) -> None:
        """``windowed`` returns the window of a key in the changelog."""
        self._staging, self._store = staging, staging.store
        self._marks, self._set_mark = marks_of(staging.store), mark_setter(staging)
        self._index, self._retention, self._values = index, retention, values
        self._windowed, self._on_close = windowed, on_close
        self.open_ms = index.open_ms
        self._open = TimeIndex(staging, INDEX)

    def forget(self) -> None:
        """Forget what is known of the store: it was rolled back or restored."""
        self._open.forget()

    def has_closed(self, time_ms: int, stream_time: int) -> bool:
        """Return True if a window of that time takes no more records."""
        return time_ms < self._index.first_open_ms(stream_time, number(self._marks, CLOSED))

    def writes(self, logged: bytes, time_ms: int, entries: dict[bytes, bool], *, is_removal: bool) -> list[StagedWrite]:
        """Return the writes of the index for a put of a record that is open, or for its removal.

        ``entries`` has the keys of the index that earlier writes of the same list add (True) or remove.
        """
        entry = self._index.entry(logged)
        is_there = entries.get(entry)
        entries[entry] = not is_removal
        if is_removal:
            return [StagedWrite(entry, None)]
        if self._store.get(entry) is not None if is_there is None else is_there:
            return []
        self._open.added(time_ms)
        return [StagedWrite(entry, b"")]

    def moved(self, stream_time: int) -> None:
        """Have windows reported if some may have closed, once the record that moved the stream time is done."""
        if self._open.has_up_to(stream_time - self.open_ms):
            self._staging.report(self._reports)

    def _reports(self) -> Iterator[Report]:
        """Close the windows that are due, and yield the report of each, in the order of their times and keys."""
        closed_ms = number(self._marks, CLOSED)
        first_open_ms = self._index.first_open_ms(stream_time_ms(self._marks.mark), closed_ms)
        for entries in self._open.taken(first_open_ms):
            # Before the function is called: it may write to this store.
            self._set_mark(CLOSED, packed(first_open_ms))
            for entry, _ in entries:
                if self._open.time(entry) >= closed_ms:
                    yield from self._report(self._index.logged(entry))

    def _report(self, logged: bytes) -> Iterator[Report]:
        window = self._windowed(logged)
        segment = self._retention.segment(unpacked(logged[self._index._time_part]))
        key = packed(segment) + logged
        # It is there even if it is older than the retention: the commit drops it.
        data = self._store.get(key)
        if data is not None:
            value = self._values.now().decode(key, data, segment)
            yield window.end_ms, partial(self._on_close, window, value)


def make_or_remove_index(store: KeyValueStore, index: ClosingIndex | None, keys: SegmentKeys) -> bytes | None:
    """Make the index of a store that has none, or remove it for None; return the mark ``CLOSED``.

    Windows that have closed are not in it. A kill leaves the rest to the next opening.
    """
    if index is None:
        restore_in_pieces(store, removed(store, INDEX))
        return None
    first_open_ms = index.first_open_ms(stream_time_ms(marks_of(store).mark), 0)
    restore_in_pieces(store, _entries(store, index, keys, first_open_ms))
    return packed(first_open_ms)


def _entries(store: KeyValueStore, index: ClosingIndex, keys: SegmentKeys, first_open_ms: int) -> Iterator[Pairs]:
    with store.range(packed(0), INDEX) as pairs:
        for key, _ in pairs:
            if keys.time(key) >= first_open_ms:
                yield [(index.entry(key[SEGMENT_BYTES:]), b"")]
