"""One partition's part of a measurement: it runs two processes, one after the other, and merges their figures."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiments.throughput import measurement, reopening
from harness.experiments.throughput.partition_work import DUMP_FILE, PartitionWork
from harness.folders import temporary_folder
from harness.processes.child import figures_of

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
            worked = process(measurement.__name__, status=-signal.SIGKILL, file=measurement.FIGURES_FILE)
        finally:
            meet()
        reopened = process(reopening.__name__, status=0, file=reopening.FIGURES_FILE)
        if keep_dump is not None:
            keep_dump(reopened["state_digest"], folder / DUMP_FILE)
        return {**worked, **reopened}


def work_once(work: PartitionWork, *, code: str | None = None, within: Path | None = None) -> dict[str, Any]:
    """Run the first process of a measurement alone, and return its figures. Raises: MeasurementFailedError."""
    with _started(work, code, within) as (process, _):
        return process(measurement.__name__, status=-signal.SIGKILL, file=measurement.FIGURES_FILE)


@contextmanager
def _started(
    work: PartitionWork, code: str | None, within: Path | None
) -> Iterator[tuple[Callable[..., dict[str, Any]], Path]]:
    with temporary_folder("throughput", within) as folder:
        work.write(folder)
        deadline_s = DEADLINE_S + DEADLINE_PER_EVENT_S * work.records_number
        yield partial(figures_of, arguments=[str(folder)], folder=folder, deadline_s=deadline_s, code=code), folder
