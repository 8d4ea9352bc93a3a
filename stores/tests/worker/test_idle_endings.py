"""Idle workers that get SIGTERM at the same moment.

The command ``idle_endings`` beside it has many tries, and bounds their time.
"""

from __future__ import annotations

import random

import pytest

from stores.tests.worker.idle_endings import end_two
from stores.tests.worker.places import Place


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_two_idle_workers_with_standby_copies_that_get_sigterm_together_both_end_in_order(
    place: Place, seed: int
) -> None:
    for each in end_two(place, random.Random(seed)):
        assert each.status == 0, f"{each}: {each.errors}"
