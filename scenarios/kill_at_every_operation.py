"""A process that is killed before any I/O operation has lost nothing that it must keep.

The kills are not at chosen failpoints: they are at every write, sync, rename and removal of creating, committing,
flushing, compacting, closing and opening.

Source: KIP-844, "Test Plan"; RocksDB's db_stress and SQLite's crash tests, which kill engines in this way.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("iofaults", faults=("kill",))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
