"""The load of a machine while this process and all processes below it work, such as a JVM and its Python workers."""

from __future__ import annotations

import os
from contextlib import suppress
from time import perf_counter
from typing import Any

import psutil

from harness.processes.load import cpu_times


class TreeWatch:
    """Watches the machine and this process with all processes below it, from its creation on."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._times = perf_counter(), tree_cpu_s(), cpu_times()

    def figures(self) -> dict[str, Any]:
        """Return the seconds since the creation, as ``LoadWatch.figures`` does."""
        wall_s, cpu_s, times = perf_counter() - self._wall, tree_cpu_s() - self._cpu, cpu_times()
        figures: dict[str, Any] = {"wall_s": wall_s, "cpu_s": cpu_s, "load_average": os.getloadavg()[0]}
        if times is not None and self._times is not None:
            passed = (now - before for now, before in zip(times, self._times, strict=True))
            figures |= zip(("machine_s", "machine_busy_s", "machine_steal_s"), passed, strict=True)
        return figures


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and of those below it, with the ones that were waited for."""
    total_s, own = 0.0, psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s
