"""The evidence of a trial, which a checker takes, and the verdict that it returns.

The evidence is the log in its file, and the observations and acknowledgements of each process. Plain values only.
Nothing here knows how a store, a task or a changelog works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import NamedTuple

State = Mapping[bytes, bytes]


class Change(NamedTuple):
    """The change that input record ``number`` (0 is the first) makes to a store; ``value`` None removes the key."""

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
    """The result that the input must lead to, by the seed alone: all changes and all outputs, in input order."""

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
    """An acknowledged commit: the next input, and each store's log end (one past its last record)."""

    next_input: int
    log_ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FoundStore:
    """A store as a fresh process found it, recovered but not yet restored, and what kind of store it says it is."""

    state: State
    committed_offset: int | None
    transactional: bool
    manages_offsets: bool
    persistent: bool
    position: int | None = None


@dataclass(frozen=True, slots=True)
class RestoredStore:
    """A store after its changelog's tail was replayed: ``records`` of it, from scratch where ``wiped``."""

    state: State
    records: int
    wiped: bool
    reason: str = ""
    """The reason for the wipe, as it was reported."""


@dataclass(frozen=True, slots=True)
class FellBack:
    """A process that rolled back to its last commit while it ran. It continued from the input ``next_input``.

    ``acknowledged`` is the next input of its last acknowledged commit. ``transactional`` names the stores that declare
    themselves transactional.
    """

    next_input: int
    acknowledged: int
    stores: Mapping[str, RestoredStore]
    transactional: frozenset[str]


@dataclass(frozen=True, slots=True)
class LaterProcess:
    """One process after the first: the log before it started, and its observations.

    ``acknowledged`` are the acknowledged commits of the processes before it, in order. If ``truncated``, the log was
    cut after that, and no longer reaches back to the offsets of the stores; its state is the same.
    """

    log: Log
    acknowledged: Sequence[Acknowledged] = ()
    found: Mapping[str, FoundStore] = field(default_factory=dict)
    restored: Mapping[str, RestoredStore] = field(default_factory=dict)
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All evidence of a trial.

    ``missing`` is the reason why the last process did not reach the end of the input, or "". If it did, ``final`` has
    the stores' states and ``final_log`` the log after it.
    """

    exactly_once: bool
    durability: str
    expected: Expected
    lives: Sequence[LaterProcess]
    final: Mapping[str, State]
    final_log: Log
    missing: str = ""
    fallen_back: Sequence[FellBack] = ()


class Result(StrEnum):
    """The result of a checker. Only ``VALID`` passes."""

    VALID = "valid"
    ANOMALY = "anomaly"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """``detail`` describes the anomaly or the missing evidence, in words that are equal in every run; "" if valid."""

    checker: str
    result: Result
    detail: str = ""


def checker(anomalies: Callable[[Evidence], Iterable[str]]) -> Callable[[Evidence], Verdict]:
    """Return the checker of this name: the first of ``anomalies``, else unknown if evidence is missing."""

    @wraps(anomalies)
    def check(evidence: Evidence) -> Verdict:
        for anomaly in anomalies(evidence):
            return Verdict(anomalies.__name__, Result.ANOMALY, anomaly)
        return Verdict(anomalies.__name__, Result.UNKNOWN if evidence.missing else Result.VALID, evidence.missing)

    return check


def worst(verdicts: Iterable[Verdict]) -> Result:
    """Return the worst result: anomaly, then unknown, then valid; unknown if there is no verdict."""
    results = {verdict.result for verdict in verdicts}
    if Result.ANOMALY in results:
        return Result.ANOMALY
    return Result.VALID if results == {Result.VALID} else Result.UNKNOWN
