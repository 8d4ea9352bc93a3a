"""What can befall a process that works on a store, as plain values.

A fault says what happens and never does it: ``harness.trials`` carries it out in a process of its own.
Counts begin at 1. Records are counted as the process sees them: the first that it processes is 1.
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

    ``then`` says what the process does next: ``close`` the task, be killed (``kill``), or ``go_on`` to the end of
    the input. With ``flush_pressure`` the engine has flushed writes of the aborted transaction before (KAFKA-20685).
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
    """The process closes the task cleanly after the ``records``-th record: the harmless end to compare with."""

    records: int

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Timeout:
    """The changelog does not answer in time when the task commits for the ``commit``-th time; it then goes on.

    Source: KIP-892, "Error Handling", 3.
    """

    commit: int

    def __post_init__(self) -> None:
        _require_positive("commit", self.commit)


@dataclass(frozen=True, slots=True)
class Fence:
    """Another instance takes the task over after the ``records``-th record; this one goes on until it is refused.

    The other one, with stores of its own, processes as much as goes into a commit, commits, and closes.
    Source: KIP-98, zombie fencing.
    """

    records: int

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Truncate:
    """After the ``records``-th record the process ends, and the changelogs then no longer reach back to its stores.

    They say all that they said again, in short, and are cut before that, as compaction and retention do in time.
    ``then`` says how the process ends: ``close``, or killed (``kill``). Source: KIP-892, "Error Handling", 2.
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
    """``first`` befalls the first process, and each of ``again`` the next one that recovers from it.

    Source: KIP-844, "roll forward": a recovery that is interrupted is repeated.
    """

    first: Step
    again: tuple[Kill | KillAfter, ...]

    def __post_init__(self) -> None:
        if not self.again:
            raise ValueError("a kill in recovery needs one further kill or more")


Fault = Step | KillInRecovery


def steps(fault: Fault) -> tuple[Step, ...]:
    """What befalls the first process, the second, and so on; the process after the last one runs to its end."""
    return (fault.first, *fault.again) if isinstance(fault, KillInRecovery) else (fault,)


def has_flush_pressure(fault: Fault) -> bool:
    """Whether the engine is to flush in the background long before a commit."""
    return any(isinstance(step, KillAfter | Abort) and step.flush_pressure for step in steps(fault))
