"""Records rounds of this machine for simulated runs, in ``recorded_rounds.json``.

    .venv/bin/python -m harness.tests.record_rounds idle --rounds 10 --beside "nothing else"

They are the rounds on which the picks of a default bench rest, all of them with every cell. The recording of that name
is replaced; the others stay. It takes about two minutes a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from harness.answer.results import all_figures
from harness.budget import DEFAULT
from harness.experiments.needs import MEASURES
from harness.experiments.opening import experiment as opening
from harness.experiments.registry import kinds
from harness.experiments.throughput import plan as throughput
from harness.folders import temporary_folder
from harness.report.figures import Figure, Figures, rounds
from harness.report.rows import latest_run, read_all
from harness.run import BenchRequest, bench
from harness.tests.simulated_runs import FILE, OPENING, recorded
from stores.registry import backends


def recording(figures: Figures, rivals: Collection[str]) -> dict[str, list[dict[str, dict[str, float]]]]:
    """Return the rounds of each cell: the value of each rival by measure, of the rounds that have measured all."""
    cells: dict[str, dict[str, dict[str, dict[int, float]]]] = {}
    for measure in MEASURES:
        for figure in figures[measure.kind]:
            values = rounds(figure, measure.name)
            if values and figure["backend"] in rivals:
                of_cell = cells.setdefault(_cell(measure.kind, figure), {})
                of_cell.setdefault(measure.name, {})[figure["backend"]] = values
    return {cell: _by_round(measures) for cell, measures in cells.items()}


def _cell(kind: str, figure: Figure) -> str:
    if kind == OPENING:
        return f"{OPENING} {figure['durability']} {figure['records']}"
    return f"{figure['durability']} {figure['records_per_commit']}"


def _by_round(measures: Mapping[str, Mapping[str, Mapping[int, float]]]) -> list[dict[str, dict[str, float]]]:
    shared = set.intersection(*(set(values) for by_backend in measures.values() for values in by_backend.values()))
    return [
        {
            measure: {backend: float(f"{values[number]:.6g}") for backend, values in by_backend.items()}
            for measure, by_backend in measures.items()
        }
        for number in sorted(shared)
    ]


def measured(count: int) -> tuple[int, Figures]:
    """Make so many rounds, and return the status of the bench and their figures."""
    picks = tuple(replace(grid, repeats=count) for grid in throughput.SIZES[DEFAULT] if grid.work_s)
    opened = opening.OpeningSize(count, opening.SIZES[DEFAULT].records[:1])
    with (
        temporary_folder("rounds") as folder,
        patch.object(throughput, "SIZES", {DEFAULT: picks}),
        patch.object(opening, "SIZES", {DEFAULT: opened}),
    ):
        status = bench(BenchRequest(DEFAULT, only=("throughput", "opening"), runs=folder))
        return status, all_figures(read_all(latest_run(folder), kinds()))


def main() -> int:
    """Make the rounds that the command line asks for, and write them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the recording")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--beside", required=True, help="the other work of the machine, in words")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    status, figures = measured(arguments.rounds)
    if status:
        print("nothing is recorded: the bench has failed", file=sys.stderr)
        return status
    content = recorded()
    content["backends"] = {name: _facts(each) for name, each in backends().items() if each.transactional}
    content["recordings"][arguments.name] = {
        "how": f"python -m harness.tests.record_rounds {arguments.name} --rounds {arguments.rounds} "
        f'--beside "{arguments.beside}"',
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load_average": [round(before, 1), round(os.getloadavg()[0], 1)],
        "cells": recording(figures, content["backends"]),
    }
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    return 0


def _facts(backend: Any) -> dict[str, bool]:
    return {"transactional": backend.transactional, "persistent": backend.persistent}


if __name__ == "__main__":
    sys.exit(main())
