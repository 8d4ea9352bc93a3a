"""Of a store that is closed a bit flips, a file is cut or goes: that is noticed, or does no harm.

It is opened, verified and read whole. A typed error says so, upon which a wipe and the changelog restore it, or it
shows its last commit. It shows nothing else, and never hangs or dies. So it is with the library's own files beside it.

Source: SQLite, "How To Corrupt An SQLite Database File"; RocksDB wiki, "Full File Checksum and Checksum Handoff".
"""

from harness.effect_scenario import EffectScenario

SCENARIO = EffectScenario(
    faults=("damage flipped", "damage truncated", "damage missing"), durabilities=("DISK",), points_max=60
)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
