"""The rows of a run, with those of later runs that measured what it had left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.answer.machine import machine_kind, run_of
from harness.experiment import RATIO, Experiment, Rows
from harness.experiments.registry import experiments, kinds
from harness.report import text
from harness.report.left_out import FACT as LEFT_OUT
from harness.report.rows import FACTS_FILE, read_all, read_facts
from stores.errors import ConfigError

JOINED = "joined"
"""The fact of a report that has the profile, the seed, the time and the cells of a later run, by experiment."""
REST_OF = "rest_of"
"""The fact of a later run that names the folder of the run whose rest it measured."""
_FACTS = {"profile", "seed", "started"}
_ENVIRONMENT = {"cpu", "memory_bytes", "disk", "kernel", "python", "java", "libraries", "packages", "backends"}
"""The facts of a run, and the parts of its environment, that the pages use."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: its settings, its machine, and its rows by kind."""

    folder: Path
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: Rows


def finished_run(folder: Path) -> FinishedRun:
    """Read a run. Raises: ConfigError if the folder is not that of a run, or the run has no end."""
    facts = read_facts(folder)
    environment = facts.pop("environment", None)
    if environment is None:
        raise ConfigError(f"the run in {folder} was given up before its end: there is nothing to report")
    lacking = _FACTS - facts.keys()
    lacking |= (_ENVIRONMENT - environment.keys()) if isinstance(environment, dict) else {"environment"}
    if lacking:
        raise ConfigError(
            f"{folder / FACTS_FILE} lacks {', '.join(sorted(lacking))}: it is damaged, or of another version "
            "of the harness, which can report the run"
        )
    return FinishedRun(folder, facts, environment, read_all(folder, kinds()))


def joined(run: FinishedRun, others: Sequence[FinishedRun]) -> FinishedRun:
    """Return a run with the rows of ``others``, each of which measured what it left out of some experiments.

    A cell of an experiment is of one run, so that a ratio compares measurements of one run. The facts name the other
    runs. Raises: ConfigError for a run that is not the rest of ``run``, or is of another kind of machine.
    """
    for other in others:
        run = _with(run, other)
    return run


def origin_of(facts: Mapping[str, Any], experiment: str) -> str:
    """Return a sentence about the later run that has a part of an experiment; "" if all of it is of the run itself."""
    later = (facts.get(JOINED) or {}).get(experiment)
    if not later:
        return ""
    cells = ", ".join(later["cells"])
    return f"A later run measured what this run had left out ({cells}): {run_of(later)}."


def joined_of(facts: Mapping[str, Any]) -> str:
    """Return a sentence for the first page about the experiments of later runs; "" for none."""
    parts = [
        f"*{experiments()[name].words or experiments()[name].title}* ({', '.join(later['cells'])}; {run_of(later)})"
        for name, later in (facts.get(JOINED) or {}).items()
    ]
    return f"Measured later on the same machine, in runs of their own: {', '.join(parts)}." if parts else ""


def rest_of(plan: Mapping[str, Sequence[Any]], run: FinishedRun) -> dict[str, list[Any]]:
    """Return the trials of a plan, by experiment, of whose cells ``run`` has no rows.

    Experiments without cells are left out: a later run cannot measure the rest of them. Raises: ConfigError if nothing
    is left.
    """
    left = {}
    for name, trials in plan.items():
        if columns := experiments()[name].cell:
            known = cells_of(experiments()[name], run.rows)
            left[name] = [trial for trial in trials if tuple(getattr(trial, each) for each in columns) not in known]
    if not any(left.values()):
        can = ", ".join(sorted({each.stage for each in experiments().values() if each.cell}))
        raise ConfigError(
            f"the run in {run.folder} left out nothing that a later run can measure. It can measure what is missing of "
            f"these stages: {can}"
        )
    return {name: trials for name, trials in left.items() if trials}


def cells_of(experiment: Experiment[Any], rows: Rows) -> set[tuple[Any, ...]]:
    """Return the cells of an experiment of which there are rows."""
    return {tuple(row[name] for name in experiment.cell) for kind in experiment.columns for row in rows.get(kind, ())}


def _with(run: FinishedRun, other: FinishedRun) -> FinishedRun:
    if other.facts.get(REST_OF) != run.folder.resolve().name:
        raise ConfigError(
            f"the run in {other.folder} did not measure what the run in {run.folder} left out: make one with bench "
            f"--rest-of {run.folder} --only STAGES"
        )
    here, there = machine_kind(run.environment), machine_kind(other.environment)
    if here != there:
        raise ConfigError(f"the run in {other.folder} is of another machine ({there}, not {here})")
    added = {name: cells for name, each in experiments().items() if each.cell and (cells := cells_of(each, other.rows))}
    if not added:
        raise ConfigError(f"the run in {other.folder} has no rows")
    for name, cells in added.items():
        if cells & cells_of(experiments()[name], run.rows):
            raise ConfigError(f"the run in {other.folder} is joined already: both have the same cells of {name!r}")
    kinds_added = {RATIO, *(kind for name in added for kind in experiments()[name].columns)}
    rows = {
        kind: [*of_kind, *(other.rows.get(kind, ()) if kind in kinds_added else ())]
        for kind, of_kind in run.rows.items()
    }
    skipped = {f"{experiments()[name].stage}_skipped" for name in added}
    facts = {name: fact for name, fact in run.facts.items() if name not in skipped}
    facts[LEFT_OUT] = _still_left_out(run.facts, other.facts, added)
    facts["problems"] = [*(run.facts.get("problems") or ()), *(other.facts.get("problems") or ())]
    facts[JOINED] = {**(run.facts.get(JOINED) or {}), **{name: _later(other, name, added[name]) for name in added}}
    return FinishedRun(run.folder, facts, run.environment, rows)


def _later(other: FinishedRun, name: str, cells: set[tuple[Any, ...]]) -> dict[str, Any]:
    words = [_cell_words(experiments()[name].cell, cell) for cell in sorted(cells)]
    return {**{fact: other.facts[fact] for fact in sorted(_FACTS)}, "cells": words}


def _cell_words(columns: Sequence[str], cell: Sequence[str | int]) -> str:
    """Return a cell in words: ``2,000 keys``, or ``count (1 partition)``."""
    first, *others = (
        value if isinstance(value, str) else f"{text.exact(value)} {column.removesuffix('s') if value == 1 else column}"
        for column, value in zip(columns, cell, strict=True)
    )
    return f"{first} ({', '.join(others)})" if others else first


def _still_left_out(facts: Mapping[str, Any], later: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return what is left out after a later run that planned the rest of some experiments."""
    left_out = dict(facts.get(LEFT_OUT) or {})
    for name in names:
        missing = {
            unit: planned - tried for unit, (tried, planned) in (later.get(LEFT_OUT) or {}).get(name, {}).items()
        }
        before = left_out.pop(name, {})
        if still := {
            unit: (planned - missing[unit], planned) for unit, (_, planned) in before.items() if unit in missing
        }:
            left_out[name] = still
    return left_out
