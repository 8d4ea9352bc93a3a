"""One partition's part of a measurement: it runs two processes, one after the other, and merges their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from harness.experiments.throughput.measurement import LATENCY_DIGITS, LATENCY_MAX_US, measured, reopened
from harness.experiments.throughput.partition_work import DUMP_FILE, Configuration, PartitionWork
from harness.folders import temporary_folder
from harness.processes.child import figures_in
from harness.processes.load import load_columns

DEADLINE_S = 180
DEADLINE_PER_EVENT_S = 0.005


def run(
    work: PartitionWork,
    keep_dump: Callable[[str, Path], None] | None = None,
    *,
    meet: Callable[[], object] = lambda: None,
    code: str | None = None,
    within: Path | None = None,
) -> dict[str, Any]:
    """Measure in a new folder ``within`` another, which is removed afterwards. Return the figures of both processes.

    ``keep_dump`` is called with the digest of the final state and the file of its dump (``pairs``), which it must read
    at once. ``meet`` is called between the two processes, so that those of other partitions wait for each other. It is
    also called if the first one fails. ``code`` is the PYTHONPATH of the processes; None is that of this one.

    Raises: MeasurementFailedError.
    """
    with _started(work, code, within) as (process, folder):
        try:
            worked = process(measured, killed=True)
        finally:
            meet()
        after_kill = process(reopened)
        if keep_dump is not None:
            keep_dump(after_kill["state_digest"], folder / DUMP_FILE)
        return {**worked, **after_kill}


def work_once(work: PartitionWork, *, code: str | None = None, within: Path | None = None) -> dict[str, Any]:
    """Run the first process of a measurement alone, and return its figures. Raises: MeasurementFailedError."""
    with _started(work, code, within) as (process, _):
        return process(measured, killed=True)


@contextmanager
def _started(
    work: PartitionWork, code: str | None, within: Path | None
) -> Iterator[tuple[Callable[..., dict[str, Any]], Path]]:
    with temporary_folder("throughput", within) as folder:
        work.write(folder)
        deadline_s = DEADLINE_S + DEADLINE_PER_EVENT_S * work.records_number
        yield partial(figures_in, folder, arguments={}, deadline_s=deadline_s, code=code), folder


_SUMMED = ("bytes_written", "bytes_on_disk", "peak_memory_bytes", "open_files", "replayed")


def throughput_row(
    configuration: Configuration, figures: Sequence[Mapping[str, Any]], end_state: str
) -> dict[str, Any]:
    """Return the row of ``configuration`` from the ``figures`` of its partitions, one or more.

    Partitions start together, and each has its own process. Records, bytes, memory and open files are summed. Seconds,
    also those of opening after the kill, are those of the slowest partition. The rate is the summed records over these
    seconds. Percentiles are those of all partitions' commits in one histogram.

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
