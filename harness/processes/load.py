"""The load of a machine while something is measured: the CPU time of the measured process, and that of all others."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any, NamedTuple
from zlib import crc32

import psutil

BUSY_SHARE = 0.1
"""A machine is busy if others take more than this share of its CPU time: other processes, and the hypervisor."""
BUSY_REPEATS = 0.25
"""A result says that the machine was busy, if it was during more than this share of its repeats."""
LOAD_COLUMNS = ("cpu_per_wall", "load_average", "others_share", "steal_share")
"""The columns of a row that say how busy the machine was during its measurement."""
_STAT = Path("/proc/stat")
_SCHEDULED = Path("/proc/thread-self/schedstat")


class CpuTimes(NamedTuple):
    """CPU seconds of all processors since the machine started. Source: proc(5), "/proc/stat"."""

    total_s: float
    busy_s: float
    """Spent by processes and interrupts."""
    steal_s: float
    """Spent by the hypervisor on other machines while this one had work."""


class Clocks(NamedTuple):
    """Seconds by the clock, and CPU seconds of this process."""

    wall_s: float
    cpu_s: float


def clocks() -> Clocks:
    """Return both clocks now."""
    return Clocks(perf_counter(), process_time())


def seconds_since(began: Clocks) -> Clocks:
    """Return the seconds since ``began`` on both clocks."""
    now = clocks()
    return Clocks(now.wall_s - began.wall_s, now.cpu_s - began.cpu_s)


class LoadWatch:
    """Watches the machine and this process from its creation on.

    ``used_cpu_s`` returns CPU seconds so far: of this process and its children that have ended, or ``tree_cpu_s``.
    """

    def __init__(self, used_cpu_s: Callable[[], float] | None = None) -> None:
        self._used_cpu_s = used_cpu_s or _own_cpu_s
        self._wall, self._cpu, self._times = perf_counter(), self._used_cpu_s(), cpu_times()

    def figures(self) -> dict[str, Any]:
        """Return the seconds since the creation, by the clock, of this process and of the machine."""
        wall_s, cpu_s, times = perf_counter() - self._wall, self._used_cpu_s() - self._cpu, cpu_times()
        figures: dict[str, Any] = {"wall_s": wall_s, "cpu_s": cpu_s, "load_average": os.getloadavg()[0]}
        if times is not None and self._times is not None:
            differences = (now - before for now, before in zip(times, self._times, strict=True))
            figures |= zip(("machine_s", "machine_busy_s", "machine_steal_s"), differences, strict=True)
        return figures


def _own_cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def cpu_times(stat: Path = _STAT) -> CpuTimes | None:
    """Return the times of the machine; None if the system does not report them."""
    try:
        _, *fields = stat.read_text().partition("\n")[0].split()
        user, nice, system, idle, io_wait, interrupts, soft_interrupts, steal = map(int, fields[:8])
    except (OSError, ValueError):
        return None
    busy = user + nice + system + interrupts + soft_interrupts
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return CpuTimes(*(ticks / ticks_per_s for ticks in (busy + idle + io_wait + steal, busy, steal)))


def waited_ns(scheduled: Path = _SCHEDULED) -> int:
    """Return the time in which this thread was ready to run and had no processor; 0 if the system does not count it.

    Source: Linux, Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
    """
    try:
        return int(scheduled.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def load_columns(figures: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the load during a measurement by several processes at the same time, from the figures of each.

    ``cpu_per_wall`` is their CPU time over the time by the clock, so 2 for two processes that never waited.
    ``others_share`` and ``steal_share`` are the shares of other processes and of the hypervisor in the machine's CPU
    time, while the slowest of them worked; None if the system does not report them.
    """
    slowest = max(figures, key=lambda each: float(each["wall_s"]))
    own_s = sum(each["cpu_s"] for each in figures)
    columns: dict[str, float | None] = {
        "cpu_per_wall": own_s / slowest["wall_s"] if slowest["wall_s"] else 0.0,
        "load_average": max(each["load_average"] for each in figures),
        "others_share": None,
        "steal_share": None,
    }
    if machine_s := slowest.get("machine_s"):
        columns["others_share"] = min(1.0, max(0.0, slowest["machine_busy_s"] - own_s) / machine_s)
        columns["steal_share"] = slowest["machine_steal_s"] / machine_s
    return columns


def median_load(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the medians of the load of several measurements, from their rows; None for what no row has."""
    all_rows = list(rows)
    loads = {name: [row[name] for row in all_rows if row.get(name) is not None] for name in LOAD_COLUMNS}
    return {name: median(values) if values else None for name, values in loads.items()}


def is_busy(row: Mapping[str, Any]) -> bool:
    """Return True if the machine was busy with other work during the measurement of a row."""
    return (row.get("others_share") or 0.0) + (row.get("steal_share") or 0.0) > BUSY_SHARE


_PAIRS = 4_000
TURN_EVERY_S = 0.05
SPEED_UNIT = 1e6
"""The pairs per second of a machine whose times are left as they are."""


class SpeedMeter:
    """The speed of the processor of this thread while it does other work, by turns of fixed work in between.

    The frequency of a processor changes within seconds, and so does what other machines on it leave of its caches. A
    turn takes some 5 ms: pairs are made, looked up, sorted and summed up. What counts is the thread's CPU time.
    """

    def __init__(self) -> None:
        self._numbers = Random(1).sample(range(1 << 40), _PAIRS)
        self._turns = 0
        self._next_s = 0.0
        self.wall_s = self.cpu_s = 0.0
        """The time of all turns, on both clocks."""

    def turn_if_due(self) -> None:
        """Do the fixed work once if the last turn was ``TURN_EVERY_S`` ago, and at first."""
        if perf_counter() >= self._next_s:
            self.turn()
            self._next_s = perf_counter() + TURN_EVERY_S

    def turn(self) -> float:
        """Do the fixed work once, and return the pairs per second of this turn."""
        began_s, began = perf_counter(), thread_time()
        pairs = {number.to_bytes(16): b"%0100d" % number for number in self._numbers}
        checksum = 0
        for key in sorted(pairs):
            checksum = crc32(pairs[key], checksum)
        self.cpu_s += (took_s := thread_time() - began)
        self.wall_s += perf_counter() - began_s
        self._turns += 1
        return _PAIRS / took_s

    def pairs_per_s(self) -> float | None:
        """Return the pairs per second of all turns; None if there was none."""
        return self._turns * _PAIRS / self.cpu_s if self._turns else None

    def columns_since(self, began: Clocks) -> dict[str, float | None]:
        """Return the seconds since ``began`` without the turns, those of CPU time, and the speed."""
        wall_s, cpu_s = seconds_since(began)
        return {
            "seconds": wall_s - self.wall_s,
            "cpu_s": cpu_s - self.cpu_s,
            "machine_speed": self.pairs_per_s(),
        }


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and of those below it, with the ones that were waited for."""
    total_s, own = 0.0, psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s
