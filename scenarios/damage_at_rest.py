"""If a bit flips in a closed store, or a file is truncated or missing, that is detected or does no harm.

The store is opened, verified and read whole. Either a typed error is raised, and a wipe and the changelog restore the
store, or it shows its last commit. It shows nothing else, and never hangs or crashes. The same holds for the library's
own files beside it.

Source: SQLite, "How To Corrupt An SQLite Database File"; RocksDB wiki, "Full File Checksum and Checksum Handoff".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "iofaults", faults=("damage flipped", "damage truncated", "damage missing"), durabilities=("DISK",), points_max=60
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
