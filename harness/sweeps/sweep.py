"""Who explores which fault: some of a case's points, which ascend, a row for each trial; and how many points there are.

Nothing but the case, the point and the seed decides on a row (and, in engines with threads, what those happen to do),
so that rows do not depend on how points were cut into slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from harness.disk.states import positions
from harness.effects.nursery import Nursery
from harness.sweeps.case import Case
from harness.sweeps.damage import damages, final_tree, plan
from harness.sweeps.errors import errors
from harness.sweeps.failed_syncs import failed_syncs, syncs
from harness.sweeps.kills import kills, kills_twice, tears
from harness.sweeps.power import power_losses, power_losses_twice
from harness.sweeps.workshop import Row, Workshop

Explore = Callable[[Workshop, Sequence[int], str], Iterator[Row]]

EXPLORERS: Mapping[str, Explore] = MappingProxyType(
    {
        "kill": kills,
        "tear": tears,
        "kill_twice": kills_twice,
        "error": errors,
        "power": power_losses,
        "power_twice": power_losses_twice,
        "failed_sync": failed_syncs,
        "damage": damages,
    }
)


def all_points(shop: Workshop) -> range:
    """Every point of the workshop's case. Raises: NurseryError where an undisturbed victim fails."""
    if shop.case.fault == "damage":
        return range(len(plan(shop.case.variant, final_tree(shop), shop.seed)))
    if shop.case.fault == "failed_sync":
        return range(len(syncs(shop.recording())))
    if shop.case.fault in ("power", "power_twice"):
        return positions(shop.recording())
    return range(shop.undisturbed() + 1)


def record(case: Case, seed: int, path: str, nursery: Nursery | None = None) -> Case:
    """Make the recording of ``case`` in the file ``path``; the case that uses it. Raises: as ``sweep``."""
    with Workshop(replace(case, recording=path), seed, nursery) as shop:
        shop.recording()
        return shop.case
