"""Which trials there are to run: every failpoint of every backend, of the task and of the log, and deaths elsewhere.

Where a fault strikes is chosen by the seed. In its default shape a trial commits ten times to two stores.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.faults import Abort, Fault, Fence, Kill, KillAfter, KillInRecovery, Stop, Timeout, Truncate
from harness.faults.registry import check_known
from harness.trials.operations import Mix
from harness.trials.trial import DURABILITIES, Trial
from harness.typed_maps import IN_TURN
from stores.changelog import producer
from stores.registry import Backend, backend_named, backends
from stores.tasks import task

PROFILES = ("smoke", "default", "full")
LOG_FAILPOINTS = (producer.BEFORE_COMMIT, producer.AFTER_COMMIT)

# Where a death leaves something to recover from or to restore: the failpoints of recoveries are reached after one.
_BEFORE_LOG, _AFTER_LOG, _AFTER_STORES = "task.before_log_commit", "task.after_log_commit", "task.after_store_commit"
_BEFORE_PIECE, _AFTER_PIECE = "task.restore.before_write", "task.restore.after_write"
_READY, _IN_PART, _RECOVERED = "dual_store.marker_synced", "dual_store.mid_copy", "dual_store.recover.truncated"
_TWICE = ("dual_store.recover.before_copy", "dual_store.recover.truncated", "indexed_batch.recover.before_copy")
_SPILLED_IN_PART = "indexed_batch.mid_copy"

Shape = Mapping[str, Any]
"""Settings of a trial beside its backend, fault and seed."""

UNDER_PRESSURE: Shape = {"mix": Mix(value_bytes=4096), "commit_every": 120}
"""Transactions so large that an engine under flush pressure writes them out before they are committed."""

IN_PARTS: Shape = {
    "mix": Mix(records=120, value_bytes=256 << 10),
    "commit_every": 60,
    "options": (("staging_buffer_bytes", 1 << 20),),
}
"""Transactions that a dual store spills, and copies in several parts."""


SPILLED: Shape = {"mix": Mix(records=96), "options": (("copy_part_bytes", 200), ("staging_buffer_bytes", 200))}
"""Four commits, of which nearly all outgrow an indexed batch, which spills them and copies them in several parts."""


def crash_matrix(
    backend_names: Iterable[str] | None = None,
    durabilities: Sequence[str] = DURABILITIES,
    seeds: Sequence[int] = (0, 1, 2),
    profile: str = "default",
) -> list[Trial]:
    """The trials of a profile; all backends unless some are named. The same arguments give the same trials.

    ``full``: every fault at every durability with every seed. ``default``: every failpoint with every seed, all other
    faults with the first one, the durabilities taking turns. ``smoke``: every fault once, backends taking turns too.
    In all of them stores of bytes and typed ones take turns.

    Raises: ConfigError for an unknown backend, durability or profile.
    """
    check_known("profile", PROFILES, profile)
    check_known("durability", DURABILITIES, *durabilities)
    chosen = [backend_named(name) for name in (backends() if backend_names is None else backend_names)]
    if profile == "full":
        return [
            _of_kind(trial, turn + seed + number)
            for backend in chosen
            for turn, level in enumerate(_carried(backend, durabilities))
            for seed in seeds
            for number, trial in enumerate(_cases(backend, level, seed).values())
        ]
    if profile == "smoke":
        return list(_each_once(chosen, durabilities, seeds[:1]))
    return list(_in_turns(chosen, durabilities, seeds))


def _carried(backend: Backend, durabilities: Sequence[str]) -> list[str]:
    return [level for level in durabilities if level in backend.durabilities]


def _in_turns(chosen: Sequence[Backend], durabilities: Sequence[str], seeds: Sequence[int]) -> Iterator[Trial]:
    for backend in chosen:
        levels = _carried(backend, durabilities)
        for turn, seed in enumerate(seeds):
            by_level = [_cases(backend, level, seed) for level in levels]
            for number, case in enumerate(by_level[0] if by_level else ()):
                if turn == 0 or case in _failpoints(backend):
                    yield _of_kind(by_level[(turn + number) % len(by_level)][case], turn + number)


def _each_once(chosen: Sequence[Backend], durabilities: Sequence[str], seeds: Sequence[int]) -> Iterator[Trial]:
    able: dict[str, list[Trial]] = {}
    for trial_of in (
        _cases(backend, level, seed)
        for seed in seeds
        for backend in chosen
        for level in _carried(backend, durabilities)
    ):
        for case, trial in trial_of.items():
            able.setdefault(case, []).append(trial)
    for number, trials in enumerate(able.values()):
        # A step that shares no factor with the number of levels, so that levels change along with backends.
        yield _of_kind(trials[7 * number % len(trials)], number)


def _of_kind(trial: Trial, turn: int) -> Trial:
    """``trial`` with stores of the kind whose turn it is."""
    return replace(trial, records=IN_TURN[turn % len(IN_TURN)])


def _failpoints(backend: Backend) -> tuple[str, ...]:
    return (*backend.failpoints, *task.FAILPOINTS, *LOG_FAILPOINTS)


def _cases(backend: Backend, durability: str, seed: int) -> dict[str, Trial]:
    """The trials of one backend, durability and seed, by what they are about; a failpoint's own by its name."""

    def trial(fault: Fault, shape: Shape | None = None, **settings: Any) -> Trial:
        return Trial(backend.name, fault, durability=durability, seed=seed, **(shape or {}), **settings)

    choose = random.Random(f"plan {backend.name} {durability} {seed}")
    cases = {}
    for failpoint in _failpoints(backend):
        if failpoint in backend.load_strategy().persistent_failpoints:
            cases[failpoint] = trial(_kill_at_spill(failpoint, choose), SPILLED)
            continue
        fault, shape = _kill_at(failpoint, durability, choose)
        cases[failpoint] = trial(fault, shape)
    tail = Kill(_AFTER_LOG, choose.randint(2, 9))
    cases |= {
        "kill inside a transaction": trial(KillAfter(_inside(choose))),
        "kill inside a transaction, flushed": trial(KillAfter(220, flush_pressure=True), UNDER_PRESSURE),
        "abort, then close": trial(Abort(_inside(choose))),
        "abort, then kill, flushed": trial(Abort(220, flush_pressure=True, then="kill"), UNDER_PRESSURE),
        "abort, then go on": trial(Abort(_inside(choose), then="go_on")),
        "stop": trial(Stop(_inside(choose))),
        "kill again and again": trial(
            KillInRecovery(KillAfter(choose.randint(1, 90)), tuple(KillAfter(choose.randint(5, 40)) for _ in range(3)))
        ),
        "kill the same restore again and again": trial(
            KillInRecovery(tail, (Kill(_BEFORE_PIECE), Kill(_BEFORE_PIECE), Kill(_AFTER_PIECE)))
        ),
        "at least once, kill inside a transaction": trial(KillAfter(_inside(choose)), guarantee="at_least_once"),
        "at least once, kill before the log": trial(Kill(_BEFORE_LOG, choose.randint(1, 9)), guarantee="at_least_once"),
        "at least once, kill after the log": trial(tail, guarantee="at_least_once"),
        "at least once, kill after the stores": trial(
            Kill(_AFTER_STORES, choose.randint(1, 9)), guarantee="at_least_once"
        ),
        "commit timed out": trial(Timeout(choose.randint(1, 9))),
        "taken over by another instance": trial(Fence(_inside(choose))),
        "changelog truncated": trial(Truncate(_inside(choose), then=choose.choice(("close", "kill")))),
    }
    return cases


