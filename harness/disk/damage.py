"""Damage to files at rest: bits that flipped, files that were cut or are gone; over a folder that nobody has open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from harness.disk.files import Tree


@dataclass(frozen=True, slots=True)
class Flip:
    """Bit ``bit`` (0 is the lowest of the first byte) of the file at ``path`` is the other one."""

    path: str
    bit: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Of the file at ``path`` only the first ``length`` bytes are left."""

    path: str
    length: int


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no file at ``path``."""

    path: str


Damage = Flip | Cut | Missing


def damages(tree: Tree, seed: int, flips_per_file: int = 16, cuts_per_file: int = 4) -> Iterator[Damage]:
    """Each file missing, cut to nothing, cut in other places and with single bits flipped: in order of paths.

    Drawn per path, so that another file more or less changes nothing for the others. An empty file can only be missing.
    """
    for path, content in tree.files.items():
        rng = Random(f"{seed} {path}")
        yield Missing(path)
        if not content.size:
            continue
        cuts = rng.sample(range(1, content.size), min(cuts_per_file - 1, content.size - 1)) if cuts_per_file > 1 else []
        for length in sorted({0, *cuts} if cuts_per_file else ()):
            yield Cut(path, length)
        for bit in sorted(rng.sample(range(content.size * 8), min(flips_per_file, content.size * 8))):
            yield Flip(path, bit)


def damaged(tree: Tree, damage: Damage) -> Tree:
    """``tree`` with this ``damage``. Other names of a damaged file see it too; a missing one is missing by one name.

    Raises: ValueError where the tree has no such file, or the file no such place.
    """
    number = dict(tree.paths).get(damage.path)
    content = None if number is None else tree.contents.get(number)
    if number is None or content is None:
        raise ValueError(f"there is no file {damage.path} to be damaged")
    other = tree.copy()
    match damage:
        case Missing(path):
            del other.names[_entry(tree, path)]
        case Cut(_, length) if 0 <= length < content.size:
            other.contents[number] = content.resized(length)
        case Flip(_, bit) if 0 <= bit < content.size * 8:
            byte = content.read()[bit // 8] ^ 1 << bit % 8
            other.contents[number] = content.written(bit // 8, bytes((byte,)))
        case _:
            raise ValueError(f"{damage} lies outside of the file, which has {content.size} bytes")
    return other


def _entry(tree: Tree, path: str) -> tuple[int, str]:
    folder, _, name = path.rpartition("/")
    return dict(tree.paths)[folder] if folder else 0, name
