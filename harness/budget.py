"""The extent and the time of a run: the profiles, their budgets, and the deadlines of experiments.

The profile ``smoke`` is a glance of some minutes. A change is accepted by ``default``. ``night`` plans everything, and
tries in two hours what nights before it have not tried. The sizes of an experiment are beside its plan.

A budget bounds the time of each. Every experiment has a share. When one begins, it gets the part of the remaining time
that its share has among those which have not begun. So the time that one leaves over goes to all that follow.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import TypeVar

from stores.errors import ConfigError, nearest

SMOKE, DEFAULT, NIGHT = "smoke", "default", "night"
"""The seeds and points of ``NIGHT`` move on from run to run."""
BUDGETS_S: Mapping[str, float] = MappingProxyType({SMOKE: 600.0, DEFAULT: 600.0, NIGHT: 7_200.0})
"""The time that a bench of each profile takes unless another budget is given, in seconds."""
PROFILES = tuple(BUDGETS_S)
WHOLE_PROFILES = (DEFAULT, NIGHT)
"""The profiles whose reports go to ``results/`` if nothing was left out."""


def check_profile(name: str) -> None:
    """Raise ConfigError for an unknown profile."""
    if name not in PROFILES:
        raise ConfigError(f"no profile {name!r}: there are {', '.join(PROFILES)}{nearest(name, PROFILES)}")


REPORT_S = 15.0
"""The seconds of a budget that are kept for the report: a tenth of a budget below 150 s."""
WHOLE_PLAN = "none"
"""The budget of a run that leaves nothing out."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)([smh])")
Clock = Callable[[], float]
T = TypeVar("T")


def budget_seconds(text: str) -> float | None:
    """Return the seconds of a budget such as ``90s``, ``10m`` or ``2h``; None for ``none``.

    Raises: ConfigError for another text, and for a budget of nothing.
    """
    if text == WHOLE_PLAN:
        return None
    parts = _BUDGET.fullmatch(text.strip())
    seconds = float(parts[1]) * _UNITS[parts[2]] if parts else 0.0
    if not seconds > 0:
        raise ConfigError(
            f"a budget is a time above 0 such as 90s, 10m or 2h, or none for the whole plan, not {text!r}"
        )
    return seconds


def budget_text(seconds: float | None) -> str:
    """Return a budget as ``budget_seconds`` reads it, in the largest unit that gives a whole number."""
    if seconds is None:
        return WHOLE_PLAN
    for unit, size in reversed(_UNITS.items()):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


@dataclass(frozen=True)
class Deadline:
    """A moment after which no trial begins, in seconds since the epoch: processes of several machines compare it."""

    at: float = math.inf
    clock: Clock = time.time

    @property
    def remaining_s(self) -> float:
        """The seconds until then: below 0 afterwards, infinite if there is no deadline."""
        return self.at - self.clock()

    @property
    def passed(self) -> bool:
        """True from that moment on."""
        return self.remaining_s <= 0


NEVER = Deadline()
"""The deadline of what has no budget."""


def end_of(seconds: float | None, clock: Clock = time.time) -> Deadline:
    """Return the end of a budget that begins now, without the time for the report. None is no bound."""
    if seconds is None:
        return Deadline(clock=clock)
    return Deadline(clock() + seconds - min(REPORT_S, seconds / 10), clock)


def part_of(deadline: Deadline, part: float) -> Deadline:
    """Return the end of that part of the time that is left until ``deadline``; never, if that is never."""
    if deadline.at == math.inf:
        return deadline
    return replace(deadline, at=deadline.clock() + part * max(0.0, deadline.remaining_s))


class Budget:
    """Divides the time until ``end`` among parts by their ``shares``."""

    def __init__(self, end: Deadline, shares: Mapping[Hashable, float]) -> None:
        self._end = end
        self._shares = dict(shares)

    def deadline(self, part: Hashable) -> Deadline:
        """Return the deadline of a part, which begins now. Each may begin once."""
        among = sum(self._shares.values())
        return part_of(self._end, self._shares.pop(part) / among)


def fair_order(items: Iterable[T], strata: Callable[[T], Sequence[Hashable]], seed: int) -> list[T]:
    """Return the items in an order whose every prefix is a fair sample of them.

    ``strata`` returns the groups of an item, the smallest first. The first item of each smallest group comes first,
    then the second one of each, and so on. Within such a round the other groups take turns. ``seed`` decides the rest.
    """
    all_items = list(items)
    groups = [strata(item) for item in all_items]
    rounds = _ranks([of[0] for of in groups])
    order = Random(seed).sample(range(len(all_items)), len(all_items))
    for level in reversed(range(1, len(groups[0]) if groups else 0)):
        ranks = _ranks([(rounds[place], groups[place][level]) for place in order])
        # Sorting is stable: each level keeps the order of the one before among its equals.
        order = [order[at] for at in sorted(range(len(order)), key=ranks.__getitem__)]
    return [all_items[place] for place in sorted(order, key=rounds.__getitem__)]


def _ranks(groups: Iterable[Hashable]) -> list[int]:
    """Return for each item how many of its group come before it."""
    counts: Counter[Hashable] = Counter()
    ranks = []
    for group in groups:
        ranks.append(counts[group])
        counts[group] += 1
    return ranks


_END: ContextVar[Deadline] = ContextVar("end", default=NEVER)


TIME_OVER = "the time of the run was over"


class TimeOverError(Exception):
    """The time of a run was over, and a process of a trial was killed. The trial has no result, and counts as left out.

    It is no failure.
    """


@contextmanager
def ended_by(deadline: Deadline) -> Iterator[None]:
    """Kill the processes that this thread starts and waits for in the block at ``deadline``, with a TimeOverError."""
    token = _END.set(deadline)
    try:
        yield
    finally:
        _END.reset(token)


def seconds_for(deadline_s: float) -> float:
    """Return the seconds that a process may take: ``deadline_s``, or less if the time is over before that."""
    return min(deadline_s, max(0.0, _END.get().remaining_s))


def check_time() -> None:
    """Raise TimeOverError if the time is over."""
    if _END.get().passed:
        raise TimeOverError(TIME_OVER)
