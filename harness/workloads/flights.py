"""`flights`: departures from New York in 2013, keyed by aircraft, and summed up by aircraft and by route."""

from __future__ import annotations

from dataclasses import dataclass

from harness.workloads.departures import Departures
from harness.workloads.workload import Context, keyed
from stores.changelog.interface import Record


@dataclass(frozen=True)
class Flights(Departures):
    """Sums up departures, by aircraft and by route. The value of an event is described at the data set's ``FIELDS``.

    The store ``aircraft`` has, for each tail number, separated by commas: departures, cancelled flights, distance
    (miles), air time, departure delay (minutes), last destination (empty before the first departure). An example is
    ``111,0,171713,23641,1585,DEN``.

    The store ``routes`` has, for each route (``JFK-LAX``): departures, cancelled flights, distance, arrivals with a
    known delay, the sum of these delays (negative if early), and the longest one (empty before the first). Sums are
    over the flights that have the figure; a cancelled flight has none.
    """

    name: str = "flights"
    store_names: tuple[str, ...] = ("aircraft", "routes")
    output_topic: str = "flights-out"

    def process(self, record: Record, context: Context) -> None:
        """Add one departure to its aircraft and its route, and forward the aircraft."""
        key, value = keyed(record)
        _, _, origin, dest, dep_time, dep_delay, arr_delay, air_time, distance = value.split(b",")
        left = 1 if dep_time else 0
        miles = int(distance) if left else 0

        aircraft = context.store("aircraft")
        departures, cancelled, flown, minutes, late, last = (aircraft.get(key) or b"0,0,0,0,0,").split(b",")
        plane = b"%d,%d,%d,%d,%d,%b" % (
            int(departures) + left,
            int(cancelled) + 1 - left,
            int(flown) + miles,
            int(minutes) + int(air_time or 0),
            int(late) + int(dep_delay or 0),
            dest if left else last,
        )
        aircraft.put(key, plane)

        routes, route = context.store("routes"), b"%b-%b" % (origin, dest)
        departures, cancelled, flown, arrivals, late, latest = (routes.get(route) or b"0,0,0,0,0,").split(b",")
        if arr_delay and (not latest or int(arr_delay) > int(latest)):
            latest = arr_delay
        routes.put(
            route,
            b"%d,%d,%d,%d,%d,%b"
            % (
                int(departures) + left,
                int(cancelled) + 1 - left,
                int(flown) + miles,
                int(arrivals) + (1 if arr_delay else 0),
                int(late) + int(arr_delay or 0),
                latest,
            ),
        )

        context.forward(self.output_topic, key, plane, record.timestamp_ms)
