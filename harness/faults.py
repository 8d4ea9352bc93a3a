"""The faults of a process that works on a store, as plain values that a trial of ``harness.experiments.crash`` injects.

A fault is one class with all that is known of it: its act, in the process that it strikes; the evidence that it struck;
its trials in a profile; its words in reports. ``FAULTS`` has every class by its name. A new fault is a class here, its
name there, and a scenario. Counts begin at 1. Records are counted as the process sees them: the first that it processes
is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import ClassVar, NoReturn, Protocol

from stores import failpoints

_PLANNED_COMMITS, _PLANNED_COMMIT_EVERY = 10, 24
"""The commits of a planned trial in its default shape, and the records of each."""
_FLUSHED_RECORDS = 220
"""A number of records within the second transaction of a planned trial under flush pressure."""


class ProvokedError(Exception):
    """The exception of the user's function if a fault asks for an abort."""


class Work(Protocol):
    """The process that a fault strikes."""

    processed: int
    """The records that it has processed."""
    commits: int
    """The commits that it has begun."""

    def note(self, event: str) -> None:
        """Note an event in the history."""

    def die(self, at: str) -> NoReturn:
        """End by SIGKILL."""

    def let_flush(self) -> None:
        """Give background flushes time to reach the files."""

    def be_taken_over(self) -> None:
        """Let another instance, with its own stores, process the records of one commit, commit, and close."""

    def commit_in_vain(self) -> None:
        """Continue without knowledge of the other instance, until a commit is refused."""

    def time_out(self) -> bool:
        """Commit while another process holds the changelog. Return True if that timed out."""

    def finish(self) -> None:
        """Commit at the end of the input, and note the final states."""


class Fault:
    """A fault of one process; this one does nothing."""

    __slots__ = ()
    name: ClassVar[str] = ""
    words: ClassVar[str] = ""
    """The fault in a few words without its counts, which trials of several seeds share."""
    changelog_timeout_s: ClassVar[float] = 30.0
    truncates: ClassVar[bool] = False
    """True if the changelogs are truncated after the process."""

    def arm(self, work: Work) -> None:
        """Prepare the process, before it opens its task."""

    def in_record(self, work: Work) -> None:
        """Strike in the user's function, after its writes. Raises: ProvokedError to abort the transaction."""

    def after_abort(self, work: Work) -> bool:
        """Return True if the process continues after its transaction was aborted, False if it closes the task."""
        return False

    def after_record(self, work: Work) -> bool:
        """Strike between two records. Return True if the process stops there."""
        return False

    def in_commit(self, work: Work) -> bool:
        """Strike in a commit. Return True if that failed, and the task continues from the last one."""
        return False

    def finish(self, work: Work) -> None:
        """Let the process end its work."""
        work.finish()

    def unstruck(self, noted: Set[str]) -> str:
        """Return what a process that ended by itself did not come to, by the events that it noted; "" if it struck."""
        return ""

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        """Return the faults that each backend, level and seed of a profile gets, by their description."""
        return {}

    @property
    def steps(self) -> tuple[Fault, ...]:
        """The fault of the first process, of the second, and so on; the process after these runs to its end."""
        return (self,)

    @property
    def place(self) -> str:
        """The failpoint at which it strikes, or ""."""
        return ""

    @property
    def flushes(self) -> bool:
        """True if the engine must flush in the background long before a commit."""
        return False

    @property
    def kills(self) -> bool:
        """True if it ends the process by SIGKILL."""
        return getattr(self, "then", "") == "kill"

    @property
    def text(self) -> str:
        """The words, with what matters of the settings."""
        return self.words or self.name


NOTHING = Fault()
"""The fault of a process that runs to its end."""


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """SIGKILL when the process reaches ``failpoint`` for the ``hit``-th time."""

    name: ClassVar[str] = "kill"
    failpoint: str
    hit: int = 1

    def __post_init__(self) -> None:
        _require_positive("hit", self.hit)

    def arm(self, work: Work) -> None:
        """Raise ValueError if no loaded module declares the failpoint."""
        reached = 0

        def count() -> None:
            nonlocal reached
            reached += 1
            if reached == self.hit:
                work.die(self.failpoint)

        failpoints.arm(self.failpoint, count)

    def unstruck(self, noted: Set[str]) -> str:
        return f"did not reach the failpoint {self.failpoint}"

    @property
    def place(self) -> str:
        return self.failpoint

    @property
    def kills(self) -> bool:
        return True


