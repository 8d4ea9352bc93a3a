"""`count`: read, add one, write, as an aggregation does for each of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.workloads.synthetic import (
    KEY_BYTES,
    VALUE_BYTES,
    VALUE_BYTES_MIN,
    Source,
    Values,
    keys_of,
    uniform,
)
from harness.workloads.workload import Event, WorkloadContext, keyed
from stores.changelog.interface import Record
from stores.errors import ConfigError

COUNT_BYTES = 8
START_MS = 1_700_000_000_000
_CHUNK_EVENTS = 10_000


@dataclass(frozen=True)
class Count:
    """Counts the events of each key. State: the count, eight bytes, big-endian; then the latest event's value."""

    keys: int = 100_000
    key_bytes: int = KEY_BYTES
    value_bytes: int = VALUE_BYTES
    """The length of a value in the store; an event's value is eight bytes shorter."""
    name: str = "count"
    store_names: tuple[str, ...] = ("counts",)
    output_topic: str = "counts-out"

    def __post_init__(self) -> None:
        if self.keys < 1:
            raise ConfigError(f"{self.keys} keys: ask for 1 or more")
        if self.value_bytes < COUNT_BYTES + VALUE_BYTES_MIN:
            raise ConfigError(
                f"a stored value of {self.value_bytes} bytes has no room for a count and an event: "
                f"ask for {COUNT_BYTES + VALUE_BYTES_MIN} or more"
            )

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Add one to the count of the record's key, and forward the new value."""
        key, value = keyed(record)
        store = context.store("counts")
        kept = store.get(key)
        count = 1 if kept is None else int.from_bytes(kept[:COUNT_BYTES], "big") + 1
        counted = count.to_bytes(COUNT_BYTES, "big") + value
        store.put(key, counted)
        context.forward(self.output_topic, key, counted, record.timestamp_ms)

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """Yield events one millisecond apart, each with a different value."""
        values = Values(seed, self.value_bytes - COUNT_BYTES)
        number, end = first, first + count
        while number < end:
            chunk, skipped = divmod(number, _CHUNK_EVENTS)
            for key in self._chunk_keys(seed, chunk)[skipped : skipped + end - number]:
                yield Event(key, values.value(key, number), START_MS + number)
                number += 1

    def _chunk_keys(self, seed: int, chunk: int) -> list[bytes]:
        # Each chunk has its own random source, so that events from the middle on need no earlier ones.
        return keys_of(uniform(Source(seed, chunk), self.keys, _CHUNK_EVENTS), self.key_bytes)
