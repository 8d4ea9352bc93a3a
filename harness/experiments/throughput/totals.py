"""The figures of a measurement's partitions, merged into one row.

Partitions start together, and each has its own process. Records, bytes, memory and open files are summed. Seconds, also
those of opening after the kill, are those of the slowest partition. The rate is the summed records over these seconds.
Percentiles are those of all partitions' commits in one histogram.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hdrh.histogram import HdrHistogram

from harness.experiments.throughput.configuration import Configuration
from harness.experiments.throughput.measurement import LATENCY_DIGITS, LATENCY_MAX_US
from harness.processes.load import load_columns

_SUMMED = ("bytes_written", "bytes_on_disk", "peak_memory_bytes", "open_files", "replayed")


def throughput_row(
    configuration: Configuration, figures: Sequence[Mapping[str, Any]], end_state: str
) -> dict[str, Any]:
    """Return the row of ``configuration`` from the ``figures`` of its partitions, one or more.

    ``end_state`` is ``equal``, ``different`` or ``not compared``.
    """
    records = sum(each["records"] for each in figures)
    seconds = max(each["seconds"] for each in figures)
    commits = _merged(each["commits"] for each in figures)
    store_commits = _merged(each["store_commits"] for each in figures)
    subject = asdict(configuration)
    del subject["options"]
    return {
        "kind": "throughput",
        **subject,
        "durability": str(configuration.durability),
        "records": records,
        "seconds": seconds,
        "records_per_s": records / seconds if seconds else 0.0,
        "commit_p50_us": commits.get_value_at_percentile(50),
        "commit_p99_us": commits.get_value_at_percentile(99),
        "commit_max_us": commits.get_max_value(),
        "store_commit_p50_us": store_commits.get_value_at_percentile(50),
        "store_commit_p99_us": store_commits.get_value_at_percentile(99),
        **{name: sum(each[name] for each in figures) for name in _SUMMED},
        "open_after_kill_s": max(each["open_after_kill_s"] for each in figures),
        "end_state": end_state,
        "laps": figures[0].get("laps"),
        "machine_speed": min((each["machine_speed"] for each in figures if "machine_speed" in each), default=None),
        **load_columns(figures),
    }


def _merged(encoded: Iterable[str]) -> HdrHistogram:
    merged = HdrHistogram(1, LATENCY_MAX_US, LATENCY_DIGITS)
    for each in encoded:
        merged.add(HdrHistogram.decode(each))
    return merged
