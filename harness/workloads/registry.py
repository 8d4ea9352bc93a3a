"""The workloads of tasks, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.workloads.count import Count
from harness.workloads.event_log import EventLogWorkload
from harness.workloads.flights import AircraftSessions, Flights, FlightsByHour
from harness.workloads.workload import Workload
from stores.errors import ConfigError, nearest


class UnknownWorkloadError(ConfigError):
    """No workload has that name. Choose one that the message lists."""


def workloads() -> Mapping[str, Workload]:
    """Return every workload in its default shape, by name."""
    known: tuple[Workload, ...] = (Count(), EventLogWorkload(), Flights(), FlightsByHour(), AircraftSessions())
    return MappingProxyType({workload.name: workload for workload in known})


def workload(name: str) -> Workload:
    """Return the workload of that name, in its default shape. Raises: UnknownWorkloadError."""
    known = workloads()
    if name not in known:
        raise UnknownWorkloadError(f"no workload {name!r}: there are {', '.join(known)}{nearest(name, known)}")
    return known[name]
