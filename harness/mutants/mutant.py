"""A mutant as a plain value: a defect, the experiments that must detect it, and how it is built into a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.mutants.patches import Build, without_syncs
from stores.registry import backends

Fits = Callable[[str], bool]
"""Return True for the name of a subject, a backend or a protocol of the library, in which the mutant is a defect."""


def only(*names: str) -> Fits:
    """Return a test for these subjects."""
    return names.__contains__


def isolates(name: str) -> bool:
    """Return True for a backend that isolates uncommitted writes."""
    return name in backends() and backends()[name].transactional


def reaching(failpoint: str) -> Fits:
    """Return a test for the backends that reach a failpoint."""
    return lambda name: name in backends() and failpoint in backends()[name].failpoints


def over(engine: str) -> Fits:
    """Return a test for the backends over an engine."""
    return lambda name: name in backends() and backends()[name].engine == engine


@dataclass(frozen=True, slots=True)
class CrashDetection:
    """Crash trials detect the mutant: ``checker`` finds an anomaly."""

    checker: str


@dataclass(frozen=True, slots=True)
class IoFault:
    """Injected I/O faults detect the mutant at DISK, in each subject that it ``fits``.

    ``fault`` and ``variant`` must detect it. ``records`` is the kind of store that it needs. ``unseen_by`` is a fault
    that cannot detect it, which is tried too. It is empty where that would show nothing.
    """

    fault: str
    fits: Fits
    variant: str = ""
    unseen_by: str = ""
    records: str = ""


@dataclass(frozen=True, slots=True)
class ReaderDetection:
    """Readers beside a writer detect the mutant, in stores of ``strategy``."""

    strategy: str


@dataclass(frozen=True, slots=True)
class QueryDetection:
    """Stateful queries on Spark detect the mutant, under ``fault``."""

    fault: str


@dataclass(frozen=True, slots=True)
class BrokerDetection:
    """Tasks over a Kafka broker detect the mutant, under ``fault`` at ``place``.

    ``finds`` is the kind of finding as which it must show (``harness.checkers.counting``).
    """

    fault: str
    place: str
    finds: str
    guarantee: str = "exactly_once"


@dataclass(frozen=True, slots=True)
class LibraryTest:
    """A test of the library detects the mutant. ``unseen`` says why no experiment is relied upon for it."""

    unseen: str


Detection = CrashDetection | IoFault | ReaderDetection | QueryDetection | BrokerDetection | LibraryTest


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect. ``build`` puts it into this process, for the subject that it is given; ``detected_by`` must find it."""

    name: str
    meaning: str
    build: Build
    detected_by: tuple[Detection, ...]


DECLARED: dict[str, Mutant] = {}
"""Every mutant by its name, of the modules that are imported; ``harness.mutants`` imports all."""


def mutant(meaning: str, *detected_by: Detection, name: str = "") -> Callable[[Build], Build]:
    """Declare the decorated function a mutant, which has the ``name``, or that of the function with dashes.

    Raises: ValueError if the name is taken.
    """

    def declare(build: Build) -> Build:
        own_name = name or build.__name__.strip("_").replace("_", "-")
        if own_name in DECLARED:
            raise ValueError(f"two mutants are called {own_name!r}: give each its own name")
        DECLARED[own_name] = Mutant(own_name, meaning, build, detected_by)
        return build

    return declare


def unsynced(name: str, meaning: str, fits: Fits, is_skipped: Callable[[Path], bool], variant: str = "") -> None:
    """Declare a mutant that leaves out the syncs of some files: a loss of power shows it, and a kill does not."""
    detected_by = IoFault("power", fits, variant, unseen_by="kill")
    mutant(meaning, detected_by, name=name)(lambda patches, _: without_syncs(patches, is_skipped))
