"""Faults of a process: kills before each I/O operation, in a write, or again in the recovery; and calls that fail."""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from harness.checkers.prefix import DETECTING, Found, PrefixFinding, Promised, breach
from harness.crash_states.changes import matches
from harness.crash_states.files import Tree
from harness.crash_states.model import numbered
from harness.experiments.iofaults.classes import PointClasses, Resolution
from harness.experiments.iofaults.fault import NEVER_READ, NOTHING, Guide, InjectedFault, Plan, Row, by_role
from harness.experiments.iofaults.workshop import Life, Workshop
from harness.io_trace.recorder import IoOperation, Kind, read_recording
from harness.processes.fork_server import ForkServerError

SHORT = "SHORT"
"""The variant in which a write transfers less than it should."""
_TEARS = 2
_SECTOR_BYTES = 512
_SHORT_BYTES, _ALWAYS_SHORT_BYTES = 7, 505
"""The bytes that a short write transfers: if it happens once, and if every write is short, so that a retry ends."""


class _InWriter(InjectedFault):
    """A fault that strikes the writer process, whose store is then checked."""

    def _row(self, shop: Workshop, point: int, only: str, plan: Plan, description: str) -> Row:
        """Run a writer process under ``plan``, and return the row of the trial."""
        lives: list[Life] = []

        def trial() -> tuple[Promised, PrefixFinding]:
            lives.append(shop.writer(plan))
            promises = self.promised(shop, lives[-1])
            return promises, shop.verdict(promises)

        row = shop.tried(point, only, description, trial)
        if lives and not self.has_struck(lives[-1]):
            row["description"] += ", which was not reached"
        return row

    def promised(self, shop: Workshop, life: Life) -> Promised:
        """Return what the process was promised, and any anomaly that it found itself."""
        return shop.promises(life)

    def has_struck(self, life: Life) -> bool:
        """Return False if the process did not come to the fault."""
        return life.killed


class KillBefore(_InWriter):
    """A kill before I/O operation ``point``. Behind the last one the writer process ends."""

    name = "kill"
    words = "killed before each I/O operation"
    kills = 1
    points_per_subset = 120

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        for point in points:
            yield self._row(shop, point, "", ["KillAt", point], f"killed before operation {point}")


class TornWrite(_InWriter):
    """A kill inside the write ``point``, after some of its bytes.

    The length of the write is that of a recording. With background threads, the operation may differ this time.
    """

    name = "tear"
    words = "killed inside a write"
    kills = 1
    points_per_subset = 60
    several_at_a_point = True
    from_recording = True

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        operations = {operation.index: operation for operation in shop.recording() if operation.kind is Kind.WRITE}
        for point in points:
            if point in operations:
                for length in _lengths(operations[point], shop.seed):
                    if only in ("", str(length)):
                        description = f"killed {length} bytes into operation {point}"
                        yield self._row(shop, point, str(length), ["Tear", point, length], description)

    def guides(self, recording: Sequence[IoOperation]) -> list[Guide]:
        return by_role(recording, [(each.index, each.index) for each in recording if each.kind is Kind.WRITE])

    def classes(self, points: PointClasses, variant: str, seed: int, resolution: Resolution) -> Mapping[int, str]:
        """Return the class of each write that can be torn."""
        writes = (each.index for each in points.recording if each.kind is Kind.WRITE and len(each.data) > 1)
        of = points.of_operations(resolution)
        return {point: of[point] for point in writes}


class KillTwice(InjectedFault):
    """A kill before I/O operation ``point``, and a kill of the recovering process before each of its own operations.

    Operations that change no data (a sync, or a line of a log that is never read) leave the same crash state as the
    next operation, when more may have been acknowledged. So only the last of such a run is tried, both times.
    """

    name = "kill_twice"
    words = "killed, and again in its recovery"
    kills = 2
    points_per_subset = 6
    several_at_a_point = True
    from_recording = True

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        idle = _idle(shop.recording())
        for point in points if only else _worthwhile(points, idle):
            promises, so_far = _crashed(shop, point)
            if not so_far.expected:
                yield shop.row(point, "", f"killed before operation {point}", promises, so_far)
                continue
            crashed = Tree.read(shop.root)
            if only and int(only) < 0:
                raise ValueError("the first operation is 0")
            for again in [int(only)] if only else _second_kills(shop, crashed, point):
                killed, row = _killed_again(shop, crashed, promises, point, again)
                yield row
                if not killed:
                    break


