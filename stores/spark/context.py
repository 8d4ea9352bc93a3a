"""The context that a function gets with the rows of one partition of one batch, and its timers by event time.

A timer is a key and a time. It is kept in a store of the partition until the watermark has reached the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Any, Protocol, TypeVar, overload

from stores.contract.arguments import check_time_ms
from stores.errors import ConfigError, StoreCorruptedError
from stores.files.plain_files import parsed_json
from stores.interface import KeyValueStore
from stores.records.handles import StoreHandle, StoreTable
from stores.records.values import SURROGATE_MS, StoreStaging

Store = TypeVar("Store")

TIMES = "_times"
"""The store that holds the timers of a partition, and the stream time of a record-wise function."""
TIMES_KIND = "times"
"""The kind of that store in the description of a state."""
_TIME = Struct(">Q")
_BYTES = "bytes"
_STREAM_TIME = b"stream time"
"""Its first byte is above that of every timer, whose time is below 2**62."""


class Timers:
    """The timers of one partition. They are state: a batch that does not count registers none, and fires none.

    A key is a str, an int, a float, a bool, bytes, None, or a tuple of these. A key may have any number of timers, at
    most one for each time.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def register(self, key: Any, time_ms: int) -> None:
        """Register a timer, which is due once the watermark is at ``time_ms``, in milliseconds since the Unix epoch.

        One that is due already fires in this batch. Raises: TypeError, ValueError.
        """
        self._store.put(encoded(key, time_ms), b"")

    def delete(self, key: Any, time_ms: int) -> None:
        """Delete a timer; no effect if there is none. Raises: as ``register``."""
        self._store.delete(encoded(key, time_ms))

    def take_due(self, watermark_ms: int) -> Iterator[tuple[Any, int]]:
        """Delete the timers that are due, and return them by time, then by their keys as JSON.

        One that is deleted meanwhile is left out. One that is registered meanwhile is not among them, and fires in the
        next batch at the earliest, unless it was among them and was deleted. Raises: StoreCorruptedError.
        """
        if watermark_ms < 0:
            return
        with self._store.range(None, _TIME.pack(watermark_ms + 1)) as due:
            for entry, _ in due:
                # The scan is a snapshot: it still has what an earlier timer's function has deleted.
                if self._store.delete(entry) is not None:
                    yield _timer_in(entry)


def stream_time_ms(store: KeyValueStore) -> int:
    """Return the stream time that ``store`` has, -1 if it has none. Raises: StoreCorruptedError."""
    mark = store.get(_STREAM_TIME)
    return -1 if mark is None else _stream_time_in(mark)


def set_stream_time(store: KeyValueStore, time_ms: int) -> None:
    """Stage the stream time, 0 or more, in ``store``."""
    store.put(_STREAM_TIME, _TIME.pack(time_ms))


def encoded(key: Any, time_ms: int) -> bytes:
    """Return the key under which a timer is kept. Raises: TypeError, ValueError."""
    return _TIME.pack(check_time_ms("time_ms", time_ms)) + json.dumps(_plain(key), ensure_ascii=False).encode()


def shown_timer(kept: bytes, value: bytes) -> tuple[str, str, int]:
    """Return key and value of a timer as text, and its time. Raises: StoreCorruptedError."""
    if kept == _STREAM_TIME:
        return kept.decode(), "", _stream_time_in(value)
    _, time_ms = _timer_in(kept)
    return kept[_TIME.size :].decode(), "", time_ms


def _timer_in(entry: bytes) -> tuple[Any, int]:
    """Return the key and the time of a timer. Raises: StoreCorruptedError."""
    try:
        return _as_given(parsed_json(entry[_TIME.size :].decode())), int(_TIME.unpack_from(entry)[0])
    except (ValueError, TypeError, KeyError, RecursionError, StructError) as error:
        raise _damaged(f"entry {entry[:100].hex()} is no timer") from error


def _stream_time_in(kept: bytes) -> int:
    if len(kept) != _TIME.size:
        raise _damaged(f"stream time {kept[:100].hex()} is no number")
    return int(_TIME.unpack(kept)[0])


