"""The rows of a run in one SQLite file beside them, for any SQLite tool: a table for each kind, indexes, and views."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.report.rows import Kinds, read_all
from stores.errors import ConfigError

DATABASE_FILE = "rows.db"
_INDEXED = ("backend", "subject", "durability", "workload")
_OF_TASKS = "workload, partitions, durability, records_per_commit, backend"
_VIEWS: Mapping[str, tuple[str, str]] = {
    "throughput_median": (
        "throughput",
        f"""with ranked as (
                select *,
                    row_number() over (partition by {_OF_TASKS} order by records_per_s) as place,
                    count(*) over (partition by {_OF_TASKS}) as repeats
                from throughput where records_per_s is not null
            )
            select {_OF_TASKS}, repeats, avg(records_per_s) as records_per_s
            from ranked where place in ((repeats + 1) / 2, (repeats + 2) / 2) group by {_OF_TASKS}""",
    ),
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


def write_database(run_folder: Path, kinds: Kinds) -> Path:
    """Write the rows of a run into a SQLite file in its folder, and return its path. An earlier file is replaced.

    Raises: ConfigError for rows that cannot be read, and if the file cannot be written.
    """
    file, beside = run_folder / DATABASE_FILE, run_folder / f".{DATABASE_FILE}-{os.getpid()}"
    rows = read_all(run_folder, kinds)
    try:
        beside.unlink(missing_ok=True)
        _fill(beside, kinds, {kind: of_kind for kind, of_kind in rows.items() if of_kind})
        os.replace(beside, file)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{file} cannot be written ({error}): correct that and run `make report`") from error
    finally:
        beside.unlink(missing_ok=True)
    return file


def _fill(file: Path, kinds: Kinds, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    from sqlite_utils import Database

    database = Database(file)
    try:
        for kind, of_kind in rows.items():
            _add_table(database, kind, kinds[kind], of_kind)
        for name, (kind, query) in _VIEWS.items():
            if kind in rows:
                database.create_view(name, query)
    finally:
        database.close()


def _add_table(database: Any, kind: str, columns: Mapping[str, type], rows: Sequence[Mapping[str, Any]]) -> None:
    table = database[kind]
    table.create(dict(columns))
    own = ({name: value for name, value in row.items() if name != "kind"} for row in rows)
    table.insert_all(own, alter=True)
    indexed = [name for name in _INDEXED if name in columns]
    if indexed:
        table.create_index(indexed)
