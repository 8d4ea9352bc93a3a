"""The departures from New York in 2013 as the input of workloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from harness.workloads.workload import Event


class Departures:
    """An ``EventSource`` of real events. The value of an event is described at the data set's ``FIELDS``."""

    late_ms: ClassVar[int] = 0
    """Each event comes less than this late. Its timestamp is that of its schedule, so events are out of order."""

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """Yield departures from number ``first`` on, in their order of arrival.

        That is the order of the schedule, or, for a workload with late events, one that the seed chooses. There may be
        fewer than ``count``, at the end of the year. Raises: DatasetMissingError.
        """
        # Imported here, because a task does not need pyarrow, which is slow to import.
        from harness.datasets.new_york_flights import arrivals

        for batch in arrivals(self.late_ms, seed).slice(first, count).to_batches(max_chunksize=10_000):
            columns = (batch.column(name).to_pylist() for name in Event._fields)
            yield from map(Event, *columns)
