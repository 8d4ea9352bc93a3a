"""The function that explores each fault: given ascending points of a case, it returns a row for each trial.

A row depends on the case, the point and the seed alone (and, in engines with threads, on their schedule). So rows do
not depend on the slices into which points were divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from harness.crash_states.states import positions
from harness.experiments.iofaults.case import Case
from harness.experiments.iofaults.damage import damages, final_tree, plan
from harness.experiments.iofaults.errors import errors
from harness.experiments.iofaults.failed_syncs import failed_syncs, syncs
from harness.experiments.iofaults.kills import kills, kills_twice, tears
from harness.experiments.iofaults.power import power_losses, power_losses_twice
from harness.experiments.iofaults.workshop import Row, Workshop
from harness.processes.fork_server import ForkServer

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
    """Return every point of the workshop's case. Raises: ForkServerError if the writer fails without a fault."""
    if shop.case.fault == "damage":
        return range(len(plan(shop.case.variant, final_tree(shop), shop.seed)))
    if shop.case.fault == "failed_sync":
        return range(len(syncs(shop.recording())))
    if shop.case.fault in ("power", "power_twice"):
        return positions(shop.recording())
    return range(shop.undisturbed() + 1)


def record(case: Case, seed: int, path: str, fork_server: ForkServer | None = None) -> Case:
    """Record ``case`` in the file ``path``. Return the case that uses it. Raises: as ``Workshop.recording``."""
    with Workshop(replace(case, recording=path), seed, fork_server) as shop:
        shop.recording()
        return shop.case
