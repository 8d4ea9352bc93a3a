"""Of a store that is closed a bit flips, a file is cut or goes: which engine notices which damage.

Whoever notices must be restored by a wipe and its changelog, and nobody may hang or die. An engine without checksums
shows some of it as data; that is told.

Source: SQLite, "How To Corrupt An SQLite Database File"; RocksDB wiki, "Full File Checksum and Checksum Handoff".
"""

from harness.effect_scenario import EffectScenario

SCENARIO = EffectScenario(
    faults=("damage flipped", "damage truncated", "damage missing"), durabilities=("DISK",), points_max=60
)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
