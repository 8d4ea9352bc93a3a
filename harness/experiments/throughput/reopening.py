"""The process after a kill: opens and restores the task.

The command is ``python -m harness.experiments.throughput.reopening FOLDER``.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from harness.experiments.throughput.partition_work import DUMP_FILE, STATE_FOLDER, PartitionWork, write_pairs
from harness.processes.child import end_with_starter, write_figures
from harness.workloads.workload import plain_pairs, records_of
from stores.tasks import StreamTask

FIGURES_FILE = "reopened"


def reopen(work: PartitionWork, folder: Path) -> None:
    """Open the killed task, dump its state, close it cleanly, and write the figures."""
    work.load_engine()
    began = perf_counter()
    changelog = work.changelog(folder)
    task = work.task(folder, changelog)
    reports = task.open()
    opened = perf_counter()
    digest = hashlib.sha256()
    write_pairs(folder / DUMP_FILE, _hashed(_state(task, work), digest))
    task.close(clean=True)
    changelog.close()
    write_figures(
        folder / FIGURES_FILE,
        {
            "open_after_kill_s": opened - began,
            "replayed": sum(report.records for report in reports),
            "bytes_on_disk": bytes_on_disk(folder / STATE_FOLDER),
            "state_digest": digest.hexdigest(),
        },
    )


def bytes_on_disk(folder: Path) -> int:
    """Return the disk space of the files below ``folder`` in whole blocks, as ``du`` counts it; 0 without a folder."""
    return sum((Path(parent) / name).stat().st_blocks * 512 for parent, _, names in os.walk(folder) for name in names)


def _state(task: StreamTask, work: PartitionWork) -> Iterator[tuple[bytes, bytes, int]]:
    kinds = records_of(work.workload)
    for place, name in enumerate(work.workload.store_names):
        for key, value in plain_pairs(kinds.get(name), task.store(name)):
            yield key, value, place


def _hashed(pairs: Iterator[tuple[bytes, bytes, int]], digest: hashlib._Hash) -> Iterator[tuple[bytes, bytes, int]]:
    for key, value, place in pairs:
        digest.update(b"%d:%d:%d:" % (place, len(key), len(value)) + key + value)
        yield key, value, place


def main() -> None:
    """Run the process after a kill."""
    end_with_starter()
    folder = Path(sys.argv[1])
    reopen(PartitionWork.read(folder), folder)


if __name__ == "__main__":
    main()
