"""The times of a side in Python, without the turns of fixed work that measure the speed of its processor."""

from __future__ import annotations

from time import perf_counter, process_time
from types import TracebackType
from typing import Self

from harness.processes.load import SpeedMeter


class TimedSide:
    """The times of a ``with`` block, in which ``meter`` takes turns."""

    def __init__(self) -> None:
        self.meter = SpeedMeter()
        self._seconds = self._cpu_s = 0.0

    def __enter__(self) -> Self:
        self._began_s, self._cpu_began_s = perf_counter(), process_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = perf_counter() - self._began_s - self.meter.wall_s
        self._cpu_s = process_time() - self._cpu_began_s - self.meter.cpu_s

    def figures(self) -> dict[str, float | None]:
        """Return the columns of a row."""
        return {"seconds": self._seconds, "cpu_s": self._cpu_s, "machine_speed": self.meter.pairs_per_s()}
