"""A first look at a user's event log on this machine: its columns, and the rows that cannot be events.

It needs no Spark, so a wrong name of a column is answered at once. Spark reads the log itself; this module only finds
what an error has to name: a file, a line, and how the line begins.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import pyarrow.parquet
from pyarrow.lib import ArrowException

from harness.workloads.event_log import EventLog, EventLogColumnError, EventLogFormat
from stores.errors import nearest

ROWS_LOOKED_AT = 1_000
"""The rows of a file of JSON lines in which a column must show: each row names its own columns."""
EXCERPT_CHARACTERS = 60
COLUMNS_SHOWN = 30
_UNREADABLE = (OSError, EOFError, UnicodeError, zlib.error, csv.Error, ArrowException)
"""The errors that reading a damaged file may raise."""
_LIKE_A_TIME = re.compile(r"\s*[+-]?T?\d")
"""The beginning of a number and of a date. Whether the rest is a time only Spark can say."""
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open}


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be an event: its file, the number of its first line from 1, its beginning, and the reason."""

    file: str
    line: int
    excerpt: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line:,}: {self.reason}: {self.excerpt}"


def check_columns(log: EventLog) -> None:
    """Check that the log has the columns for key and time, as far as this machine can see without Spark.

    A column for the time is refused if nothing in the first rows begins like a time.

    Raises: EventLogColumnError; and as ``EventLog.format``.
    """
    form = log.format()
    columns = _columns(log, form)
    for name, role in ((log.key, "key"), (log.time, "time")):
        if name is not None and columns and name not in columns:
            raise missing_column(log.path, name, role, columns)
    if log.time is not None and columns:
        _check_times(log, form)


def _check_times(log: EventLog, form: EventLogFormat) -> None:
    texts = list(islice(_values(log, str(log.time), form), ROWS_LOOKED_AT))
    if texts and not any(_LIKE_A_TIME.match(str(value)) for value in texts):
        raise EventLogColumnError(
            f"column {log.time!r} of {log.path} holds no times, but {listed([str(texts[0])])}: name a column with "
            "milliseconds since 1970, or with a date and time such as 2013-01-31T15:04:05Z"
        )


def _values(log: EventLog, column: str, form: EventLogFormat) -> Iterator[object]:
    """Yield the values of a column that are not empty, until a file cannot be read; Spark says why."""
    with suppress(*_UNREADABLE):
        for file in _files(log):
            if form is EventLogFormat.PARQUET:
                for batch in pyarrow.parquet.ParquetFile(file).iter_batches(ROWS_LOOKED_AT, columns=[column]):
                    if not _is_textual(batch.schema.field(column).type):
                        return
                    yield from filter(None, batch.column(0).to_pylist())
            else:
                for row in _rows(file, form):
                    if row.get(column) not in (None, ""):
                        yield row[column]


def _is_textual(type_: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_string(type_) or pyarrow.types.is_large_string(type_))


def _rows(file: Path, form: EventLogFormat) -> Iterator[Mapping[str, object]]:
    with _opened(file) as lines:
        if form is EventLogFormat.CSV:
            reader = csv.reader(lines)
            header = next(reader, [])
            for row in reader:
                yield dict(zip(header, row, strict=False))
            return
        for line in lines:
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event


def missing_column(path: str, name: str, role: str, columns: list[str]) -> EventLogColumnError:
    """Return the error for a column that the log does not have."""
    return EventLogColumnError(
        f"{path} has no column {name!r} for the {role}: its columns are {listed(columns)}{nearest(name, columns)}"
    )


def listed(columns: list[str]) -> str:
    """Return names of columns for a message: shortened, and without control characters."""
    names = [name if name.isprintable() else ascii(name) for name in columns[:COLUMNS_SHOWN]]
    names = [name if len(name) <= EXCERPT_CHARACTERS else f"{name[:EXCERPT_CHARACTERS]}..." for name in names]
    return ", ".join(names) + (f" and {len(columns) - len(names):,} more" if len(columns) > len(names) else "")


def bad_rows(log: EventLog, no_times: Collection[str] = ()) -> Iterator[BadRow]:
    """Yield the rows of CSV or JSON lines that cannot be events, in the order of the files; none of a remote log.

    ``no_times`` are texts that Spark does not read as times.
    """
    form = log.format()
    for file in _files(log):
        if form is EventLogFormat.CSV:
            yield from _bad_cells(log, file, no_times)
        elif form is EventLogFormat.JSON_LINES:
            yield from _bad_objects(log, file, no_times)


def _bad_cells(log: EventLog, file: Path, no_times: Collection[str]) -> Iterator[BadRow]:
    with _opened(file) as lines:
        reader = csv.reader(lines)
        header = next(reader, [])
        before = reader.line_num
        for row in reader:
            line, before = before + 1, reader.line_num
            if not row:
                continue
            cells: dict[str, object] = dict(zip(header, row, strict=False))
            if len(row) != len(header):
                reason = f"it has {len(row):,} cells, and the header has {len(header):,}"
            else:
                reason = _reason(log, cells, no_times)
            if reason:
                yield BadRow(str(file), line, _excerpt(",".join(row)), reason)


def _bad_objects(log: EventLog, file: Path, no_times: Collection[str]) -> Iterator[BadRow]:
    with _opened(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            reason = _reason(log, event, no_times) if isinstance(event, dict) else "it is not a JSON object"
            if reason:
                yield BadRow(str(file), number, _excerpt(line), reason)


def _reason(log: EventLog, row: dict[str, object], no_times: Collection[str]) -> str:
    key = row.get(log.key)
    if key is None or key == "":
        return f"it has no {log.key!r}"
    if "\N{REPLACEMENT CHARACTER}" in str(key):
        return f"its {log.key!r} is not UTF-8"
    time = None if log.time is None else row.get(log.time)
    if log.time is not None and (time in (None, "") or str(time) in no_times):
        return f"its {log.time!r} is not a time"
    return ""


def _columns(log: EventLog, form: EventLogFormat) -> list[str]:
    """Return the columns of the log's files, in their order; none if this machine cannot tell."""
    names: dict[str, None] = {}
    for file in _files(log):
        try:
            names.update(dict.fromkeys(_columns_of(file, form)))
        except _UNREADABLE:
            return []  # Spark says what is wrong with the file.
        if form is EventLogFormat.CSV:
            break  # Spark compares the headers of the other files with that of the first.
    return list(names)


def _columns_of(file: Path, form: EventLogFormat) -> list[str]:
    if form is EventLogFormat.PARQUET:
        names: list[str] = pyarrow.parquet.read_schema(file).names
        return names
    with _opened(file) as lines:
        if form is EventLogFormat.CSV:
            return next(csv.reader(lines), [])
        rows = []
        for line in islice(lines, ROWS_LOOKED_AT):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
        return list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))


def _files(log: EventLog) -> list[Path]:
    """Return the log's files on this machine, by name; none if they have a compression that only Spark reads."""
    if log.is_remote:
        return []
    path = Path(log.path)
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    visible = [file for file in files if not file.name.startswith(("_", "."))]
    return [] if any(file.suffix == ".zst" for file in visible) else visible


def _opened(file: Path) -> IO[str]:
    csv.field_size_limit(sys.maxsize)
    opener = _OPENERS.get(file.suffix.lower(), open)
    lines: IO[str] = opener(file, "rt", encoding="utf-8-sig", errors="replace", newline="")  # type: ignore[operator]
    return lines


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    excerpt = line if len(line) <= EXCERPT_CHARACTERS else f"{line[:EXCERPT_CHARACTERS]}..."
    return excerpt if excerpt.isprintable() else ascii(excerpt)