def _kill_at(failpoint: str, durability: str, choose: random.Random) -> tuple[Fault, Shape | None]:
    """The fault that has a process die at ``failpoint``, and the shape in which it gets there."""
    if failpoint == _IN_PART:
        return Kill(failpoint), IN_PARTS
    if ".recover." in failpoint:
        # A copy that was complete is not made again: only what comes before it can be interrupted twice.
        again = (Kill(failpoint),) * (2 if failpoint in _TWICE else 1)
        if durability == "CHANGELOG":
            # Without a log of the engine's own, only a commit in parts outlives a killed process to be carried out.
            return KillInRecovery(Kill(_IN_PART), (*again, Kill(_RECOVERED))), IN_PARTS
        return KillInRecovery(Kill(_READY, choose.randint(1, 18)), (*again, Kill(_RECOVERED))), None
    if "restore." in failpoint:
        return KillInRecovery(Kill(_AFTER_LOG, choose.randint(2, 9)), (Kill(failpoint), Kill(failpoint))), None
    if failpoint.startswith("create."):
        return Kill(failpoint, choose.randint(1, 2)), None
    return Kill(failpoint, choose.randint(1, 9)), None


def _kill_at_spill(failpoint: str, choose: random.Random) -> Fault:
    """The fault that has a process die at ``failpoint`` of a commit that was spilled."""
    if ".recover." not in failpoint:
        return Kill(failpoint, choose.randint(1, 6))
    again = (Kill(failpoint),) * (2 if failpoint in _TWICE else 1)
    return KillInRecovery(Kill(_SPILLED_IN_PART, choose.randint(1, 6)), again)


def _inside(choose: random.Random) -> int:
    """A number of records at which a transaction is open, in the default shape."""
    return choose.randint(0, 9) * 24 + choose.randint(1, 23)
