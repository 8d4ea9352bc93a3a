"""Rows and figures in SQLite: the file beside a run's rows, and the queries that make figures, pages and charts.

The rows of kind ``opening`` are the table ``opening``, and its figures ``opening_figure``, each with a line per row.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.processes.load import BUSY_SHARE, LOAD_COLUMNS
from harness.report import text
from harness.report.figures import Figure, Figures, columns, interval, ratio_ends, rounds_column
from harness.report.rows import Kinds, Row
from stores.errors import ConfigError
from stores.registry import backends

DATABASE_FILE = "rows.db"
_INDEXED = ("backend", "subject", "durability", "workload")
_VIEWS: Mapping[str, tuple[str, str]] = {
    "opening_ready": ("opening", "select *, open_s + coalesce(restore_s, 0) as ready_s from opening"),
    "crash_trial": (
        "crash",
        """with trial as (
                select trial_id, scenario, durability, guarantee, backend, failpoint, fault, seed, expected,
                    repeat_command, acknowledged, kept, replayed, lost,
                    case when max(result = 'anomaly') then 'anomaly' when min(result = 'valid') then 'valid'
                        else 'unknown' end as result,
                    group_concat(checker || ': ' || coalesce(nullif(detail, ''), result), '; ')
                        filter (where result <> 'valid') as found
                from crash
                group by trial_id, scenario, durability, guarantee, backend, failpoint, fault, seed, expected)
            select *, result is expected or (expected is 'anomaly' and result = 'valid'
                and max(result = 'anomaly') over (partition by scenario, backend)) as as_expected
            from trial""",
    ),
}
"""The views: each with the kind of rows that it needs, and its query.

