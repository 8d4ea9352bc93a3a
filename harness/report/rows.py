"""Raw rows as Parquet files in ``runs/``: a folder per run, with a folder per kind. Rows are added, never changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stores.errors import ConfigError

Row = dict[str, Any]
"""One result, as plain values by column. ``kind`` names its kind."""
Kinds = Mapping[str, Mapping[str, type]]
"""The columns of rows by kind: ``str``, ``int``, ``float`` or ``bool``. Every column may be null."""

_TYPES: Mapping[type, pa.DataType] = MappingProxyType(
    {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
)

LATEST = "latest"
FACTS_FILE = "run.json"


def new_run(runs: Path, profile: str, facts: Mapping[str, Any], now: datetime | None = None) -> Path:
    """Create a folder in ``runs``, named by the time (UTC) and the profile. ``facts`` are the settings of the run.

    Raises: ConfigError if the folder cannot be created.
    """
    name = f"{now or datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}-{profile}"
    try:
        for suffix in ("", *(f"-{number}" for number in range(2, 100))):
            folder = runs / (name + suffix)
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            write_facts(folder, facts)
            return folder
    except OSError as error:
        raise ConfigError(
            f"{runs} cannot hold the rows of a run ({_reason(error)}): correct that, or name another folder"
        ) from error
    raise ConfigError(f"{runs} holds a hundred runs of this second already: wait for the next one")


@contextmanager
def removed_if_refused(run_folder: Path) -> Iterator[None]:
    """Remove the folder of a run that ends with a ConfigError before it has rows: what was refused leaves nothing."""
    try:
        yield
    except ConfigError:
        if not any(run_folder.rglob("*.parquet")):
            shutil.rmtree(run_folder, ignore_errors=True)
        raise


def write_facts(run_folder: Path, facts: Mapping[str, Any]) -> None:
    """Replace the facts of a run: its settings, its machine and its duration."""
    replace_text(run_folder / FACTS_FILE, json.dumps(facts, indent=2, sort_keys=True) + "\n")


def read_facts(run_folder: Path) -> dict[str, Any]:
    """Return the facts of a run. Raises: ConfigError if the folder is not that of a run."""
    try:
        facts: dict[str, Any] = dict(json.loads((run_folder / FACTS_FILE).read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{run_folder} is not the folder of a run: it has no readable {FACTS_FILE}") from error
    return facts


def replace_text(path: Path, content: str) -> None:
    """Replace a file atomically: a reader, also after a kill, finds the old content or the new one."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        beside.write_text(content, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def name_latest(run_folder: Path) -> None:
    """Point the link ``latest``, beside the run's folder, to that folder."""
    link = run_folder.parent / LATEST
    beside = run_folder.parent / f".{LATEST}-{os.getpid()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(run_folder.name, target_is_directory=True)
    os.replace(beside, link)


def check_latest(runs: Path) -> None:
    """Check that ``latest`` in ``runs`` can become a link to a run. Raises: ConfigError if it is anything else."""
    link = runs / LATEST
    if link.exists() and not link.is_symlink():
        raise ConfigError(f"{link} is no link, and is to lead to the newest run: rename it, or name another folder")


def latest_run(runs: Path) -> Path:
    """Return the folder of the newest finished run. Raises: ConfigError if there is none."""
    link = runs / LATEST
    if not (link / FACTS_FILE).is_file():
        raise ConfigError(f"there is no finished run in {runs}: make one with `make bench`")
    return link.resolve()


def write_rows(run_folder: Path, kind: str, rows: Iterable[Row], kinds: Kinds) -> int:
    """Add rows of one kind to a run, in a new file; return their number. Without rows, no file is written.

    A row may have more columns than ``kinds`` has for its kind.

    Raises: ConfigError for an unknown kind, a value that does not fit its column, or if they cannot be written.
    """
    columns = {name: _TYPES[type_] for name, type_ in _columns(kind, kinds).items()}
    all_rows = [dict(row) for row in rows]
    if not all_rows:
        return 0
    more = sorted({name for row in all_rows for name in row} - {*columns, "kind"})
    try:
        table = pa.table(
            {
                **{name: pa.array([row.get(name) for row in all_rows], type_) for name, type_ in columns.items()},
                **{name: pa.array([row.get(name) for row in all_rows]) for name in more},
            }
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ConfigError(f"a row of kind {kind!r} does not fit its columns: {error}") from error
    folder = run_folder / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"part-{len(list(folder.glob('part-*.parquet'))):04}.parquet"
        beside = part.with_suffix(".new")
        pq.write_table(table, beside)
        os.replace(beside, part)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot take {len(all_rows):,} rows ({_reason(error)}): correct that, and run again"
        ) from error
    return len(all_rows)


def read_rows(run_folder: Path, kind: str, kinds: Kinds) -> list[dict[str, Any]]:
    """Return all rows of one kind, in the order in which they were written; none if the run has none.

    Raises: ConfigError for a file that cannot be read.
    """
    columns = _columns(kind, kinds)
    rows: list[dict[str, Any]] = []
    for part in sorted((run_folder / kind).glob("part-*.parquet")):
        try:
            table = pq.read_table(part, partitioning=None)
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(
                f"{part} cannot be read ({error}): delete it to report what is left of the run, or run it again"
            ) from error
        rows.extend({"kind": kind, **dict.fromkeys(columns), **row} for row in table.to_pylist())
    return rows


def read_all(run_folder: Path, kinds: Kinds) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every kind, by kind."""
    return {kind: read_rows(run_folder, kind, kinds) for kind in kinds}


def missing_columns(run_folder: Path, kinds: Kinds) -> list[str]:
    """Return each file of a run that lacks columns of its kind, with these: it is of another version."""
    complaints = []
    for kind, columns in kinds.items():
        for part in sorted((run_folder / kind).glob("part-*.parquet")):
            if lacking := sorted(columns.keys() - set(pq.read_schema(part).names)):
                complaints.append(f"{part} has no {', '.join(lacking)}")
    return complaints


def by_kind(rows: Sequence[Row], kinds: Kinds) -> dict[str, list[Row]]:
    """Group rows by their own ``kind``. Raises: ConfigError for an unknown kind."""
    sorted_out: dict[str, list[Row]] = {}
    for row in rows:
        _columns(row["kind"], kinds)
        sorted_out.setdefault(row["kind"], []).append(row)
    return sorted_out


def _reason(error: OSError) -> str:
    # Errors of pyarrow have a number, but not the system's text for it.
    return os.strerror(error.errno) if error.errno else str(error)


def _columns(kind: str, kinds: Kinds) -> Mapping[str, type]:
    if kind not in kinds:
        raise ConfigError(f"no rows of kind {kind!r}: there are {', '.join(kinds)}")
    return kinds[kind]
