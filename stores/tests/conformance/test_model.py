"""Every backend against a model of it, by Hypothesis: in this process, and in one that is killed.

More examples with ``--hypothesis-profile=long``; the seed stands at the end of a run that
fails. Shrinking what failed may take minutes.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from stores.tests.conformance.cases import Case
from stores.tests.conformance.kill_machine import KillMachine
from stores.tests.conformance.machine import StoreMachine


@pytest.mark.timeout(1800)
def test_a_store_never_differs_from_its_model(case: Case) -> None:
    machine = type("Machine", (StoreMachine,), {"case": case})
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=40))


@pytest.mark.kills
@pytest.mark.timeout(1800)
def test_a_store_that_is_killed_goes_on_from_a_commit(case: Case) -> None:
    machine = type("Machine", (KillMachine,), {"case": case})
    # A process takes a fraction of a second to start: one try where the other machine has ten.
    examples = max(1, settings().max_examples // 10)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=12))