class _AfterRecords(Fault):
    """A fault that strikes at the ``records``-th record."""

    __slots__ = ()
    ways: ClassVar[tuple[str, ...]] = ()
    """The values of ``then``, if it has that setting: the next step of the process."""
    records: int

    def __post_init__(self) -> None:
        _require_positive("records", self.records)
        if self.ways and (then := getattr(self, "then", "")) not in self.ways:
            raise ValueError(f"then is one of {', '.join(self.ways)}, not {then!r}")

    def after_record(self, work: Work) -> bool:
        return work.processed == self.records and self.strike(work)

    def strike(self, work: Work) -> bool:
        """Strike after that record. Return True if the process stops there."""
        return False

    def unstruck(self, noted: Set[str]) -> str:
        struck = noted & {"aborted", "stopped", "taken_over"}
        return "" if struck else f"ended before it had processed {self.records} records"


@dataclass(frozen=True, slots=True)
class KillAfter(_AfterRecords):
    """SIGKILL inside a transaction, right after the ``records``-th record.

    With ``flush_pressure`` the engine's write buffer is tiny, so that it has flushed in the background before.
    """

    name: ClassVar[str] = "kill_after"
    words: ClassVar[str] = "killed inside a transaction"
    records: int
    flush_pressure: bool = False

    def strike(self, work: Work) -> bool:
        if self.flush_pressure:
            work.let_flush()
        work.die("record")

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        return {
            "kill inside a transaction": cls(inside(choose)),
            "kill inside a transaction, flushed": cls(_FLUSHED_RECORDS, flush_pressure=True),
        }

    @property
    def flushes(self) -> bool:
        return self.flush_pressure

    @property
    def kills(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return self.words + ", after background flushes" * self.flush_pressure


@dataclass(frozen=True, slots=True)
class Abort(_AfterRecords):
    """The user's function raises at the ``records``-th record, once, and the task aborts its transaction.

    ``then`` is the next step of the process: ``close`` the task, be killed (``kill``), or ``go_on`` to the end of the
    input. With ``flush_pressure`` the engine has flushed writes of the aborted transaction before (KAFKA-20685).
    """

    name: ClassVar[str] = "abort"
    words: ClassVar[str] = "transaction aborted"
    ways: ClassVar[tuple[str, ...]] = ("close", "kill", "go_on")
    records: int
    flush_pressure: bool = False
    then: str = "close"

    def in_record(self, work: Work) -> None:
        if work.processed == self.records:
            if self.flush_pressure:
                work.let_flush()
            raise ProvokedError

    def after_abort(self, work: Work) -> bool:
        if self.then == "kill":
            work.die("abort")
        return self.then == "go_on"

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        return {
            "abort, then close": cls(inside(choose)),
            "abort, then kill, flushed": cls(_FLUSHED_RECORDS, flush_pressure=True, then="kill"),
            "abort, then go on": cls(inside(choose), then="go_on"),
        }

    @property
    def flushes(self) -> bool:
        return self.flush_pressure

    @property
    def text(self) -> str:
        then = {"close": ", task closed", "kill": ", process killed", "go_on": ", task goes on"}[self.then]
        return self.words + then + ", after background flushes" * self.flush_pressure


@dataclass(frozen=True, slots=True)
class Stop(_AfterRecords):
    """The process closes the task cleanly after the ``records``-th record: the harmless end for comparison."""

    name: ClassVar[str] = "stop"
    words: ClassVar[str] = "closed cleanly"
    records: int

    def strike(self, work: Work) -> bool:
        work.note("stopped")
        return True

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        return {"stop": cls(inside(choose))}


@dataclass(frozen=True, slots=True)
class Timeout(Fault):
    """The changelog times out when the task commits for the ``commit``-th time; the process then continues.

    Source: KIP-892, "Error Handling", 3.
    """

    name: ClassVar[str] = "timeout"
    words: ClassVar[str] = "commit timed out"
    changelog_timeout_s: ClassVar[float] = 0.05
    commit: int

    def __post_init__(self) -> None:
        _require_positive("commit", self.commit)

    def in_commit(self, work: Work) -> bool:
        return work.commits == self.commit and work.time_out()

    def unstruck(self, noted: Set[str]) -> str:
        return "" if "timed_out" in noted else f"ended before its commit {self.commit} could time out"

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        return {"commit timed out": cls(choose.randint(1, _PLANNED_COMMITS - 1))}


@dataclass(frozen=True, slots=True)
class Fence(_AfterRecords):
    """Another instance takes over the task after the ``records``-th record; this one continues until it is refused.

    The other instance, with its own stores, processes the records of one commit, commits, and closes.
    Source: KIP-98, zombie fencing.
    """

    name: ClassVar[str] = "fence"
    words: ClassVar[str] = "taken over by another instance"
    records: int

    def strike(self, work: Work) -> bool:
        work.be_taken_over()
        return True

    def finish(self, work: Work) -> None:
        work.commit_in_vain()

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        return {"taken over by another instance": cls(inside(choose))}


@dataclass(frozen=True, slots=True)
class Truncate(_AfterRecords):
    """After the ``records``-th record the process ends, and the changelogs then no longer reach back to its stores.

    Each changelog gets its whole state again as new records, and is truncated before them, as compaction and retention
    do in time. ``then`` is the end of the process: ``close``, or killed (``kill``). Source: KIP-892, "Error Handling",
    2.
    """

    name: ClassVar[str] = "truncate"
    words: ClassVar[str] = "changelog truncated"
    truncates: ClassVar[bool] = True
    ways: ClassVar[tuple[str, ...]] = ("close", "kill")
    records: int
    then: str = "close"

    def strike(self, work: Work) -> bool:
        if self.then == "kill":
            work.die("record")
        work.note("stopped")
        return True

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        return {"changelog truncated": cls(inside(choose), then=choose.choice(cls.ways))}

    @property
    def text(self) -> str:
        return f"{self.words} after a {self.then}"


@dataclass(frozen=True, slots=True)
class KillInRecovery(Fault):
    """``first`` happens to the first process, and each of ``again`` to the next process, which recovers from it.

    Source: KIP-844, "roll forward": a recovery that is interrupted is repeated.
    """

    name: ClassVar[str] = "kill_in_recovery"
    first: Fault
    again: tuple[Kill | KillAfter, ...]

    def __post_init__(self) -> None:
        if not self.again:
            raise ValueError("a kill in recovery needs one further kill or more")
        if isinstance(self.first, KillInRecovery):
            raise ValueError("'first' cannot be another 'kill_in_recovery'")

    @classmethod
    def planned(cls, choose: Random) -> Mapping[str, Fault]:
        tail = Kill("task.after_log_commit", choose.randint(2, _PLANNED_COMMITS - 1))
        before, after = Kill("task.restore.before_write"), Kill("task.restore.after_write")
        return {
            "kill again and again": cls(
                KillAfter(choose.randint(1, 90)), tuple(KillAfter(choose.randint(5, 40)) for _ in range(3))
            ),
            "kill the same restore again and again": cls(tail, (before, before, after)),
        }

    @property
    def steps(self) -> tuple[Fault, ...]:
        return (self.first, *self.again)

    @property
    def place(self) -> str:
        """The failpoint of the second kill."""
        return self.again[0].place

    @property
    def flushes(self) -> bool:
        return any(step.flushes for step in self.steps)

    @property
    def text(self) -> str:
        return f"killed {len(self.steps)} times"


FAULTS: Mapping[str, type[Fault]] = MappingProxyType(
    {kind.name: kind for kind in (Kill, KillAfter, Abort, Stop, Timeout, Fence, Truncate, KillInRecovery)}
)


def inside(choose: Random) -> int:
    """Return a number of records after which a transaction is open, in the default shape of a planned trial."""
    return choose.randrange(_PLANNED_COMMITS) * _PLANNED_COMMIT_EVERY + choose.randint(1, _PLANNED_COMMIT_EVERY - 1)


def _require_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} counts from 1, not {value!r}")
