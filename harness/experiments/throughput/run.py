"""One partition's part of a measurement: it runs two processes, one after the other, and merges their figures."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiments.throughput import measurement, reopening
from harness.experiments.throughput.partition_work import DUMP_FILE, PartitionWork
from harness.folders import temporary_folder
from harness.processes.measured import figures_of

DEADLINE_S = 180
DEADLINE_PER_EVENT_S = 0.005


def run(
    work: PartitionWork,
    keep_dump: Callable[[str, Path], None] | None = None,
    *,
    code: str | None = None,
    within: Path | None = None,
) -> dict[str, Any]:
    """Measure in a new folder ``within`` another, which is removed afterwards. Return the figures of both processes.

    ``keep_dump`` is called with the digest of the final state and the file of its dump (``pairs``), which it must read
    at once. ``code`` is the PYTHONPATH of the processes; None is that of this one. Raises: MeasurementFailedError.
    """
    with temporary_folder("throughput", within) as folder:
        work.write(folder)
        deadline_s = DEADLINE_S + DEADLINE_PER_EVENT_S * work.events
        process = partial(figures_of, arguments=[str(folder)], folder=folder, deadline_s=deadline_s, code=code)
        worked = process(measurement.__name__, status=-signal.SIGKILL, file=measurement.FIGURES_FILE)
        reopened = process(reopening.__name__, status=0, file=reopening.FIGURES_FILE)
        if keep_dump is not None:
            keep_dump(reopened["state_digest"], folder / DUMP_FILE)
        return {**worked, **reopened}
