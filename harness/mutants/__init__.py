"""Mutants: known defects that a trial must detect, the experiments that must, and the one way to build one in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from harness.mutants import commits, files, inner_names, reads, tasks  # noqa: F401  importing declares their mutants
from harness.mutants.commits import HALF_WRITTEN
from harness.mutants.mutant import (
    DECLARED,
    BrokerDetection,
    CrashDetection,
    Detection,
    IoFault,
    LibraryTest,
    Mutant,
    Patches,
    QueryDetection,
    ReaderDetection,
)
from harness.mutants.tasks import BETWEEN
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError
from stores.registry import Backend

AnyDetection = TypeVar("AnyDetection", bound=Detection)

FAILPOINTS = (HALF_WRITTEN, BETWEEN)
"""Failpoints that exist in mutants only."""
MUTANTS: Mapping[str, Mutant] = MappingProxyType(DECLARED)
"""Every mutant by its name."""


def _detected_by(kind: type[AnyDetection]) -> Mapping[str, AnyDetection]:
    return MappingProxyType(
        {name: by for name, mutant in MUTANTS.items() for by in mutant.detected_by if isinstance(by, kind)}
    )


CRASH_TRIALS = _detected_by(CrashDetection)
"""The mutants that crash trials must detect, with their checkers."""
IO_MUTANTS = _detected_by(IoFault)
"""The mutants that I/O faults must detect, with these faults."""
READER_TRIALS = _detected_by(ReaderDetection)
"""The mutants that readers beside a writer must detect, with the strategies that can have them."""
QUERY_TRIALS = _detected_by(QueryDetection)
"""The mutants that stateful queries must detect, with the faults under which they do."""
BROKER_TRIALS: Mapping[str, tuple[BrokerDetection, ...]] = MappingProxyType(
    {
        name: found
        for name, mutant in MUTANTS.items()
        if (found := tuple(by for by in mutant.detected_by if isinstance(by, BrokerDetection)))
    }
)
"""The mutants that tasks over a broker must detect, with the faults and the places at which they do."""
LIBRARY_TESTS = _detected_by(LibraryTest)
"""The mutants that only a test of the library detects."""


def patch(mutant: str | None, subject: str) -> Patches:
    """Build ``mutant`` into this process, for the stores or the protocol ``subject``; "" and None build in nothing.

    The result undoes it; a process of a trial ends with its mutant. Raises: ConfigError for an unknown name.
    """
    patches = Patches()
    if mutant:
        check_known("mutant", MUTANTS, mutant)
        MUTANTS[mutant].build(patches, subject)
    return patches


def fitting(mutant: str, backends: Sequence[Backend]) -> list[Backend]:
    """Return the backends whose strategy can have the reader mutant ``mutant``; all of them for an empty name.

    Raises: ConfigError for an unknown mutant, and for one that fits none of the backends, which would show nothing.
    """
    if not mutant:
        return list(backends)
    check_known("mutant of readers called", READER_TRIALS, mutant)
    strategy = READER_TRIALS[mutant].strategy
    able = [backend for backend in backends if backend.strategy == strategy]
    if not able:
        raise ConfigError(
            f"the mutant {mutant!r} is a defect of the strategy {strategy!r}, which none of these backends has: "
            + ", ".join(backend.name for backend in backends)
        )
    return able
