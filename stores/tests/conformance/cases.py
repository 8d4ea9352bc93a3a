"""The backends under test: each with every durability level that it can carry, and once with its limits made tiny."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from stores import Durability, KeyValueStore, open_store
from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.failpoints import Part, declared
from stores.registry import Backend, backend_named, backends
from stores.strategies.store.timestamps import SPLIT_FAILPOINTS

AT_THE_END = "at the end"
"""Stands for a failpoint of a backend that has none."""
TIGHT: Mapping[str, object] = {
    "staging_buffer_bytes": 64 + 8 * PAIR_MEMORY_BYTES,
    "copy_part_bytes": 64,
    "ingested_file_bytes": 64,
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
    all_cases = []
    for backend in [backend_named(name) for name in names] or backends().values():
        options = {name: value for name, value in tight.items() if name in backend.options}
        levels = sorted(backend.durabilities & durabilities) or sorted(backend.durabilities)[:1]
        all_cases += [Case(backend, level) for level in levels]
        if options:
            all_cases.append(Case(backend, levels[0], options))
    return all_cases


def in_turn(selection: list[Case], turn: int, group: Callable[[Case], object]) -> tuple[list[Case], list[Case]]:
    """Of each group of cases the one whose turn it is, and the others, which ``make test-long`` runs.

    ``make test`` tries each promise on each backend once, with its limits as they are or tiny. A typed store calls the
    byte store below, whose promises all have both limits: of its tests, each engine has one backend. A suite of named
    backends leaves none out.
    """
    groups: dict[object, list[Case]] = {}
    for case in selection:
        groups.setdefault(group(case), []).append(case)
    chosen = [several[(turn + at) % len(several)] for at, several in enumerate(groups.values())]
    return chosen, [case for case in selection if case not in chosen]


def of_closed_files(case: Case) -> tuple[str, bool]:
    """The group, as ``in_turn`` has it, of the cases whose closed stores have the same files: a dual store has two."""
    return case.backend.engine, case.backend.strategy == "dual-store"


def spread(selection: list[Case], parameters: Mapping[str, Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Every combination of the parameters with some of the cases; of several parameters every value with each case.

    Of a single parameter, ``make test-long`` runs the other cases. One case, of a suite of one backend, comes with
    every combination.
    """
    apart = min((3, len(selection), *(len(values) for values in parameters.values())) if parameters else (1,))
    return [
        (case, *(value for _, value in combination))
        for combination in product(*(list(enumerate(values)) for values in parameters.values()))
        for number, case in enumerate(selection)
        if (number + sum(at for at, _ in combination)) % apart == 0
    ]


def tightened(case: Case) -> Case:
    """``case`` with the limits made tiny: it comes to what ordinary transactions never reach."""
    options = {name: value for name, value in TIGHT_FOR_KILLS.items() if name in case.backend.options}
    return replace(case, options=options)


def spread_crashes(names: list[str]) -> list[tuple[Case, str]]:
    """Kills in an upgrade of a store's records: each failpoint of a strategy over one of its engines, and each
    failpoint of an upgrade over each engine, with backends and levels in turn. A backend that keeps nothing is run to
    the end."""
    selection = [backend_named(name) for name in names] or list(backends().values())
    points_of_backends = [(backend, AT_THE_END) for backend in selection if not backend.persistent]
    by_strategy: dict[object, list[Backend]] = {}
    by_engine: dict[object, list[Backend]] = {}
    for backend in selection:
        if backend.persistent:
            by_strategy.setdefault(backend.load_strategy(), []).append(backend)
            by_engine.setdefault(backend.load_engine(), []).append(backend)
    points = [(group, _reached_by_commits(group[0]) or [AT_THE_END]) for group in by_strategy.values()]
    points += [(group, list(SPLIT_FAILPOINTS)) for group in by_engine.values()]
    points_of_backends += [
        (group[at % len(group)], failpoint) for group, some in points for at, failpoint in enumerate(some)
    ]
    crashes = []
    for at, (backend, failpoint) in enumerate(points_of_backends):
        levels = crash_cases([backend.name])
        case = levels[at % len(levels)]
        if failpoint in backend.load_strategy().persistent_failpoints:
            case = tightened(case)
        # Small transactions, too, are copied in several parts.
        options = {name: TIGHT[name] if name == "copy_part_bytes" else value for name, value in case.options.items()}
        crashes.append((replace(case, options=options), failpoint))
    return crashes


def _reached_by_commits(backend: Backend) -> list[str]:
    """The failpoints of a backend without those of making, restoring and recovering a store."""
    return [failpoint for failpoint in backend.failpoints if declared()[failpoint].part is Part.COMMIT]


def crash_cases(names: list[str]) -> list[Case]:
    """For each backend the level that survives kills, as it is, and the one that does not, with the tiny limits."""
    selection = cases(names, frozenset({Durability.CHANGELOG, Durability.PROCESS}), TIGHT_FOR_KILLS)
    tight = {case.backend.name for case in selection if case.options}
    return [
        case
        for case in selection
        if case.options or case.durability is Durability.PROCESS or case.backend.name not in tight
    ]
