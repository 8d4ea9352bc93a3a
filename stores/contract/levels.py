"""The levels of durability of a store, the processing guarantees of a task, and what a killed process would lose.

Source: KIP-892, "In-memory Transaction Buffers": what has to be restored after a failure is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self


class Level(StrEnum):
    """A choice that is also made with its text: in upper or lower case, its words joined by _ or -."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        text = value.lower().replace("-", "_") if isinstance(value, str) else ""
        text = cls.other_names().get(text, text)
        for each in cls:
            if each.lower() == text:
                return each
        raise ValueError(f"no {cls.__name__} {value!r}; there are: {', '.join(cls)}")

    @classmethod
    def other_names(cls) -> Mapping[str, str]:
        """Return further names of members, in lower case with _, and the value of the member that each one means."""
        return {}


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

    @classmethod
    def other_names(cls) -> Mapping[str, str]:
        """Return Kafka's later names of the same promise. Source: KIP-447, KIP-732; with - in KIP-892."""
        return dict.fromkeys(("exactly_once_beta", "exactly_once_v2"), "exactly_once")


class Persistence:
    """Marks of commits, which never decrease: a commit survives a kill when ``persisted`` has reached its mark.

    This class is for a store whose commits survive a kill at once, and for one that keeps nothing.
    """

    def mark(self) -> int:
        """The mark of the latest commit or restored piece. On the writer's thread."""
        return 0

    def persisted(self) -> int:
        """The mark up to which a killed process loses nothing. From any thread."""
        return 0

    def begin(self) -> bool:
        """Begin to persist all commits so far in the background; return False if an earlier call is still under way.

        After a failure the next commit raises an error.
        """
        return False

    def wait(self) -> None:
        """Wait for the end of what ``begin`` has started, whether or not it succeeds."""


AT_ONCE = Persistence()
"""For stores whose commits all survive a killed process."""
