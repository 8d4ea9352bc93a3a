"""The levels of durability of a store, and the processing guarantees of a task."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Level(StrEnum):
    """A choice that is also made with its text, in upper or lower case."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        text = value.lower() if isinstance(value, str) else None
        for each in cls:
            if each.lower() == text:
                return each
        raise ValueError(f"no {cls.__name__} {value!r}; there are: {', '.join(cls)}")


class Durability(Level):
    """The failures that a commit survives by itself. Figures are only compared within one level."""

    CHANGELOG = "CHANGELOG"
    """Nothing: after a crash the store is at some earlier commit, whole; the changelog's tail is replayed."""
    PROCESS = "PROCESS"
    """A killed process."""
    DISK = "DISK"
    """Power loss: every commit is synced."""


class ProcessingGuarantee(Level):
    """The promise of a task about records that it processes again after a failure. Source: KIP-129."""

    AT_LEAST_ONCE = "at_least_once"
    """No record's effect is lost; after a failure some may be there twice, in outputs and in state."""
    EXACTLY_ONCE = "exactly_once"
    """Each record's effects on outputs, state and input offsets are there once, whatever fails."""
