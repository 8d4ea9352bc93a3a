"""The hottest items of Nexmark (q5), in windows that overlap, are those of Spark SQL: on each backend, after a kill.

Source: Tucker et al., "NEXMark: A Benchmark for Queries over Data Streams", 2002.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("throughput", workload="nexmark_q5", events=20_000)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