def _damaged(what: str) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"the {what}, in the store {TIMES!r} of a state: bring the state folder back from a copy"
    )


def _plain(key: Any) -> Any:
    if key is None or isinstance(key, (str, int, float)):
        return key
    if isinstance(key, bytes):
        return {_BYTES: key.hex()}
    if isinstance(key, tuple):
        return [_plain(part) for part in key]
    raise TypeError(f"the key of a timer is a str, a number, bytes, None or a tuple of these, not {type(key).__name__}")


def _as_given(plain: Any) -> Any:
    if isinstance(plain, dict):
        return bytes.fromhex(plain[_BYTES])
    return tuple(map(_as_given, plain)) if isinstance(plain, list) else plain


class HasTime(Protocol):
    """A context whose current record has a time."""

    @property
    def timestamp_ms(self) -> int: ...


class RecordTime:
    """The time of the current record of a record-wise function; that of typed stores by default."""

    def __init__(self) -> None:
        self.of: HasTime | None = None
        """The context of that function."""

    @property
    def ms(self) -> int:
        """The time in milliseconds, ``SURROGATE_MS`` without such a function."""
        return SURROGATE_MS if self.of is None else self.of.timestamp_ms


class TimedStaging(StoreStaging):
    """The staging of a typed store over ``store``. A write without a time has that of the current record."""

    def __init__(self, store: KeyValueStore, time: RecordTime) -> None:
        super().__init__(store)
        self._time = time

    @property
    def timestamp_ms(self) -> int:
        return self._time.ms


@dataclass(frozen=True)
class PartitionState:
    """The timers and the times of a partition during a batch."""

    times: KeyValueStore | None = None
    """The store of timers, if there are any."""
    watermark: Callable[[], int] | None = None
    record_time: RecordTime = field(default_factory=RecordTime)


@dataclass(frozen=True)
class Context:
    """The stores of a partition, its timers, and the batch. Valid while the function runs."""

    partition: int
    """The partition, from 0."""
    version: int
    """The version that this batch makes. The same batch computed again has the same one."""
    batch_id: int | None
    """The ID of the batch in its streaming query, from 0, None in a batch job."""
    query: str | None
    """The ID of the streaming query, None in a batch job."""
    _stores: StoreTable = field(repr=False)
    _state: PartitionState = field(repr=False)

    @overload
    def store(self, store: StoreHandle[Store]) -> Store: ...

    @overload
    def store(self, store: str) -> Any: ...

    def store(self, store: object) -> Any:
        """Return a store, typed as in its declaration, or of bytes: by the description of the declaration, or by name.

        Raises: ConfigError if there is no such store, or it was declared with another description; TypeError.
        """
        return self._stores[store]

    @property
    def timers(self) -> Timers:
        """The timers of the partition. Raises: ConfigError if ``stateful`` was called without ``on_timer``."""
        if self._state.times is None:
            raise ConfigError("this query has no timers: give stateful() an on_timer function")
        return Timers(self._state.times)

    @property
    def watermark_ms(self) -> int:
        """The query's watermark in this batch, in milliseconds since the Unix epoch. Each attempt sees the same one.

        It is 0 before Spark has one, and -1 in a batch job, which has none. Raises: ConfigError if ``stateful`` was
        called without ``checkpoint``; as ``watermark_of``.
        """
        if self.batch_id is None:
            return -1
        if self._state.watermark is None:
            raise ConfigError("the watermark is in the query's checkpoint: give stateful() its folder as checkpoint")
        return self._state.watermark()


def rows_of_timers(on_timer: Any, context: Any) -> Iterator[Any]:
    """Call ``on_timer`` for each timer that is due, and return its rows. An exception gets a note with key and time."""
    for key, time_ms in context.timers.take_due(context.watermark_ms):
        try:
            rows = on_timer(key, time_ms, context)
            if rows is not None:
                yield from [rows] if hasattr(rows, "schema") else rows
        except Exception as error:
            error.add_note(f"It was called for the timer at {time_ms} ms of the key {key!r}.")
            raise
