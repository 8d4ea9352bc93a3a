"""Readers beside a writer see what their level shows, and nothing else, whatever the writer is at.

At READ_COMMITTED each lookup and scan shows a whole commit, and never an earlier one than before; at READ_UNCOMMITTED
the open transaction as it was at one moment, however the writer goes on. No answer is behind the position that was
asked for. Stores that are broken on purpose are found out.

Source: KIP-892, "Interactive Queries" and "Interactive Query .position Offsets".
"""

from harness.readers.mutants import MUTANTS
from harness.readers_scenario import ReadersScenario

SCENARIO = ReadersScenario(durabilities=("CHANGELOG", "PROCESS", "DISK"), mutants=tuple(MUTANTS))


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
