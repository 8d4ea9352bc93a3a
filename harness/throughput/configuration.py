"""What one measurement is of. Small on purpose: a measured process imports it."""

from __future__ import annotations

from dataclasses import dataclass

from stores.interface import Durability

Options = tuple[tuple[str, str | int | bool], ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One configuration, once: a task per partition, which commits after every ``records_per_commit`` records.

    ``repeat`` counts from 0. ``options`` are the backend's own.
    """

    backend: str
    durability: Durability
    workload: str
    records_per_commit: int
    partitions: int
    repeat: int
    seed: int
    options: Options = ()


def log_durability(durability: Durability) -> Durability:
    """The level of the changelog below stores of that level: it survives a kill, and power loss where they do.

    A changelog that survived less than its stores could lag them.
    """
    return Durability.DISK if durability is Durability.DISK else Durability.PROCESS
