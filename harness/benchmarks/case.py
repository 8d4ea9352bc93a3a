"""What is timed at the level of one store: a suite, a subject, and how much of it. Also which cases a profile runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stores import Durability
from stores.registry import backends

PLAIN = "plain"
"""Prefix of the yardsticks: an engine without a store around it, written as well as plain code can be."""


@dataclass(frozen=True)
class Case:
    """One thing to time. ``records`` is handled in each round, ``rounds`` times after one round of warming up."""

    suite: str
    """``commit``: put and commit of keys never seen before. ``update``: read, change, write of keys that are there.
    ``scan``: everything in order, committed and staged."""
    subject: str
    """A backend, or a yardstick such as ``plain-rocksdb``."""
    durability: Durability = Durability.CHANGELOG
    records_per_commit: int = 1_000
    distribution: str = "uniform"
    records: int = 50_000
    rounds: int = 5

    @property
    def id(self) -> str:
        """A name for the case, unique within a profile."""
        return "-".join(
            (self.suite, self.subject, self.durability.lower(), self.distribution, str(self.records_per_commit))
        )


_ROCKSDB = ("rocksdb-indexed-batch", "rocksdb-direct")
_CURVE = (100, 1_000, 10_000, 100_000)


def cases(profile: str) -> list[Case]:
    """The cases of ``smoke``, ``default`` or ``full``, each once."""
    found = {case.id: case for case in _cases(profile)}
    return list(found.values())


def _cases(profile: str) -> Iterator[Case]:
    smoke = profile == "smoke"
    for subject in _ROCKSDB:
        for size in (1_000,) if smoke else (100, 1_000, 10_000):
            yield Case("commit", subject, records_per_commit=size)
        if not smoke:
            yield Case("commit", subject, records_per_commit=500_000, records=500_000, rounds=3)
    yield Case("commit", "plain-rocksdb", records_per_commit=10_000)
    yield Case("commit", "rocksdb-dual-store")
    for engine in ("lmdb", "sqlite"):
        for durability in (Durability.PROCESS,) if smoke else (Durability.PROCESS, Durability.DISK):
            yield Case("commit", f"{engine}-indexed-batch", durability)
            yield Case("commit", f"{PLAIN}-{engine}", durability)
    for subject in ("rocksdb-indexed-batch", "plain-rocksdb"):
        for distribution in ("uniform", "zipfian"):
            yield Case("update", subject, distribution=distribution, records_per_commit=100_000, records=100_000)
        yield Case("scan", subject, records_per_commit=10_000, records=200_000)
    if smoke:
        return
    for subject in backends():
        for size in _CURVE:
            yield Case("commit", subject, records_per_commit=size, records=max(size, 50_000))
    if profile == "full":
        for subject, backend in backends().items():
            for durability in sorted(backend.durabilities):
                for size in _CURVE:
                    yield Case("commit", subject, durability, size, records=max(size, 50_000))
