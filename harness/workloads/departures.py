"""The departures from New York in 2013 as the input of workloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.workloads.workload import Event


class Departures:
    """An ``EventSource`` of what really happened. An event's value is described at the data set's ``FIELDS``."""

    late_ms: ClassVar[int] = 0
    """Each event comes late by less than this. Its timestamp stays that of its schedule, so events are out of order."""

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """Departures from number ``first`` on, in the order in which they come: that of their schedule, or, where they
        may come late, one that the seed decides on.

        Ends early where the year does. Raises: DatasetMissingError.
        """
        # A task doesn't need pyarrow, which is slow to import.
        from harness.datasets.new_york_flights import arrivals

        for batch in arrivals(self.late_ms, seed).slice(first, count).to_batches(max_chunksize=10_000):
            columns = (batch.column(name).to_pylist() for name in Event._fields)
            yield from map(Event, *columns)
