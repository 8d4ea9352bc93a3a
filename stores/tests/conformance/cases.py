"""The backends under test: each with every durability level that it can carry, and once with its limits made tiny."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stores import Durability, KeyValueStore, open_store
from stores.buffer import PAIR_MEMORY_BYTES
from stores.registry import Backend, backend_named, backends

TIGHT: Mapping[str, object] = {
    "staging_buffer_bytes": 64 + 8 * PAIR_MEMORY_BYTES,
    "copy_part_bytes": 64,
    "map_size_bytes": 64 << 10,
}
"""Options that change no promise, but take a backend over the edge of what it keeps in one place."""
TIGHT_FOR_KILLS: Mapping[str, object] = {**TIGHT, "copy_part_bytes": 1 << 20, "write_buffer_size_bytes": 64 << 10}
"""As ``TIGHT``, and what was committed gets into the files early and in pieces, large transactions only in several."""


@dataclass(frozen=True)
class Case:
    """One way to open a store."""

    backend: Backend
    durability: Durability
    options: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.backend.name}-{self.durability}{'-tight' if self.options else ''}"

    def open(self, path: Path, *, name: str = "store") -> KeyValueStore:
        """The store at ``path``."""
        return open_store(self.backend.name, path, name=name, durability=self.durability, options=self.options)


def cases(names: list[str], durabilities: frozenset[Durability], tight: Mapping[str, object]) -> list[Case]:
    """Cases for the backends ``names`` (all, if empty) at the levels that each can carry of those, and ``tight``."""
    found = []
    for backend in [backend_named(name) for name in names] or backends().values():
        options = {name: value for name, value in tight.items() if name in backend.options}
        levels = sorted(backend.durabilities & durabilities) or sorted(backend.durabilities)[:1]
        found += [Case(backend, level) for level in levels]
        if options:
            found.append(Case(backend, levels[0], options))
    return found


def tightened(case: Case) -> Case:
    """``case`` with the limits made tiny: it comes to what ordinary transactions never reach."""
    options = {name: value for name, value in TIGHT_FOR_KILLS.items() if name in case.backend.options}
    return replace(case, options=options)


def crash_cases(names: list[str]) -> list[Case]:
    """For each backend the level that survives kills, as it is, and the one that does not, with the tiny limits."""
    chosen = cases(names, frozenset({Durability.CHANGELOG, Durability.PROCESS}), TIGHT_FOR_KILLS)
    tight = {case.backend.name for case in chosen if case.options}
    return [
        case
        for case in chosen
        if case.options or case.durability is Durability.PROCESS or case.backend.name not in tight
    ]
