"""The levels of durability of a store, and the processing guarantees of a task."""

from __future__ import annotations

from enum import StrEnum


class Durability(StrEnum):
    """The failures that a commit survives by itself. Figures are only compared within one level."""

    CHANGELOG = "CHANGELOG"
    """Nothing: after a crash the store is at some earlier commit, whole; the changelog's tail is replayed."""
    PROCESS = "PROCESS"
    """A killed process."""
    DISK = "DISK"
    """Power loss: every commit is synced."""


class ProcessingGuarantee(StrEnum):
    """The promise of a task about records that it processes again after a failure. Source: KIP-129."""

    AT_LEAST_ONCE = "at_least_once"
    """No record's effect is lost; after a failure some may be there twice, in outputs and in state."""
    EXACTLY_ONCE = "exactly_once"
    """Each record's effects on outputs, state and input offsets are there once, whatever fails."""
