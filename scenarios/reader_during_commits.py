"""Readers beside a writer see what their level promises, and nothing else, whatever the writer does.

At READ_COMMITTED each lookup and scan shows a whole commit, and never an earlier one than before. At READ_UNCOMMITTED
it shows the open transaction of one moment, whatever the writer does later. No answer is behind the position that was
asked for. Mutants of stores are detected.

Source: KIP-892, "Interactive Queries" and "Interactive Query .position Offsets".
"""

from harness.cli import run_scenario
from harness.mutants import READER_TRIALS
from harness.scenario import Scenario

SCENARIO = Scenario("readers", durabilities=("CHANGELOG", "PROCESS", "DISK"), mutants=tuple(READER_TRIALS))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
