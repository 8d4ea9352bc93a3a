"""A transaction many times larger than the memory set aside for it commits, and survives a kill at each step of that.

Transactions of several megabytes go through a buffer of one: they are spilled, copied in parts, and rolled forward.
Those of a native store are in its engine's own transaction.

Source: KIP-844, on a temporary store on disk: transactions are not bounded by memory.
"""

from harness.cli import run_scenario
from harness.experiments.crash.plan import shape
from harness.faults import Kill, KillAfter, Stop
from harness.scenario import Scenario
from stores.failpoints import failpoint
from stores.strategies.dual_store import MID_COPY

SCENARIO = Scenario(
    "crash",
    faults=(
        Stop(120),
        KillAfter(100),
        Kill("dual_store.spilled"),
        Kill("dual_store.marker_synced"),
        Kill("dual_store.mid_copy"),
        Kill("dual_store.copied"),
        Kill("indexed_batch.sealed"),
        Kill("indexed_batch.decided"),
        Kill("indexed_batch.mid_copy"),
        Kill("indexed_batch.copied"),
        Kill("native.before_commit"),
        Kill("native.after_commit"),
    ),
    backends=(
        "rocksdb-indexed-batch",
        "rocksdb-dual-store",
        "lmdb-indexed-batch",
        "lmdb-native",
        "sqlite-indexed-batch",
        "sqlite-native",
    ),
    durabilities=("CHANGELOG", "DISK"),
    **shape(failpoint(MID_COPY)),
    seeds=1,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
