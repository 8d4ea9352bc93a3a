"""The faults that a stateful query must survive: each with its act, its evidence, its words, and the Spark it needs.

A fault acts in the Python workers that run the query's function, or in the driver between two batches. A new fault is
an entry of ``FAULTS``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psutil

from harness.checkers.counting import wrong_restores
from harness.experiments.query_faults.notes import Notes
from harness.mutants import patch
from stores import failpoints
from stores.changelog.files import Header, PartitionLog, StoreChanges, VersionLog
from stores.changelog.files.snapshot_chains import RestorePiece
from stores.errors import StoreError
from stores.spark.local_state import RESTORED, LocalState

if TYPE_CHECKING:
    from stores.spark import Context, Rows

CLUSTER = "cluster"
"""A master and two workers on loopback, each with local files of its own."""
ZOMBIES: Mapping[int, str] = {1: "version_log.aside_written", 3: ""}
"""The versions whose first attempt stalls, and where: at a failpoint, or, if empty, before it computes anything."""
ZOMBIE_PARTITION = 1
FAILED_VERSION = 2
"""The version that meets a fault which comes once."""
BALLAST = "ballast"
"""The file that fills a disk."""
_CHUNK = bytes(1 << 16)
_POLL_S = 0.05

_installed = False
_is_zombie: list[int] = []
"""The version at which this process has stalled, if it has."""
_met: list[object] = []
"""The context of the batch whose first record has met the fault in this process."""

Act = Callable[["Faulty", "Context", Notes], None]


@dataclass(frozen=True, slots=True)
class Course:
    """A trial whose drivers have ended: its notes, and the folders of local copies on the machine that was lost."""

    notes: Notes
    batches: int
    partitions: int
    survivor: str
    lost: str


def _no_evidence(course: Course) -> list[str]:
    return []


def _nothing_between(notes: Notes, number: int, batches: int, end_driver: Callable[[], None]) -> None:
    """Do nothing between two batches."""


@dataclass(frozen=True, slots=True)
class QueryFault:
    """A fault, and the Spark that it needs."""

    words: str
    kind: str
    """The other queries meet one fault of each kind, by turns."""
    master: str = "local"
    max_failures: int = 1
    cores: int = 1
    """The cores of a worker of the cluster. A stalled attempt keeps one."""
    batches: int = 5
    partitions: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    retention: Mapping[str, int] = field(default_factory=lambda: {"snapshot_versions": 2, "keep_versions": 2})
    kills: bool = False
    """True if it kills at each failpoint of a batch, one in each batch."""
    starts_max: int = 1
    """The number of drivers that the query may need, one after the other."""
    fails: int = 0
    """The number of times that the query fails and is started again."""
    may_go_on: bool = False
    """True if a query over some backend goes on without a failure."""
    error: str = ""
    """Words that the error of a failed query must have."""
    full: str = "nothing"
    """The folder of the trial that it fills."""
    durability: str = "CHANGELOG"
    """The level of the stores. At PROCESS their commits survive a kill, so a store that leads its log is seen."""
    shared_local: bool = True
    """True for local copies in a folder of the trial, false for the folders of Spark's executors."""
    seconds: float = 60.0
    """The time of a trial on two idle cores, roughly."""
    act: Act | None = None
    """Strikes at the beginning of a batch, in each Python worker."""
    between: Callable[[Notes, int, int, Callable[[], None]], None] = _nothing_between
    """Strikes in the driver after the batch with a number, of so many; the last argument kills the driver."""
    struck_note: str = "killed "
    """The beginning of the notes that say how often it struck."""
    evidence: Callable[[Course], list[str]] = _no_evidence
    """Return what went wrong that only this fault can show; an empty text is nothing."""

    def struck(self, notes: Notes) -> int:
        """Return how many times the fault has struck."""
        return sum(1 for _ in notes.lines(self.struck_note)) or int(notes.number(self.struck_note))


