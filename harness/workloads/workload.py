"""The interfaces of a workload: the work of a task on its input, and the source of that input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from stores.changelog.interface import Record
from stores.records import RecordKind, Session, ValueAndTimestamp, Windowed


class Event(NamedTuple):
    """One input record before it has an offset; ``timestamp_ms`` is since the Unix epoch."""

    key: bytes
    value: bytes
    timestamp_ms: int


class WorkloadContext(Protocol):
    """The methods of a task that a workload uses."""

    def store(self, name: str) -> Any: ...

    def forward(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int = -1) -> None: ...


class Workload(Protocol):
    """The work of a task: its stores, and the changes that one record makes to them. One output per input."""

    @property
    def name(self) -> str: ...

    @property
    def store_names(self) -> tuple[str, ...]: ...

    @property
    def output_topic(self) -> str: ...

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Change the stores as ``record`` asks, and forward one output."""


@runtime_checkable
class EventSource(Protocol):
    """A workload with an input of its own."""

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """Yield at most ``count`` events in order, from number ``first`` on; the same ones for the same seed."""


@runtime_checkable
class TypedWorkload(Protocol):
    """A workload with typed stores."""

    @property
    def records(self) -> Mapping[str, RecordKind]:
        """The kinds of the typed stores, by name."""


def records_of(workload: Workload) -> Mapping[str, RecordKind]:
    """Return the kinds of the typed stores of ``workload`` by name; none if all stores are of bytes."""
    return workload.records if isinstance(workload, TypedWorkload) else {}


def keyed(record: Record) -> tuple[bytes, bytes]:
    """Return the key and the value of an input record. Raises: ValueError if one is missing."""
    if record.key is None or record.value is None:
        missing = "key" if record.key is None else "value"
        raise ValueError(f"the input record at offset {record.offset} has no {missing}")
    return record.key, record.value


def plain_pairs(kind: RecordKind | None, view: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield every pair of ``view``, a view of a store of ``kind``; None is a store of bytes, left unchanged.

    A key becomes text, such as ``JFK`` or, with its window or session, ``JFK@0-3600000``. A value becomes JSON without
    blanks, such as ``[1,2]`` or, with its timestamp, ``[1,2]@1357034400000``. Values of the store must be JSON values.
    """
    with view.fetch_range(None, None) if isinstance(kind, Session) else view.all() as pairs:
        for key, value in pairs:
            yield (key, value) if kind is None else (_key(key), _value(value))


def _key(key: Any) -> bytes:
    return (f"{key.key}@{key.start_ms}-{key.end_ms}" if isinstance(key, Windowed) else str(key)).encode()


def _value(value: Any) -> bytes:
    if isinstance(value, ValueAndTimestamp):
        return b"%b@%d" % (_value(value.value), value.timestamp_ms)
    return json.dumps(value, separators=(",", ":")).encode()
