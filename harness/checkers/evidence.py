"""What checkers judge by: the log as it lies in its file, and what each process saw, promised and left behind.

Plain values only. Nothing here knows how a store, a task or a changelog works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

State = Mapping[bytes, bytes]


class Change(NamedTuple):
    """What input record ``number`` (0 is the first) must do to a store; ``value`` None removes the key."""

    number: int
    store: str
    key: bytes
    value: bytes | None


class LogRecord(NamedTuple):
    """A committed record of the log; ``value`` None removes the key."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Expected:
    """What the input must lead to, computed from the seed alone: all changes, all outputs, both in input order."""

    records: int
    changes: Sequence[Change]
    outputs: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Log:
    """The committed content of the changelog file at one moment when no process had it open."""

    stores: Mapping[str, Sequence[LogRecord]]
    outputs: Sequence[LogRecord] = ()
    next_input: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit that a process was told is done: the next input, and each store's log end (one past its last record)."""

    next_input: int
    log_ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Found:
    """A store as a fresh process found it, recovered but not yet restored, and what kind of store it says it is."""

    state: State
    committed_offset: int | None
    transactional: bool
    manages_offsets: bool
    persistent: bool
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A store after its changelog's tail was replayed: ``records`` of it, from scratch where ``wiped``."""

    state: State
    records: int
    wiped: bool
    reason: str = ""
    """Why it was wiped, as it was told."""


@dataclass(frozen=True, slots=True)
class FellBack:
    """A process's return to its last commit while it ran: ``next_input`` is where it went on from.

    ``acknowledged`` is the next input of the last commit that it had been told is done; ``transactional`` names the
    stores that say that they are.
    """

    next_input: int
    acknowledged: int
    stores: Mapping[str, Restored]
    transactional: frozenset[str]


@dataclass(frozen=True, slots=True)
class Life:
    """One process after the first: the log before it began, and what it saw as far as it came.

    ``acknowledged`` are the commits that processes before it were told are done, in order. ``truncated`` says that the
    log was cut after that, and reaches back to no offset that it had; it still says the same.
    """

    log: Log
    acknowledged: Sequence[Acknowledged] = ()
    found: Mapping[str, Found] = field(default_factory=dict)
    restored: Mapping[str, Restored] = field(default_factory=dict)
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to judge a trial by.

    ``missing`` says why the last process did not get to the end of the input, and is empty where it did;
    ``final`` then holds the stores' states, and ``final_log`` the log after it.
    """

    exactly_once: bool
    durability: str
    expected: Expected
    lives: Sequence[Life]
    final: Mapping[str, State]
    final_log: Log
    missing: str = ""
    fallen_back: Sequence[FellBack] = ()
