"""Rows and figures in SQLite: the file beside a run's rows, and the queries from which pages and charts are made.

The rows of kind ``opening`` are the table ``opening``, and its figures ``opening_figure``, each with a line per row.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.report import text
from harness.report.figures import Figure, Figures
from harness.report.rows import Kinds, Row
from stores.errors import ConfigError

DATABASE_FILE = "rows.db"
_INDEXED = ("backend", "subject", "durability", "workload")
_VIEWS: Mapping[str, tuple[str, str]] = {
    "opening_ready": ("opening", "select *, open_s + coalesce(restore_s, 0) as ready_s from opening"),
    "crash_trial": (
        "crash",
        """select trial_id, scenario, durability, guarantee, backend, failpoint, fault, seed, expected, repeat_command,
                case when max(result = 'anomaly') then 'anomaly' when min(result = 'valid') then 'valid'
                    else 'unknown' end as result
            from crash group by trial_id, scenario, durability, guarantee, backend, failpoint, fault, seed, expected""",
    ),
}
"""The views: each with the kind of rows that it needs, and its query."""
_FUNCTIONS = (text.exact, text.ratio, text.duration, text.size, text.level_place)
"""The functions that a query of a page may call. No other tool has them."""


def query(figures: Figures, sql: str) -> list[Figure]:
    """Return the lines of a query over figures. There are none if a kind that it names has no figures."""
    from sqlite_utils import Database

    named = sorted(set(re.findall(r"\b(\w+)_figure\b", sql)))
    if not all(figures.get(kind) for kind in named):
        return []
    database = Database(memory=True)
    try:
        for kind in named:
            _add_table(database, f"{kind}_figure", {}, figures[kind])
        for function in _FUNCTIONS:
            database.conn.create_function(function.__name__, 1, function, deterministic=True)
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
            _add_table(database, kind, kinds[kind], of_kind)
        for kind, of_kind in figures.items():
            if of_kind:
                _add_table(database, f"{kind}_figure", {}, of_kind)
        for name, (kind, sql) in _VIEWS.items():
            if kind in rows:
                database.create_view(name, sql)
    finally:
        database.close()


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
