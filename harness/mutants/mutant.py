"""A mutant as a plain value: a defect, the experiments that must detect it, and how it is built into a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from stores.registry import backends

_ABSENT = object()


class Patches:
    """The changes that mutants make to this process. They last until ``undo``, or the end of a ``with`` block."""

    def __init__(self) -> None:
        self._changed: list[tuple[object, str, object]] = []

    def replace(self, owner: object, name: str, mutated: object) -> None:
        """Replace the attribute ``name`` of ``owner``, a module, a class or an object.

        Raises: AttributeError if ``owner`` has no such name: after a move in the library, the mutant would do nothing.
        """
        getattr(owner, name)
        self._changed.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, mutated)

    def undo(self) -> None:
        """Restore everything that was replaced, the last change first."""
        while self._changed:
            owner, name, before = self._changed.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()


Fits = Callable[[str], bool]
"""Return True for the name of a subject, a backend or a protocol of the library, in which the mutant is a defect."""


def only(*names: str) -> Fits:
    """Return a test for these subjects."""
    return names.__contains__


def isolates(name: str) -> bool:
    """Return True for a backend that isolates uncommitted writes."""
    return name in backends() and backends()[name].transactional


@dataclass(frozen=True, slots=True)
class CrashTrial:
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
class ReaderTrial:
    """Readers beside a writer detect the mutant, in stores of ``strategy``."""

    strategy: str


@dataclass(frozen=True, slots=True)
class LibraryTest:
    """A test of the library detects the mutant. ``unseen`` says why no experiment is relied upon for it."""

    unseen: str


Detection = CrashTrial | IoFault | ReaderTrial | LibraryTest


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect. ``build`` puts it into this process, for the subject that it is given; ``detected_by`` must find it."""

    name: str
    meaning: str
    build: Callable[[Patches, str], None]
    detected_by: tuple[Detection, ...]
