"""A case explored by itself, without a run around it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.fault import Row
from harness.experiments.iofaults.workshop import Workshop
from harness.processes.fork_server import ForkServer

SEED = 3


def explore(fork_server: ForkServer, case: IoFaultCase, places: int, width: int = 1) -> list[Row]:
    """Rows of ``width`` points in a row, at so many ``places``, one of them at the end."""
    with Workshop(case, SEED, fork_server) as shop:
        points = shop.points()
        subsets = [points[len(points) * (place + 1) // places - width :][:width] for place in range(places)]
        return [row for some in subsets for row in shop.explore(some)]


def rows_of(
    case: IoFaultCase, points: range, seed: int, only: str = "", *, fork_server: ForkServer | None = None
) -> Iterator[Row]:
    """The rows of ``points``; ``only`` picks one of the trials at a point."""
    with Workshop(case, seed, fork_server) as shop:
        yield from shop.explore(points, only)


def points_of(case: IoFaultCase, seed: int, fork_server: ForkServer | None = None) -> range:
    """Every point there is."""
    with Workshop(case, seed, fork_server) as shop:
        return shop.points()
