"""Scales of charts: from a value to a place in pixels, and the ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_TICKS_MAX = 5
_ROOM = 0.04
"""The share of a logarithmic scale that is left free at each end."""


class AxisScale(NamedTuple):
    """A scale from ``low`` to ``high``, drawn from the place ``start`` to the place ``end`` in pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Return the place of a value."""
        low, high, value = (math.log(each) if self.log else each for each in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return at most five round numbers on the scale; more where no fewer are round."""
        return _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high)


def scale_of(values: Sequence[float], start: float, end: float, *, log: bool) -> AxisScale:
    """Return the scale that contains all values. A linear one begins at zero."""
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** _ROOM if high > low else 1.5
        return AxisScale(low / room, high * room, start, end, log)
    low, high = min(0.0, low), max(0.0, high) * (1 + _ROOM)
    return AxisScale(low, high if high > low else low + 1, start, end, log)


def _linear_ticks(low: float, high: float) -> list[float]:
    power = 10.0 ** math.floor(math.log10((high - low) / _TICKS_MAX))
    step = next(size * power for size in (1, 2, 5, 10) if (high - low) / (size * power) < _TICKS_MAX)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [
        *([tick for power in powers for digit in digits if low <= (tick := float(f"{digit}e{power}")) <= high]
          for digits in (range(1, 10), (1, 2, 5), (1, 3), (1,))),
        *([tick for power in powers if power % apart == 0 and low <= (tick := float(f"1e{power}")) <= high]
          for apart in (2, 3, 5)),
    ]  # fmt: skip
    return next((ticks for ticks in choices if len(ticks) <= _TICKS_MAX), choices[-1])


def tick_text(value: float) -> str:
    """Return the label of a tick: ``0.05``, ``1,000``, ``20 k``, ``3 M``."""
    for letter, size, least in (("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if abs(value) >= least:
            return f"{value / size:g} {letter}"
    return f"{value:,.10g}"