@dataclass(frozen=True)
class Faulty:
    """A fault in the function ``process``; what its worker does is noted below ``folder``.

    ``killed_at`` are the failpoints of faults that kill: one in each batch, from the second one on.
    """

    process: Callable[..., Any]
    folder: str
    fault: str
    partitions: int
    killed_at: tuple[str, ...] = ()
    full: str = ""
    """The folder that a fault fills."""
    mutant: str = ""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the value in a Python worker, and prepare that one: Spark does this before each task."""
        self.__dict__.update(state)
        _install(Path(self.folder), self.mutant)

    def meet(self, context: Context) -> None:
        """Meet the fault at the beginning of a batch, where it is due."""
        failpoints.disarm()
        notes = Notes(Path(self.folder))
        notes.add("calls", {"version": context.version, "partition": context.partition})
        act = FAULTS[self.fault].act
        if act is not None:
            act(self, context, notes)


@dataclass(frozen=True)
class FaultyRows(Faulty):
    """A function of the rows of a batch."""

    def __call__(self, rows: Rows, context: Context) -> Iterator[Any]:
        """Meet the fault, and process the rows."""
        self.meet(context)
        yield from self.process(rows, context) or ()


@dataclass(frozen=True)
class FaultyRecords(Faulty):
    """A function of records, or of batches of them. The first call in a batch of Spark meets the fault.

    So each partition needs a record in each batch.
    """

    def __call__(self, given: Any, context: Any) -> None:
        """Meet the fault if this call is the first, and process what is given."""
        if not _met or _met[0] is not context:
            _met[:] = [context]
            self.meet(context.batch)
        self.process(given, context)


def _install(folder: Path, mutant: str) -> None:
    """Build the mutant into this process, and note what is restored, appended and committed. Once in each process."""
    global _installed  # noqa: PLW0603
    if _installed:
        return
    _installed = True
    patch(mutant, "")
    notes = Notes(folder)
    bring_to, restore, append, commit = (
        LocalState.bring_to,
        PartitionLog.restore,
        PartitionLog.append,
        LocalState.commit,
    )
    read = {"versions": 0, "bytes": 0, "snapshots": 0}

    def counted(self: PartitionLog, after: int | None, to: int) -> Iterator[RestorePiece]:
        for piece in restore(self, after, to):
            read["versions"] += piece.reached is not None
            read["snapshots"] += piece.fresh
            read["bytes"] += sum(len(key) + len(value or b"") for _, _, key, value in piece.records)
            yield piece

    def noted(self: LocalState, log: PartitionLog, version: int | None, version_id: str | None = None) -> int:
        read.update(versions=0, bytes=0, snapshots=0)
        before = self.version
        position = bring_to(self, log, version, version_id)
        facts = {"partition": log.partition, "after": before, "to": version, "path": str(self._path)}
        notes.add("restores", {**facts, **read})
        return position

    def appended(self: PartitionLog, header: Header, changes: Mapping[str, StoreChanges]) -> Header:
        facts = {"version": header.version, "partition": self.partition}
        try:
            answer = append(self, header, changes)
        except StoreError as error:
            notes.add("appends", {**facts, "zombie": bool(_is_zombie), "result": type(error).__name__})
            raise
        else:
            result = "first" if answer.id == header.id else "not first"
            notes.add("appends", {**facts, "zombie": bool(_is_zombie), "result": result})
            return answer
        finally:
            while _is_zombie:
                notes.once(f"zombie {_is_zombie.pop()} ended")

    def committed(self: LocalState, version: int, version_id: str | None = None) -> None:
        commit(self, version, version_id)
        notes.add("commits", {"path": str(self._path), "version": version})

    for owner, name, new in (
        (PartitionLog, "restore", counted),
        (PartitionLog, "append", appended),
        (LocalState, "bring_to", noted),
        (LocalState, "commit", committed),
    ):
        setattr(owner, name, new)


def _kill(faulty: Faulty, context: Context, notes: Notes, *, end: Callable[[], None]) -> None:
    """Let this partition's first attempt at a batch kill a process at the batch's failpoint."""
    at = context.version - 1
    if not 0 <= at < len(faulty.killed_at) or context.partition != at % faulty.partitions:
        return
    if not notes.once(f"killed {at}"):
        return
    if faulty.killed_at[at] == RESTORED:
        # It is passed before the function: the next attempt, in another process, finds its own copy behind.
        end()
    else:
        failpoints.arm(faulty.killed_at[at], end)


def _end_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _end_jvm() -> None:
    """Kill the JVM above this worker: an executor, or on a local master the driver. The worker itself lives on."""
    failpoints.disarm()
    for process in psutil.Process().parents():
        if "java" in process.name():
            process.kill()
            return
    raise AssertionError("there is no JVM above this worker")


def _stall(faulty: Faulty, context: Context, notes: Notes) -> None:
    """Let the first attempt at a version stall until all others are done with the versions after it."""
    version = context.version
    if version not in ZOMBIES or context.partition != ZOMBIE_PARTITION or not notes.once(f"stalled {version}"):
        return

    def sleep() -> None:
        # Without the note the others are slow: this attempt is no zombie yet.
        if notes.wait(f"wake {version}"):
            _is_zombie.append(version)

    if ZOMBIES[version]:
        failpoints.arm(ZOMBIES[version], sleep)
    else:
        sleep()


def _fail_halfway(faulty: Faulty, context: Context, notes: Notes) -> None:
    """Raise in the last partition, once all others have the version in the log."""
    if context.version != FAILED_VERSION or context.partition != faulty.partitions - 1:
        return
    if not notes.once("failed halfway"):
        return
    log = VersionLog.open(Path(faulty.folder) / "state")
    others = [log.partition(number) for number in range(faulty.partitions - 1)]
    while any(other.listing().newest != context.version for other in others):
        time.sleep(_POLL_S)
    raise ArithmeticError("this partition fails on purpose")


def _fill(faulty: Faulty, context: Context, notes: Notes, *, ends_worker: bool = False) -> None:
    """Fill the disk, once. If it is that of local copies, the next attempt opens them again, in another process."""
    if context.version != FAILED_VERSION or not notes.once("filled"):
        return
    with (Path(faulty.full) / BALLAST).open("wb", buffering=0) as ballast:
        try:
            while ballast.write(_CHUNK):
                pass
        except OSError:
            notes.add("filled", {"bytes": ballast.tell()})
    if ends_worker:
        _end_worker()


def _kill_driver(notes: Notes, number: int, batches: int, end_driver: Callable[[], None]) -> None:
    if number % 2 and notes.once(f"killed {number}"):
        end_driver()


def _wake_zombies(notes: Notes, number: int, batches: int, end_driver: Callable[[], None]) -> None:
    for version in ZOMBIES:
        # Two batches later its version is removed, and its name is free.
        if number == version + 2 and notes.once(f"wake {version}"):
            notes.wait(f"zombie {version} ended")


def _lose_machine(notes: Notes, number: int, batches: int, end_driver: Callable[[], None]) -> None:
    if number == batches // 2 and notes.once("lose a machine"):
        notes.wait("lost")


def _accepted_zombies(course: Course) -> list[str]:
    return [
        f"a zombie's version {each['version']} was accepted: {each['result']}"
        for each in course.notes.lines("appends")
        if each["zombie"] and each["result"] != "ProducerFencedError"
    ]


def _calls_again(course: Course) -> list[str]:
    again = sum(each["version"] == FAILED_VERSION for each in course.notes.lines("calls"))
    if again == course.partitions + 1:
        return []
    return [f"the function was called {again} times for the failed batch, not {course.partitions + 1}"]


def _restores_elsewhere(course: Course) -> list[str]:
    [moment] = course.notes.lines("lost")
    first: dict[int, Any] = {}
    for each in course.notes.lines("restores"):
        if each["at"] > moment["at"]:
            first.setdefault(each["partition"], each)
    before = [each for each in course.notes.lines("commits") if each["at"] < moment["at"]]
    return [
        wrong_restores(before, first.values(), course.survivor, course.batches // 2, course.lost),
        "" if len(first) == course.partitions else f"only {len(first)} partitions went on",
    ]


_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.efficiency.enabled": "false",
    # Else Spark kills the worker of the attempt that came second, and there is no zombie.
    "spark.python.task.killTimeout": "600s",
}
_FULL = "No space left on device"
FAULTS: Mapping[str, QueryFault] = MappingProxyType(
    {
        "worker killed": QueryFault(
            "a Python worker is killed at each failpoint of a batch",
            "killed",
            max_failures=4,
            partitions=2,
            kills=True,
            durability="PROCESS",
            seconds=75,
            act=partial(_kill, end=_end_worker),
        ),
        "executor killed": QueryFault(
            "an executor's JVM is killed at each failpoint of a batch; its Python worker lives on",
            "killed",
            CLUSTER,
            max_failures=12,
            partitions=2,
            kills=True,
            shared_local=False,
            seconds=90,
            act=partial(_kill, end=_end_jvm),
        ),
        "driver killed in a batch": QueryFault(
            "the driver is killed at each failpoint of a batch, and restarted from its checkpoint",
            "killed",
            partitions=2,
            kills=True,
            starts_max=16,
            seconds=90,
            act=partial(_kill, end=_end_jvm),
        ),
        "driver killed between batches": QueryFault(
            "the driver is killed after every second batch, and restarted from its checkpoint",
            "killed",
            batches=4,
            starts_max=8,
            seconds=80,
            between=_kill_driver,
        ),
        "stalled attempt": QueryFault(
            "with speculation, the first attempt at a batch stalls and goes on two batches later",
            "stalled",
            CLUSTER,
            max_failures=4,
            cores=2,
            batches=6,
            settings=_SPECULATION,
            retention={"snapshot_versions": 1, "keep_versions": 0},
            shared_local=False,
            seconds=55,
            act=_stall,
            between=_wake_zombies,
            struck_note="zombie ",
            evidence=_accepted_zombies,
        ),
        "batch fails halfway": QueryFault(
            "a batch fails after all partitions but one have finished, and is repeated",
            "failed",
            fails=1,
            error="this partition fails on purpose",
            seconds=35,
            act=_fail_halfway,
            struck_note="failed halfway",
            evidence=_calls_again,
        ),
        "local disk full": QueryFault(
            "the disk with the local copies is full, until the query has failed",
            "full",
            max_failures=2,
            fails=1,
            may_go_on=True,
            error=_FULL,
            full="local",
            act=partial(_fill, ends_worker=True),
            struck_note="filled",
        ),
        "log disk full": QueryFault(
            "the disk with the log is full, until the query has failed",
            "full",
            max_failures=2,
            fails=1,
            error=_FULL,
            full="state",
            act=_fill,
            struck_note="filled",
        ),
        "machine lost": QueryFault(
            "one of two machines is lost for good between two batches",
            "lost",
            CLUSTER,
            max_failures=4,
            partitions=4,
            retention={"snapshot_versions": 100},
            shared_local=False,
            seconds=45,
            between=_lose_machine,
            struck_note="lost",
            evidence=_restores_elsewhere,
        ),
    }
)

KINDS = tuple(tuple(names) for _, names in groupby(FAULTS, key=lambda name: FAULTS[name].kind))
"""The faults by their kind."""
FULL_DISKS = tuple(name for name, fault in FAULTS.items() if fault.kind == "full")
