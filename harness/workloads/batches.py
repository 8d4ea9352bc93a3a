"""The parts that workloads share to take many records at a time: each key is read once and written once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from harness.workloads.workload import keyed
from stores.records import RecordKind, Window, Windowed
from stores.tasks import Batch

SUFFIX = "_batches"
"""The end of the name of a workload that takes batches. The rest is the name of its record form."""
Key = TypeVar("Key")
Row = TypeVar("Row")


class BatchContext(Protocol):
    """The methods of a task that a workload uses for a batch."""

    def store(self, name: str) -> Any: ...

    def forward_many(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int] | None = None,
    ) -> None: ...


def record_form(name: str) -> str:
    """Return the name of the workload that processes record by record, which may be ``name`` itself."""
    return name.removesuffix(SUFFIX)


def keyed_columns(batch: Batch[bytes, bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the keys and the values of a batch. Raises: ValueError if one is missing."""
    keys, values = [key for key in batch.keys if key is not None], [each for each in batch.values if each is not None]
    if len(keys) < len(batch) or len(values) < len(batch):
        for record in batch:
            keyed(record)
    return keys, values


def updated(store: Any, keys: Sequence[Key], rows: Sequence[Row], step: Callable[[Any, Row], Any]) -> list[Any]:
    """Apply ``step`` to the value of each key and its row, in order, and put the last values. Return all results."""
    values = dict.fromkeys(keys)
    values = dict(zip(values, store.get_many(list(values)), strict=True))
    results = []
    for key, row in zip(keys, rows, strict=True):
        values[key] = result = step(values[key], row)
        results.append(result)
    store.put_many(values)
    return results


class _ReadOnce(dict[Hashable, Any]):
    """The values of a store, each read when it is first asked for."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def __missing__(self, key: Hashable) -> Any:
        self.read([key])
        return self[key]

    def read(self, keys: Iterable[Hashable]) -> None:
        distinct = list(dict.fromkeys(keys))
        self.update(zip(distinct, self._store.get_many(distinct), strict=True))


class FoldedValues:
    """A typed key-value store within a batch, which reads each key once, and writes it once, at the end.

    A function may not change a value in place.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._values = _ReadOnce(store)
        self._put: dict[Hashable, Any] = {}
        self.get: Callable[[Hashable], Any] = self._values.__getitem__
        self.read_ahead = self._values.read

    def put(self, key: Hashable, value: Any) -> None:
        """Keep the value until the end."""
        self._values[key] = self._put[key] = value

    def write(self) -> None:
        """Put all values into the store."""
        self._store.put_many(self._put)


class FoldedWindows:
    """The same of a window store. None of the windows may be too late for it."""

    def __init__(self, store: Any, size_ms: int) -> None:
        self._folded, self._size_ms = FoldedValues(store), size_ms
        self.read_ahead, self.write = self._folded.read_ahead, self._folded.write

    def fetch_one(self, key: Any, window_start_ms: int) -> Any:
        """Return the value of a window, or None."""
        return self._folded.get((key, window_start_ms))

    def put(self, key: Any, value: Any, window_start_ms: int) -> None:
        """Keep the value of a window until the end."""
        self._folded.put((key, window_start_ms), value)

    def update(self, key: Any, timestamp_ms: int, fn: Callable[[Any], Any]) -> Any:
        """Keep the result of ``fn`` for the window of ``timestamp_ms``, and return it."""
        window = key, timestamp_ms // self._size_ms * self._size_ms
        value = fn(self._folded.get(window))
        self._folded.put(window, value)
        return value


class FoldedStores:
    """The context of a function of records within a batch, with typed key-value and window stores."""

    def __init__(self, records: Mapping[str, RecordKind], context: BatchContext) -> None:
        self._stores: dict[str, FoldedValues | FoldedWindows] = {
            name: FoldedWindows(context.store(name), kind.size_ms)
            if isinstance(kind, Window)
            else FoldedValues(context.store(name))
            for name, kind in records.items()
        }

    def store(self, name: str) -> Any:
        """Return a store."""
        return self._stores[name]

    def write(self) -> None:
        """Put all values into the stores."""
        for store in self._stores.values():
            store.write()


def merged_many(
    sessions: Any,
    keys: Sequence[Key],
    times_ms: Sequence[int],
    values: Sequence[Row],
    gap_ms: int,
    add: Callable[[Row, Row], Row],
    *,
    timed: bool = False,
) -> list[tuple[Windowed[Key], Row]]:
    """Merge records, in order, each with the sessions of its key within ``gap_ms``. Return the session of each.

    ``timed`` says that the store is a timestamped one. A record may not be too late for the store.
    """
    reach: dict[Key, tuple[int, int]] = {}
    for key, time_ms in zip(keys, times_ms, strict=True):
        first_ms, last_ms = reach.get(key, (time_ms, time_ms))
        reach[key] = min(first_ms, time_ms), max(last_ms, time_ms)
    searches = [(key, max(0, first_ms - gap_ms), last_ms + gap_ms) for key, (first_ms, last_ms) in reach.items()]
    found = sessions.find_sessions_many(searches)
    living = {
        key: {session: value.value if timed else value for session, value in pairs}
        for key, pairs in zip(reach, found, strict=True)
    }
    changed_ms: dict[Windowed[Key], int] = {}
    results = []
    for key, time_ms, value in zip(keys, times_ms, values, strict=True):
        start_ms, end_ms, total, own = time_ms, time_ms, value, living[key]
        for other in [each for each in own if each.end_ms >= time_ms - gap_ms and each.start_ms <= time_ms + gap_ms]:
            start_ms, end_ms = min(start_ms, other.start_ms), max(end_ms, other.end_ms)
            total = add(total, own.pop(other))
            changed_ms[other] = time_ms
        merged = Windowed(key, start_ms, end_ms)
        own[merged], changed_ms[merged] = total, time_ms
        results.append((merged, total))
    stored = {session for pairs in found for session, _ in pairs}
    written = [each for each in changed_ms if each in living[each.key] or each in stored]
    # In the order of time, so that none of them is too late for those before it.
    written.sort(key=lambda session: session.end_ms)
    pairs = [(session, living[session.key].get(session)) for session in written]
    sessions.put_many(pairs, [changed_ms[session] for session in written] if timed else None)
    return results