class FailingCall(_InWriter):
    """The call that would be operation ``point`` fails as the case's variant says."""

    name = "error"
    words = "a call fails"
    points_per_subset = 60
    variants = (
        *(f"{error} {how}" for error in ("EIO", "ENOSPC", "EDQUOT") for how in ("once", "lasting")),
        f"{SHORT} once",
        f"{SHORT} lasting",
    )
    promise = "error"

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        error, how = shop.case.variant.split(" ")
        for point in points:
            if error == SHORT:
                lasting = how == "lasting"
                plan: Plan = ["Short", point, _ALWAYS_SHORT_BYTES if lasting else _SHORT_BYTES, lasting]
            else:
                plan = ["Fail", point, getattr(errno, error), how == "lasting"]
            yield self._row(shop, point, "", plan, f"{error} at operation {point}, {how}")

    def classes(self, points: PointClasses, variant: str, seed: int, resolution: Resolution) -> Mapping[int, str]:
        """Return the class of each call; only a write can be short."""
        of = enumerate(zip(numbered(points.recording), points.of_operations(resolution), strict=True))
        writes_only = variant.startswith(SHORT)
        return {point: name for point, (each, name) in of if each.kind is Kind.WRITE or not writes_only}

    def promised(self, shop: Workshop, life: Life) -> Promised:
        """After a single error, a process that follows the advice completes its work."""
        promises = shop.promises(life)
        result = life.outcome.result
        if shop.case.variant.endswith("lasting") or promises.broken or result is None or not result["gave_up"]:
            return promises
        if shop.demanded.may_detect and result["error"].split(":")[0] in DETECTING:
            return promises
        return replace(promises, broken=(Found.UNUSABLE, f"one call failed, and this stays: {result['error']}"))

    def has_struck(self, life: Life) -> bool:
        return life.outcome.result is None or bool(life.outcome.result["fired"])


def _worthwhile(points: Sequence[int], idle: frozenset[int]) -> list[int]:
    """Return ``points``, with each idle point replaced by the next one that is not ``idle``."""
    return list(dict.fromkeys(next(after for after in count(point) if after not in idle) for point in points))


def _idle(recording: Sequence[IoOperation]) -> frozenset[int]:
    """Return the operations of ``recording`` that change no data that is ever read."""
    return frozenset(
        operation.index
        for operation in recording
        if operation.kind in (Kind.SYNC, Kind.DATASYNC, Kind.SYNC_ALL)
        or (operation.kind is Kind.WRITE and matches(operation.path, NEVER_READ))
    )


def _recovery(shop: Workshop, crashed: Tree) -> Sequence[IoOperation]:
    """Return the operations of a recovery from ``crashed`` that is not killed; none if it does not complete."""
    recording = shop.scratch("recovery")
    recording.unlink(missing_ok=True)
    shop.place(crashed)
    try:
        recovered = shop.recover(NOTHING, boot="", recording=recording)
    except ForkServerError:
        # Each kill of this recovery will report the problem.
        shop.renew()
        return ()
    return read_recording(recording) if recovered.status == 0 else ()


def _second_kills(shop: Workshop, crashed: Tree, point: int) -> Iterable[int]:
    """Return the operations of a recovery from ``crashed`` at which to kill it: all, or as many as the case bounds."""
    recovery = _recovery(shop, crashed)
    idle = _idle(recovery)
    most = shop.case.states_per_position
    if most is None or not recovery:
        return (at for at in count() if at not in idle)
    worthwhile = [each.index for each in numbered(recovery) if each.index not in idle]
    rng = random.Random(f"second kill {shop.seed} {point}")
    return sorted(rng.sample(worthwhile, min(most, len(worthwhile))))


def _crashed(shop: Workshop, point: int) -> tuple[Promised, PrefixFinding]:
    """Kill before operation ``point``. Return what was acknowledged, and any problem found before a verifier runs."""

    def trial() -> tuple[Promised, PrefixFinding]:
        promises = shop.promises(shop.writer(["KillAt", point]))
        if promises.trouble:
            return promises, breach(Found.HARNESS_ERROR, promises.trouble)
        if promises.broken is not None:
            return promises, breach(*promises.broken)
        return promises, PrefixFinding(Found.VALID, None, True)

    return shop.patiently(trial)


def _killed_again(shop: Workshop, crashed: Tree, promises: Promised, point: int, again: int) -> tuple[bool, Row]:
    """Kill the recovery from ``crashed`` before its operation ``again``. Return False if it ended, and the row."""
    killed = False

    def trial() -> tuple[Promised, PrefixFinding]:
        nonlocal killed
        shop.place(crashed)
        recovery = shop.recover(["KillAt", again], boot="")
        killed = recovery.signal == signal.SIGKILL and not recovery.timed_out
        wrong: PrefixFinding | None = None
        if recovery.timed_out:
            wrong = breach(Found.HANGING, "the recovery did not come to an end")
        elif not killed and recovery.signal is not None:
            wrong = breach(Found.DEADLY, f"the recovery was ended by signal {recovery.signal}")
        elif recovery.error:
            wrong = breach(Found.HARNESS_ERROR, f"the recovery raised {recovery.error}")
        elif not killed and recovery.result["leaked"]:
            wrong = breach(Found.LEAKED_EXCEPTION, recovery.result["leaked"])
        return promises, wrong or shop.verdict(promises)

    description = f"killed before operation {point}, and its recovery before operation {again}"
    row = shop.tried(point, str(again), description, trial)
    return killed, row


def _lengths(operation: IoOperation, seed: int) -> list[int]:
    """Return the lengths at which a write is torn: some anywhere, and one at a sector's end."""
    size = len(operation.data)
    choose = random.Random(f"tear {seed} {operation.index}")
    anywhere = {choose.randrange(1, size) for _ in range(_TEARS - 1)} if size > 1 else set()
    sectors = range(_SECTOR_BYTES - operation.offset % _SECTOR_BYTES, size, _SECTOR_BYTES)
    return sorted(anywhere | ({choose.choice(sectors)} if sectors else set()))
