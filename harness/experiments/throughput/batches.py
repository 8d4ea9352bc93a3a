"""The ratios of a workload that takes batches to the same workload record by record, and what is promised of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness.processes.load import is_busy
from harness.report.ratios import ratio_of
from harness.report.rows import Row
from harness.workloads.batches import SUFFIX, record_form

AT_LEAST: Mapping[tuple[str, int], float] = MappingProxyType(
    {
        ("count", 1_000): 3.0,
        ("count", 10_000): 4.0,
        ("flights", 1_000): 2.0,
        ("flights_by_hour", 1_000): 2.0,
        ("aircraft_sessions", 1_000): 2.0,
    }
)
"""The thresholds by workload and records per commit, over the embedded changelog; other ratios are only reported."""
_CELL = ("backend", "durability", "records_per_commit", "partitions")


def batch_ratios(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield a row of kind "ratio" for each cell with both forms: how much faster a record is in batches."""
    cells: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in rows:
        if row["records"]:
            cell = (record_form(row["workload"]), *(row[name] for name in _CELL))
            cells.setdefault(cell, {}).setdefault(row["workload"], {})[row["repeat"]] = row
    for (workload, backend, durability, size, _), forms in cells.items():
        single, batched = forms.get(workload, {}), forms.get(workload + SUFFIX, {})
        repeats = [(single[each], batched[each]) for each in single if each in batched]
        if repeats:
            yield {
                "kind": "ratio",
                "claim": f"the workload {workload} with process_batch, against itself with process",
                "subject": backend,
                "yardstick": f"{workload}, record by record",
                "durability": durability,
                "records_per_commit": size,
                "at_least": AT_LEAST.get((workload, size)),
                **ratio_of(
                    [many["records_per_s"] / one["records_per_s"] for one, many in repeats],
                    sum(is_busy(one) or is_busy(many) for one, many in repeats),
                    [one["cpu_s"] / one["records"] / (many["cpu_s"] / many["records"]) for one, many in repeats],
                ),
            }
