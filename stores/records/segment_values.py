"""The stored form of values in the segments of a window or session store: plain, or after their timestamp."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Self

from stores.records.codec import Codec
from stores.records.data_marks import SegmentMarks
from stores.records.segment_marks import OLD_SEGMENTS, Runs, is_old, runs_of
from stores.records.timestamps import TIME, TIME_BYTES
from stores.records.values import SURROGATE_MS, ValueAndTimestamp

_pack, _unpack_from = TIME.pack, TIME.unpack_from


class SegmentValues:
    """An encoder and decoder of the values of one store. The store's marks name its old segments.

    A value is the caller's, or a ``ValueAndTimestamp`` of it if the store is ``timestamped``.
    """

    def __init__(
        self, codec: Codec[Any, Any], marks: SegmentMarks, *, timestamped: bool, takes_timestamps: bool
    ) -> None:
        self._codec, self._marks = codec, marks
        self._timestamped = timestamped
        self.takes_timestamps = timestamped and takes_timestamps
        """True if new segments keep times."""
        self._old: Runs | None = None
        """The fixed old segments; None to read the marks at each call."""

    def now(self) -> Self:
        """Return a decoder with the present old segments, which stays valid after a later commit has dropped one.

        Call it before a lookup or a scan whose records are decoded later.
        """
        if not self.takes_timestamps:
            return self
        fixed = copy(self)
        fixed._old = runs_of(self._marks.mark(OLD_SEGMENTS))
        return fixed

    def kept(self, data: bytes, timestamp_ms: int, segment: int) -> bytes:
        """Return the stored form of ``data``, a serialized value, in the segment."""
        return _pack(timestamp_ms) + data if self._has_timestamps(segment) else data

    def decoder(self, segment: int) -> Callable[[bytes], Any] | None:
        """Return the function that decodes stored values of ``segment``; None if they are the caller's bytes.

        The function raises the errors of the serde.
        """
        codec = self._codec
        deserialize = codec.deserialize_value
        if not self._timestamped:
            return None if codec.serialize_value is None else deserialize
        if not self._has_timestamps(segment):
            return lambda kept: ValueAndTimestamp(deserialize(kept), SURROGATE_MS)
        if codec.serialize_value is None:
            return lambda kept: ValueAndTimestamp(kept[TIME_BYTES:], _unpack_from(kept)[0])
        return lambda kept: ValueAndTimestamp(deserialize(kept[TIME_BYTES:]), _unpack_from(kept)[0])

    def decode(self, key: bytes, kept: bytes, segment: int) -> Any:
        """Return the value of ``kept``, which ``segment`` has under ``key``. Raises: SerdeMismatchError."""
        decode_value = self._codec.decode_value
        if not self._timestamped:
            return decode_value(key, kept)
        if not self._has_timestamps(segment):
            return ValueAndTimestamp(decode_value(key, kept), SURROGATE_MS)
        if len(kept) < TIME_BYTES:
            raise self._codec.mismatch(key, "value", "of timestamps")
        return ValueAndTimestamp(decode_value(key, kept[TIME_BYTES:]), _unpack_from(kept)[0])

    def _has_timestamps(self, segment: int) -> bool:
        if not self.takes_timestamps:
            return False
        old = runs_of(self._marks.mark(OLD_SEGMENTS)) if self._old is None else self._old
        return not is_old(segment, old)