If an anomaly is expected, because of a mutant, one trial of the scenario and backend with an anomaly is enough.
"""


def isolates(backend: str) -> bool:
    """Return True for a backend, of those that exist here, that isolates uncommitted writes."""
    return backend in backends() and backends()[backend].transactional


_FUNCTIONS = (text.exact, text.ratio, text.duration, text.size, text.level_place, isolates)
_AGGREGATES: Mapping[str, Callable[[list[float]], float | None]] = {
    "median": median,
    "interval_from": lambda repeats: ends.low if (ends := interval(repeats)) else None,
    "interval_to": lambda repeats: ends.high if (ends := interval(repeats)) else None,
    "ratio_interval_from": lambda repeats: ends.low if (ends := ratio_ends(repeats)) else None,
    "ratio_interval_to": lambda repeats: ends.high if (ends := ratio_ends(repeats)) else None,
}
"""The functions that a query of a report may call. No other tool has them."""


def query(figures: Figures, sql: str) -> list[Figure]:
    """Return the lines of a query over figures. There are none if a kind that it names has no figures."""
    kinds = sorted(set(re.findall(r"\b(\w+)_figure\b", sql)))
    if not all(figures.get(kind) for kind in kinds):
        return []
    return _answer({f"{kind}_figure": ({}, figures[kind]) for kind in kinds}, sql)


def lines_of(kinds: Kinds, rows: Mapping[str, Sequence[Row]], sql: str) -> list[Figure]:
    """Return the lines of a query over rows: those of each kind are the table of its name.

    Each has the columns of the machine's load, which a run adds to rows (``harness.run``).
    """
    load = dict.fromkeys(LOAD_COLUMNS, float)
    return _answer({kind: ({**load, **types}, rows.get(kind, ())) for kind, types in kinds.items()}, sql)


def busy(table: str) -> str:
    """Return the condition that the machine was busy with other work during the measurement of a row of a table."""
    return f"(coalesce({table}.others_share, 0) + coalesce({table}.steal_share, 0) > {BUSY_SHARE})"


def medians(*names: str) -> str:
    """Return the part of a query that selects the median of each column under its name."""
    return ", ".join(f"median({name}) as {name}" for name in names)


def interval_ends(name: str, of: str = "") -> str:
    """Return the part of a query that selects the interval of the median of a column, or of an expression."""
    low, high = columns(name)
    return f"interval_from({of or name}) as {low}, interval_to({of or name}) as {high}"


def by_round(name: str, of: str = "") -> str:
    """Return the part of a query that selects the values of a column, or of an expression, by round."""
    return f"by_round(repeat, {of or name}) as {rounds_column(name)}"


def ratio_columns(ratio: str, is_busy: str, cpu_ratio: str = "null") -> str:
    """Return the part of a query that selects what ``ratio_of`` returns, from expressions for each repeat."""
    parts = [f"count(*) as repeats, sum({is_busy}) as busy"]
    for name, of in (("ratio", ratio), ("cpu_ratio", cpu_ratio)):
        low, high = columns(name)
        parts.append(f"median({of}) as {name}, ratio_interval_from({of}) as {low}, ratio_interval_to({of}) as {high}")
    return ", ".join(parts)


class _Aggregate:
    """The functions that SQLite calls for each value of a group, and at its end."""

    def __init__(self, result: Callable[[list[float]], float | None]) -> None:
        self._result = result
        self._values: list[float] = []

    def step(self, value: float | None) -> None:
        if value is not None:
            self._values.append(value)

    def finalize(self) -> float | None:
        return self._result(self._values) if self._values else None


class _ByRound:
    """The functions that SQLite calls for each round of a group, and at its end: JSON, in the order of the rounds."""

    def __init__(self) -> None:
        self._values: dict[int, float] = {}

    def step(self, number: int, value: float | None) -> None:
        if value is not None:
            self._values[number] = value

    def finalize(self) -> str:
        return json.dumps(self._values, sort_keys=True)


def _answer(tables: Mapping[str, tuple[Mapping[str, type], Sequence[Row]]], sql: str) -> list[Figure]:
    from sqlite_utils import Database

    database = Database(memory=True)
    connection: Any = database.conn
    try:
        for name, (types, lines) in tables.items():
            _add_table(database, name, types, lines)
        _add_views(database, tables)
        for function in _FUNCTIONS:
            connection.create_function(function.__name__, 1, function, deterministic=True)
        for name, result in _AGGREGATES.items():
            connection.create_aggregate(name, 1, partial(_Aggregate, result))
        connection.create_aggregate("by_round", 2, _ByRound)
        return list(database.query(sql))
    finally:
        database.close()


def write_database(run_folder: Path, kinds: Kinds, rows: Mapping[str, Sequence[Row]], figures: Figures) -> Path:
    """Write the rows and the figures of a run into a SQLite file in its folder, and return its path.

    An earlier file is replaced. Raises: ConfigError if the file cannot be written.
    """
    file, beside = run_folder / DATABASE_FILE, run_folder / f".{DATABASE_FILE}-{os.getpid()}"
    try:
        beside.unlink(missing_ok=True)
        _fill(beside, kinds, {kind: of_kind for kind, of_kind in rows.items() if of_kind}, figures)
        os.replace(beside, file)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{file} cannot be written ({error}): correct that and run `make report`") from error
    finally:
        beside.unlink(missing_ok=True)
    return file


def _fill(file: Path, kinds: Kinds, rows: Mapping[str, Sequence[Row]], figures: Figures) -> None:
    from sqlite_utils import Database

    database = Database(file)
    try:
        for kind, of_kind in rows.items():
            _add_table(database, kind, kinds.get(kind, {}), of_kind)
        for kind, of_kind in figures.items():
            if of_kind:
                _add_table(database, f"{kind}_figure", {}, of_kind)
        _add_views(database, rows)
    finally:
        database.close()


def _add_views(database: Any, kinds: Container[str]) -> None:
    for name, (kind, sql) in _VIEWS.items():
        if kind in kinds:
            database.create_view(name, sql)


def _add_table(database: Any, name: str, columns: Mapping[str, type], lines: Sequence[Row]) -> None:
    table = database[name]
    types = {**_types(lines), **columns}
    table.create(types)
    table.insert_all({column: value for column, value in line.items() if column != "kind"} for line in lines)
    indexed = [column for column in _INDEXED if column in types]
    if indexed:
        table.create_index(indexed)


def _types(lines: Sequence[Row]) -> dict[str, type]:
    """Return the type of each column: that of its values, ``float`` if some are whole and some are not."""
    types: dict[str, type] = {}
    for line in lines:
        for name, value in line.items():
            if name != "kind" and types.get(name, type(None)) in (type(None), int):
                types[name] = type(value) if value is not None else types.get(name, type(None))
    return {name: str if type_ is type(None) else type_ for name, type_ in types.items()}
