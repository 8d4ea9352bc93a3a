"""The classes that rows show as tried: those of points, and the mutants."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.experiments.iofaults.case import NOT_TRIED, IoFaultCase, is_wrong
from harness.experiments.iofaults.fault import IO_FAULTS, Row
from harness.experiments.iofaults.plan import PlannedMutant, group_of
from harness.experiments.iofaults.subjects import modules_of
from harness.mutants import MUTANTS
from harness.report.coverage import Seen


def seen_in(rows: Sequence[Row]) -> list[Seen]:
    """Return the classes of all cases, with the points that were explored, and the mutants that were tried."""
    trials: Counter[tuple[int, int]] = Counter()
    failures: dict[tuple[int, int], str] = {}
    for row in rows:
        if row["kind"] == "operation":
            trials[row["slice"], row["point"]] += 1
            if is_wrong(row):
                failures[row["slice"], row["point"]] = row["repeat"]
    seen: list[Seen] = []
    for row in rows:
        if row["kind"] == "operation_slice":
            seen += _of_subset(row, trials, failures)
        elif row["kind"] == "mutant":
            seen.append(_of_mutant(row))
    return seen


def _of_subset(
    row: Mapping[str, Any], trials: Mapping[tuple[int, int], int], failures: Mapping[tuple[int, int], str]
) -> Iterator[Seen]:
    fault = IO_FAULTS[row["fault"]]
    group = group_of(IoFaultCase(row["backend"], row["durability"], row["fault"], row["variant"]))
    modules = modules_of(row["backend"])
    for name, points in json.loads(row["classes"]).items():
        places = [(row["slice"], point) for point in points]
        number = sum(trials.get(place, 0) for place in places)
        failure = next((failures[place] for place in places if place in failures), "")
        yield Seen(group, name, modules, len(points), number * fault.kills, number * fault.losses, failure)


def _of_mutant(row: Mapping[str, Any]) -> Seen:
    planned = PlannedMutant(row["mutant"], row["backend"], row["fault"], row["seed"], row["wanted"] != "not seen")
    modules = (*modules_of(row["backend"]), MUTANTS[row["mutant"]].build.__module__)
    failure = row["repeat"] if is_wrong(row) else ""
    return Seen(planned.group, planned.name, modules, int(row["result"] != NOT_TRIED), failure=failure)
