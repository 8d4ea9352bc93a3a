"""Figures of a report, computed from raw rows: grouping, medians and order, for any kind of rows.

Pure functions from rows to plain dicts, in an order that depends on their content only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.report.interval import columns, interval
from harness.report.rows import Row

Figure = dict[str, Any]
Figures = Mapping[str, Sequence[Figure]]
"""The figures of a run by kind; a kind without figures has an empty list."""

BASELINE = "rocksdb-direct"
"""The backend without isolation, against which others are compared."""


def grouped(rows: Iterable[Row], names: Sequence[str]) -> list[tuple[Figure, list[Row]]]:
    """Return the rows that share their values under ``names``, with these values, in the values' order."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: _sortable(item[0]))
    return [(dict(zip(names, key, strict=True)), group) for key, group in ordered]


def in_order(figures: Iterable[Figure]) -> list[Figure]:
    """Return the figures, ordered by all of their values."""
    return sorted(figures, key=lambda figure: _sortable(tuple(figure[name] for name in sorted(figure))))


def distinct(figures: Sequence[Figure], *names: str) -> list[tuple[Any, ...]]:
    """Return the distinct combinations of values that figures have under ``names``, in their order."""
    return list(dict.fromkeys(tuple(figure[name] for name in names) for figure in figures))


def values(rows: Iterable[Row], name: str) -> list[float]:
    """Return the values of a column, without nulls."""
    return [row[name] for row in rows if row.get(name) is not None]


def median_of(rows: Iterable[Row], name: str) -> float | None:
    """Return the median of a column; None if all of its values are null."""
    found = values(rows, name)
    return median(found) if found else None


def intervals(rows: Sequence[Row], names: Iterable[str]) -> dict[str, float | None]:
    """Return the interval of the median of each column, as ``NAME_from`` and ``NAME_to``; None for too few values."""
    found: dict[str, float | None] = {}
    for name in names:
        of_name = interval(values(rows, name))
        ends = (None, None) if of_name is None else (of_name.low, of_name.high)
        found.update(zip(columns(name), ends, strict=True))
    return found


def _sortable(key: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value if value is not None else 0) for value in key)
