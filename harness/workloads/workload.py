"""What a task does with its input, and where the input comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from stores.changelog.interface import Record
from stores.records import RecordKind


class Event(NamedTuple):
    """One input record before it has an offset; ``timestamp_ms`` is since the Unix epoch."""

    key: bytes
    value: bytes
    timestamp_ms: int


class Context(Protocol):
    """What a workload needs of the task that runs it."""

    def store(self, name: str) -> Any: ...

    def forward(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int = -1) -> None: ...


class Workload(Protocol):
    """The work of a task: which stores it keeps, and what one record does to them. One output per input."""

    @property
    def name(self) -> str: ...

    @property
    def store_names(self) -> tuple[str, ...]: ...

    @property
    def output_topic(self) -> str: ...

    def process(self, record: Record, context: Context) -> None:
        """Change the stores as ``record`` asks, and forward one output."""


@runtime_checkable
class EventSource(Protocol):
    """A workload that brings its own input."""

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """At most ``count`` events, in order, from number ``first`` on: always the same ones for the same seed."""


@runtime_checkable
class TypedWorkload(Protocol):
    """A workload some of whose stores are typed."""

    @property
    def records(self) -> Mapping[str, RecordKind]:
        """What these hold, by name."""


def records_of(workload: Workload) -> Mapping[str, RecordKind]:
    """What the typed stores of ``workload`` hold, by name; none where all hold bytes."""
    return workload.records if isinstance(workload, TypedWorkload) else {}


def keyed(record: Record) -> tuple[bytes, bytes]:
    """Key and value of an input record. Raises: ValueError where one is missing, which no workload's input has."""
    if record.key is None or record.value is None:
        missing = "key" if record.key is None else "value"
        raise ValueError(f"the input record at offset {record.offset} has no {missing}")
    return record.key, record.value
