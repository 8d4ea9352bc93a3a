"""An instance of a task that another one has taken over is refused: neither its outputs nor its stores are committed.

Its stores stay at its last commit. When it is opened again they replay the changes of the other instance, and nothing
else.

Source: KIP-98, zombie fencing; KIP-129; KIP-892, "Error Handling".
"""

from harness.cli import run_scenario
from harness.faults import Fence
from harness.scenario import Scenario

SCENARIO = Scenario("crash", faults=(Fence(13), Fence(101), Fence(220)), durabilities=("CHANGELOG", "PROCESS"), seeds=1)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
