"""Where a power cut leaves noise behind what was written, and tears sectors, nothing wrong goes unnoticed at DISK.

This is beyond what disks do, by the stated model: a store may notice it, but not show what was never committed.

Source: SQLite, "Atomic Commit In SQLite", "Hardware Assumptions", on sectors and power-safe overwrite.
"""

from harness.effect_scenario import EffectScenario

SCENARIO = EffectScenario(faults=("power beyond",), durabilities=("DISK",), points_max=120, states_per_position=4)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
