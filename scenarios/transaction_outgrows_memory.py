"""A transaction many times larger than the memory set aside for it commits, and survives a kill at each step of that.

Transactions of several megabytes go through a buffer of one: they are spilled, copied in parts, and rolled forward.

Source: KIP-844, what it says for a second store on disk: transactions are not bounded by memory.
"""

from harness.faults import Kill, KillAfter, Stop
from harness.scenario import CrashScenario
from harness.trials.plan import IN_PARTS

SCENARIO = CrashScenario(
    faults=(
        Stop(120),
        KillAfter(100),
        Kill("dual_store.spilled"),
        Kill("dual_store.marker_synced"),
        Kill("dual_store.mid_copy"),
        Kill("dual_store.copied"),
    ),
    backends=("rocksdb-dual-store",),
    durabilities=("CHANGELOG", "DISK"),
    **IN_PARTS,
    seeds=1,
)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
