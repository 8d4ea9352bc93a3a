"""A record that stages more than all stores may hold uncommitted stays one transaction, whatever kills it.

Most records write more than the limit, so that each ends in an early commit of spilled writes. That holds for every
backend that has a disk and isolates uncommitted writes itself. Nothing of an interrupted record shows, and all of a
committed one does. A backend that does not isolate writes is not here: it never commits early.

Source: KIP-892, "In-memory Transaction Buffers", for the limit; that a transaction may outgrow it, KIP-844.
"""

from harness.cli import run_scenario
from harness.experiments.crash.operations import Mix
from harness.faults import Kill, KillAfter, Stop
from harness.scenario import Scenario

SCENARIO = Scenario(
    "crash",
    faults=(
        Stop(30),
        KillAfter(17),
        Kill("task.before_log_commit", 6),
        Kill("task.after_log_commit", 6),
        Kill("task.between_stores", 6),
        Kill("dual_store.spilled", 6),
        Kill("dual_store.marker_synced", 6),
        Kill("dual_store.copied", 6),
        Kill("indexed_batch.sealed", 6),
        Kill("indexed_batch.decided", 6),
        Kill("indexed_batch.copied", 6),
    ),
    backends=(
        "rocksdb-indexed-batch",
        "rocksdb-dual-store",
        "lmdb-indexed-batch",
        "lmdb-native",
        "sqlite-indexed-batch",
        "sqlite-native",
        "memory-indexed-batch",
    ),
    durabilities=("CHANGELOG", "DISK"),
    mix=Mix(records=40, value_bytes=256 << 10),
    uncommitted_max_bytes=64 << 10,
    seeds=1,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
