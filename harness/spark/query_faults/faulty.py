"""A function of a stateful query that breaks on purpose, in the Python workers that run it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.mutants.registry import patch
from harness.spark.query_faults.notes import Notes
from stores import failpoints
from stores.changelog.files import Header, PartitionLog, StoreChanges, VersionLog
from stores.changelog.files.reading import Piece
from stores.changelog.interface import Record
from stores.errors import StoreError
from stores.spark import Context, Rows
from stores.spark.local_state import RESTORED, LocalState

ZOMBIES: Mapping[int, str] = {2: "version_log.aside_written", 4: ""}
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
        action = _ACTIONS.get(self.fault)
        if action is not None:
            action(self, context, notes)


@dataclass(frozen=True)
class FaultyRows(Faulty):
    """A function of the rows of a batch."""

    def __call__(self, rows: Rows, context: Context) -> Iterator[Any]:
        """Meet the fault, and process the rows."""
        self.meet(context)
        yield from self.process(rows, context) or ()


@dataclass(frozen=True)
class FaultyRecords(Faulty):
    """A function of one record. The first one of a batch meets the fault, so each partition needs one in each batch."""

    def __call__(self, record: Record, context: Any) -> None:
        """Meet the fault if this record is the first, and process it."""
        if not _met or _met[0] is not context:
            _met[:] = [context]
            self.meet(context.batch)
        self.process(record, context)


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

    def counted(self: PartitionLog, after: int | None, to: int) -> Iterator[Piece]:
        for piece in restore(self, after, to):
            read["versions"] += piece.reached is not None
            read["snapshots"] += piece.fresh
            read["bytes"] += sum(len(key) + len(value or b"") for _, _, key, value in piece.records)
            yield piece

    def noted(self: LocalState, log: PartitionLog, version: int | None, version_id: str | None = None) -> int:
        read.update(versions=0, bytes=0, snapshots=0)
        before = self.version
        found = bring_to(self, log, version, version_id)
        facts = {"partition": log.partition, "after": before, "to": version, "path": str(self._path)}
        notes.add("restores", {**facts, **read})
        return found

    def appended(self: PartitionLog, header: Header, changes: Mapping[str, StoreChanges]) -> Header:
        facts = {"version": header.version, "partition": self.partition}
        try:
            written = append(self, header, changes)
        except StoreError as error:
            notes.add("appends", {**facts, "zombie": bool(_is_zombie), "result": type(error).__name__})
            raise
        else:
            result = "first" if written.id == header.id else "not first"
            notes.add("appends", {**facts, "zombie": bool(_is_zombie), "result": result})
            return written
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


def _kill(faulty: Faulty, context: Context, notes: Notes) -> None:
    """Let this partition's first attempt at a batch kill a process at the batch's failpoint."""
    at = context.version - 1
    if not 0 <= at < len(faulty.killed_at) or context.partition != at % faulty.partitions:
        return
    if not notes.once(f"killed {at}"):
        return
    end = _end_worker if faulty.fault == "worker killed" else _end_jvm
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


def _fill(faulty: Faulty, context: Context, notes: Notes) -> None:
    """Fill the disk, once. If it is that of local copies, the next attempt opens them again, in another process."""
    if context.version != FAILED_VERSION or not notes.once("filled"):
        return
    with (Path(faulty.full) / BALLAST).open("wb", buffering=0) as ballast:
        try:
            while ballast.write(_CHUNK):
                pass
        except OSError:
            notes.add("filled", {"bytes": ballast.tell()})
    if faulty.fault == "local disk full":
        _end_worker()


_ACTIONS: Mapping[str, Callable[[Faulty, Context, Notes], None]] = {
    "worker killed": _kill,
    "executor killed": _kill,
    "driver killed in a batch": _kill,
    "stalled attempt": _stall,
    "batch fails halfway": _fail_halfway,
    "local disk full": _fill,
    "log disk full": _fill,
}
