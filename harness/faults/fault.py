"""The faults of a process that works on a store, as plain values.

A fault only describes what happens: ``harness.experiments.crash`` carries it out in a process of its own. Counts begin
at 1. Records are counted as the process sees them: the first that it processes is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

AFTERWARDS = ("close", "kill", "go_on")
ENDS = ("close", "kill")


def _require_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} counts from 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL when the process reaches ``failpoint`` for the ``hit``-th time."""

    failpoint: str
    hit: int = 1

    def __post_init__(self) -> None:
        _require_positive("hit", self.hit)


@dataclass(frozen=True, slots=True)
class KillAfter:
    """SIGKILL inside a transaction, right after the ``records``-th record.

    With ``flush_pressure`` the engine's write buffer is tiny, so that it has flushed in the background before.
    """

    records: int
    flush_pressure: bool = False

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Abort:
    """The user's function raises at the ``records``-th record, once, and the task aborts its transaction.

    ``then`` is the next step of the process: ``close`` the task, be killed (``kill``), or ``go_on`` to the end of the
    input. With ``flush_pressure`` the engine has flushed writes of the aborted transaction before (KAFKA-20685).
    """

    records: int
    flush_pressure: bool = False
    then: str = "close"

    def __post_init__(self) -> None:
        _require_positive("records", self.records)
        if self.then not in AFTERWARDS:
            raise ValueError(f"then is one of {', '.join(AFTERWARDS)}, not {self.then!r}")


@dataclass(frozen=True, slots=True)
class Stop:
    """The process closes the task cleanly after the ``records``-th record: the harmless end for comparison."""

    records: int

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Timeout:
    """The changelog times out when the task commits for the ``commit``-th time; the process then continues.

    Source: KIP-892, "Error Handling", 3.
    """

    commit: int

    def __post_init__(self) -> None:
        _require_positive("commit", self.commit)


@dataclass(frozen=True, slots=True)
class Fence:
    """Another instance takes over the task after the ``records``-th record; this one continues until it is refused.

    The other instance, with its own stores, processes the records of one commit, commits, and closes.
    Source: KIP-98, zombie fencing.
    """

    records: int

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Truncate:
    """After the ``records``-th record the process ends, and the changelogs then no longer reach back to its stores.

    Each changelog gets its whole state again as new records, and is truncated before them, as compaction and retention
    do in time. ``then`` is the end of the process: ``close``, or killed (``kill``). Source: KIP-892, "Error Handling",
    2.
    """

    records: int
    then: str = "close"

    def __post_init__(self) -> None:
        _require_positive("records", self.records)
        if self.then not in ENDS:
            raise ValueError(f"then is one of {', '.join(ENDS)}, not {self.then!r}")


Step = Kill | KillAfter | Abort | Stop | Timeout | Fence | Truncate


@dataclass(frozen=True, slots=True)
class KillInRecovery:
    """``first`` happens to the first process, and each of ``again`` to the next process, which recovers from it.

    Source: KIP-844, "roll forward": a recovery that is interrupted is repeated.
    """

    first: Step
    again: tuple[Kill | KillAfter, ...]

    def __post_init__(self) -> None:
        if not self.again:
            raise ValueError("a kill in recovery needs one further kill or more")


Fault = Step | KillInRecovery


def steps(fault: Fault) -> tuple[Step, ...]:
    """Return the step of the first process, of the second, and so on; the process after these runs to its end."""
    return (fault.first, *fault.again) if isinstance(fault, KillInRecovery) else (fault,)


def has_flush_pressure(fault: Fault) -> bool:
    """Return True if the engine must flush in the background long before a commit."""
    return any(isinstance(step, KillAfter | Abort) and step.flush_pressure for step in steps(fault))
