"""The parameters of one measurement. The module is small because every measured process imports it."""

from __future__ import annotations

from dataclasses import dataclass

from stores.interface import Durability

Options = tuple[tuple[str, str | int | bool], ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One run of one configuration: a task per partition, with a commit after every ``records_per_commit`` records.

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
    """Return the level of the changelog for stores of a level: it survives a kill, and power loss if they do.

    If the changelog survived less than its stores, they could be ahead of it.
    """
    return Durability.DISK if durability is Durability.DISK else Durability.PROCESS
