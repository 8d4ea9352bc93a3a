"""Corruption at rest: a bit flips in a closed store, or a file is truncated or missing. It is detected, or harmless.

The store is opened, verified, and read whole. If only ``verify`` detects the corruption, the store is opened again and
read without it, to record the data that an unverified reader sees.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from harness.checkers.prefix import Found, PrefixFinding, Promised
from harness.crash_states.changes import Content
from harness.crash_states.files import Tree
from harness.experiments.iofaults.classes import PointClasses, Resolution, role
from harness.experiments.iofaults.fault import Guide, InjectedFault, Loss, Row
from harness.experiments.iofaults.power import MAPS_THAT_DO_NOT_MATTER, check_maps
from harness.experiments.iofaults.workshop import Workshop
from harness.io_trace.recorder import IoOperation

_PER_FILE, _PER_LARGE_FILE = 8, 64
_LARGE_BYTES = 64 << 10
"""Files of at least this many bytes are mostly data, so more corruptions are tried in them."""
_SECTOR_BYTES = 512


class Damage(NamedTuple):
    """A corruption of ``path``: the bit ``at`` is flipped, the file is cut to ``at`` bytes, or the file is missing."""

    path: str
    at: int = 0


class AtRest(InjectedFault):
    """The corruption ``point`` of a subject that was closed after all commits of a recording."""

    name = "damage"
    words = "corrupted at rest"
    points_per_subset = 60
    variants = ("flipped", "truncated", "missing")
    loss = Loss.AT_REST
    promise = "damage"
    from_recording = True

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        recording = shop.recording()
        check_maps(recording)
        tree = Tree.of(recording)
        corruptions = plan(shop.case.variant, tree, shop.seed)
        after_commits, nothing = Promised(shop.case.commits, shop.case.commits), Promised()
        # Another recording of the same case may have had more files.
        for point in (point for point in points if point < len(corruptions)):
            damaged = damage(shop.case.variant, tree, corruptions[point])
            # If no file is left, no store can know that there was one: opening creates a new store.
            promises = after_commits if damaged.files else nothing

            def trial(
                damaged: Tree = damaged, promises: Promised = promises, *, verify: bool = True
            ) -> tuple[Promised, PrefixFinding]:
                shop.place(damaged)
                return promises, shop.verdict(promises, verify=verify)

            path, at = corruptions[point]
            row = shop.tried(point, "", f"{path} {shop.case.variant} at {at}", trial)
            if row["noticed"] == "verify":
                _, unverified = shop.patiently(partial(trial, verify=False))
                if unverified.detected_at in ("open", "read"):
                    row["noticed"] = unverified.detected_at
                elif unverified.found not in (Found.VALID, Found.DETECTED, Found.REFUSED):
                    row["unverified"] = str(unverified.found)
            yield row

    def points(self, recording: Sequence[IoOperation], variant: str, seed: int) -> range:
        return range(len(plan(variant, Tree.of(recording), seed)))

    def guides(self, recording: Sequence[IoOperation]) -> list[Guide]:
        """Return none: the points number places in files, and no operations."""
        return []

    def classes(self, points: PointClasses, variant: str, seed: int, resolution: Resolution) -> Mapping[int, str]:
        """Return the class of each corruption: the role of its file, and in which part of the file it is."""
        tree = Tree.of(points.recording)
        sizes = {path: content.size for path, content in tree.files.items()}
        return {
            point: f"{role(each.path)}, {_part(variant, each.at, sizes[each.path])}".removesuffix(", ")
            for point, each in enumerate(plan(variant, tree, seed))
        }


def _part(variant: str, at: int, size: int) -> str:
    """Return in which part of a file a corruption is: its first sector, the rest, or "" for a missing file."""
    if variant == "missing":
        return ""
    place = at // 8 if variant == "flipped" else at
    return "first sector" if place < min(_SECTOR_BYTES, size) else "after the first sector"


def plan(variant: str, tree: Tree, seed: int) -> list[Damage]:
    """Return the corruptions of the files of ``tree``, some for each file; the same ones for the same seed."""
    corruptions = []
    for path, content in tree.files.items():
        choose = random.Random(f"damage {variant} {seed} {path}")
        if variant == "missing":
            corruptions.append(Damage(path))
        elif content.size and variant == "flipped":
            is_large = content.size >= _LARGE_BYTES and not path.endswith(MAPS_THAT_DO_NOT_MATTER)
            times = _PER_LARGE_FILE if is_large else _PER_FILE
            corruptions += [Damage(path, choose.randrange(8 * content.size)) for _ in range(times)]
        elif content.size:
            sectors = choose.choices(range(0, content.size, _SECTOR_BYTES), k=_PER_FILE // 2)
            corruptions += [Damage(path, at) for at in sorted({0, content.size // 2, content.size - 1, *sectors})]
    return corruptions


def damage(variant: str, tree: Tree, planned: Damage) -> Tree:
    """Return a copy of ``tree`` with the corruption ``planned``."""
    damaged = tree.copy()
    [number] = [number for path, number in tree.paths if path == planned.path]
    if variant == "missing":
        for entry in [entry for entry, file in damaged.names.items() if file == number]:
            del damaged.names[entry]
    elif variant == "truncated":
        damaged.contents[number] = damaged.contents[number].resized(planned.at)
    else:
        whole = bytearray(damaged.contents[number].read())
        whole[planned.at // 8] ^= 1 << planned.at % 8
        damaged.contents[number] = Content.of(bytes(whole))
    return damaged
