"""A task that stages far more than it may, in a process of its own, which prints how much memory that took at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stores.changelog import Record, SqliteChangelog
from stores.config import StoreConfig
from stores.interface import TopicPartition
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId, TaskSettings

INPUT = TopicPartition("elsewhere", 0)
EMPTY_PAIRS = 100_000
"""Of 4 bytes each: 0.4 MB of keys and values."""
PAIR_BYTES = 4000
SMALL_CACHES: dict[str, dict[str, object]] = {
    "rocksdb": {"write_buffer_size_bytes": 1 << 20, "block_cache_size_bytes": 1 << 20},
    "sqlite": {"cache_size_bytes": 1 << 20},
}
"""The options that keep an engine's own memory out of the figures."""


def peak_growth_bytes(folder: Path, backend: str, limit: int, steps: int, pairs_per_step: int) -> dict[str, int]:
    """The largest growth of a process in so many steps, and its number of early commits."""
    arguments = [str(folder), backend, *map(str, (limit, steps, pairs_per_step))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-m", __name__, *arguments], env=environment, timeout=600, check=True, stdout=subprocess.PIPE
    )
    growth: dict[str, int] = json.loads(process.stdout)
    return growth


def peak_bytes() -> int:
    """The most memory that this process has had so far; ``getrusage`` would add what its parent had."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def main() -> None:
    folder, backend = Path(sys.argv[1]), sys.argv[2]
    limit, steps, pairs_per_step = map(int, sys.argv[3:])

    def process(record: Record, context: TaskContext) -> None:
        store: Any = context.store("s")
        for number in range(pairs_per_step):
            store.put(b"%08d" % (record.offset * pairs_per_step + number), os.urandom(PAIR_BYTES - 8))

    with SqliteChangelog(folder / "log.sqlite") as log:
        options = SMALL_CACHES[backend.partition("-")[0]]
        # Only memory is to ask for commits.
        store = StoreConfig(backend, options=options, uncommitted_max_bytes=limit, restore_max_bytes=-1)
        task = StreamTask(
            "app",
            TaskId(0, 0),
            state_dir=folder,
            changelog=log,
            stores={"s": store},
            process=process,
            inputs=[INPUT],
            settings=TaskSettings(commit_interval_ms=NO_INTERVAL),
        )
        task.open()
        before = peak_bytes()
        for number in range(steps):
            task.process(INPUT, Record(number, b"k", b"v"))
        task.commit()
        growth = peak_bytes() - before
        entries = sum(1 for _ in task.store("s").all())
        task.close()
        print(
            json.dumps({"grown": growth, "commits": sum(task.metrics.early_commit_total.values()), "entries": entries})
        )


if __name__ == "__main__":
    main()
