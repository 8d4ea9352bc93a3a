"""The measures by which runs are compared and their history is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.experiments.opening.report import READY_AFTER_A_KILL
from harness.report import text


@dataclass(frozen=True)
class Measure:
    """A column of a kind of rows and figures. ``same_work`` is True if it depends on the number of records."""

    kind: str
    name: str
    words: str
    shown: Callable[[float | None], str]
    more_is_better: bool = False
    same_work: bool = False
    is_time: bool = False
    """True if it depends on the speed of the machine."""
    unit: str = ""
    """The unit of an axis, which has so many of the column's own units (``scale``)."""
    scale: float = 1.0


MEASURES = (
    Measure(
        "throughput", "records_per_s", "records/s", text.count, more_is_better=True, is_time=True, unit="records/s"
    ),
    Measure("throughput", "commit_p99_us", "commit, p99", text.latency, is_time=True, unit="ms", scale=1e3),
    Measure("throughput", "peak_memory_bytes", "peak memory", text.size, same_work=True, unit="MiB", scale=2.0**20),
    Measure("throughput", "bytes_on_disk", "on disk", text.size, same_work=True, unit="MiB", scale=2.0**20),
    Measure("opening", "ready_s", READY_AFTER_A_KILL, text.duration, is_time=True, unit="ms", scale=1e-3),
)
