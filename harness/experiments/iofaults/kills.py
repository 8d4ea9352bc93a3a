"""Faults of a process: kills before each I/O operation, in a write, or again in the recovery; and calls that fail."""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from harness.checkers.prefix import DETECTING, Demand, Found, PrefixFinding, Promised
from harness.crash_states.changes import matches
from harness.crash_states.files import Tree
from harness.experiments.iofaults.workshop import NEVER_READ, NOTHING, Life, Plan, Row, Workshop
from harness.io_trace.recorder import IoOperation, Kind, read_recording
from harness.processes.fork_server import ForkServerError

_TEARS = 2
_SECTOR_BYTES = 512


def kills(shop: Workshop, points: Sequence[int], only: str = "") -> Iterator[Row]:
    """Kill before I/O operation ``point``, for each of ``points``. Behind the last one the writer process ends."""
    for point in points:
        yield _killed(shop, point, "", ["Kill", point], f"killed before operation {point}")


def tears(shop: Workshop, points: Sequence[int], only: str = "") -> Iterator[Row]:
    """Kill inside each write among ``points``, after some of its bytes.

    The length of the write is that of a recording. With background threads, the operation may differ this time.
    """
    operations = {operation.index: operation for operation in shop.recording() if operation.kind is Kind.WRITE}
    for point in points:
        if point in operations:
            for length in _lengths(operations[point], shop.seed):
                if only in ("", str(length)):
                    description = f"killed {length} bytes into operation {point}"
                    yield _killed(shop, point, str(length), ["Tear", point, length], description)


def kills_twice(shop: Workshop, points: Sequence[int], only: str = "") -> Iterator[Row]:
    """Kill before I/O operation ``point``, then kill the recovering process before each of its own operations.

    Operations that change no data (a sync, or a line of a log that is never read) leave the same crash state as the
    next operation, when more may have been acknowledged. So only the last of such a run is tried, both times.
    """
    demanded = shop.demanded("kill")
    idle = _idle(shop.recording())
    for point in points if only else _worthwhile(points, idle):
        promises, so_far = _crashed(shop, demanded, point)
        if not so_far.expected:
            yield shop.row(point, "", f"killed before operation {point}", promises, so_far)
            continue
        crashed = Tree.read(shop.root)
        again = int(only or 0)
        if again < 0:
            raise ValueError("the first operation is 0")
        passed_over = frozenset[int]() if only else _idle(_recovery(shop, crashed))
        killed = True
        while killed:
            if again not in passed_over:
                killed, told_again, verdict = _killed_again(shop, crashed, promises, demanded, again)
                description = f"killed before operation {point}, and its recovery before operation {again}"
                yield shop.row(point, str(again), description, told_again, verdict)
            again += 1
            if only:
                break


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


def _killed(shop: Workshop, point: int, only: str, plan: Plan, description: str) -> Row:
    demanded = shop.demanded("kill")
    life: Life | None = None

    def trial() -> tuple[Promised, PrefixFinding]:
        nonlocal life
        life = shop.writer(plan)
        promises = shop.promises(life, demanded)
        return promises, shop.verdict(promises, demanded)

    promises, verdict = shop.patiently(trial)
    if life is not None and not life.killed:
        description += ", which was not reached"
    return shop.row(point, only, description, promises, verdict)


def _crashed(shop: Workshop, demanded: Demand, point: int) -> tuple[Promised, PrefixFinding]:
    """Kill before operation ``point``. Return what was acknowledged, and any problem found before a verifier runs."""

    def trial() -> tuple[Promised, PrefixFinding]:
        promises = shop.promises(shop.writer(["Kill", point]), demanded)
        if promises.trouble:
            return promises, PrefixFinding(Found.HARNESS_ERROR, None, False, promises.trouble)
        if promises.broken is not None:
            return promises, PrefixFinding(promises.broken[0], None, False, promises.broken[1])
        return promises, PrefixFinding(Found.VALID, None, True)

    return shop.patiently(trial)


def _killed_again(
    shop: Workshop, crashed: Tree, promises: Promised, demanded: Demand, again: int
) -> tuple[bool, Promised, PrefixFinding]:
    killed = False

    def trial() -> tuple[Promised, PrefixFinding]:
        nonlocal killed
        shop.place(crashed)
        recovery = shop.recover(["Kill", again], boot="")
        killed = recovery.signal == signal.SIGKILL and not recovery.timed_out
        if recovery.timed_out:
            return promises, PrefixFinding(Found.HANGING, None, False, "the recovery did not come to an end")
        if not killed and recovery.signal is not None:
            return promises, PrefixFinding(
                Found.DEADLY, None, False, f"the recovery was ended by signal {recovery.signal}"
            )
        if recovery.error:
            return promises, PrefixFinding(Found.HARNESS_ERROR, None, False, f"the recovery raised {recovery.error}")
        if not killed and recovery.result["leaked"]:
            return promises, PrefixFinding(Found.LEAKED_EXCEPTION, None, False, recovery.result["leaked"])
        return promises, shop.verdict(promises, demanded)

    told_again, verdict = shop.patiently(trial)
    return killed, told_again, verdict


def _lengths(operation: IoOperation, seed: int) -> list[int]:
    """Return the lengths at which a write is torn: some anywhere, and one at a sector's end."""
    size = len(operation.data)
    choose = random.Random(f"tear {seed} {operation.index}")
    anywhere = {choose.randrange(1, size) for _ in range(_TEARS - 1)} if size > 1 else set()
    sectors = range(_SECTOR_BYTES - operation.offset % _SECTOR_BYTES, size, _SECTOR_BYTES)
    return sorted(anywhere | ({choose.choice(sectors)} if sectors else set()))


_SHORT_BYTES, _ALWAYS_SHORT_BYTES = 7, 505
"""The bytes that a short write transfers: if it happens once, and if every write is short, so that a retry ends."""


def errors(shop: Workshop, points: Sequence[int], only: str = "") -> Iterator[Row]:
    """Let the call that would be operation ``point`` fail as the case's variant says, for each of ``points``."""
    error, how = shop.case.variant.split(" ")
    for point in points:
        if error == "SHORT":
            lasting = how == "lasting"
            plan: Plan = ["Short", point, _ALWAYS_SHORT_BYTES if lasting else _SHORT_BYTES, lasting]
        else:
            plan = ["Fail", point, getattr(errno, error), how == "lasting"]
        yield _failed(shop, point, plan, f"{error} at operation {point}, {how}")


def _failed(shop: Workshop, point: int, plan: Plan, description: str) -> Row:
    demanded = shop.demanded("error")
    life: Life | None = None

    def trial() -> tuple[Promised, PrefixFinding]:
        nonlocal life
        life = shop.writer(plan)
        promises = shop.promises(life, demanded)
        if not shop.case.variant.endswith("lasting"):
            promises = _went_on(life, promises, demanded)
        return promises, shop.verdict(promises, demanded)

    promises, verdict = shop.patiently(trial)
    if life is not None and life.outcome.result is not None and not life.outcome.result["fired"]:
        description += ", which was not reached"
    return shop.row(point, "", description, promises, verdict)


def _went_on(life: Life, promises: Promised, demanded: Demand) -> Promised:
    """After a single error, a process that follows the advice completes its work."""
    result = life.outcome.result
    if promises.broken or result is None or not result["gave_up"]:
        return promises
    if demanded.may_detect and result["error"].split(":")[0] in DETECTING:
        return promises
    return replace(promises, broken=(Found.UNUSABLE, f"one call failed, and this stays: {result['error']}"))
