"""A first look at a user's event log on this machine: its columns, and the rows that cannot be events.

It needs no Spark, so a wrong name of a column is answered at once. Spark reads the log itself; this module only finds
what an error has to name: a file, a line, and how the line begins.
"""

from __future__ import annotations

import bz2
import calendar
import csv
import gzip
import json
import re
import sys
import zlib
import zoneinfo
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
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

    A column for the time is refused if none of the first rows has a time in it.

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
    found = list(islice(_values(log, str(log.time), form), ROWS_LOOKED_AT))
    if found and not any(map(is_event_time, found)):
        raise EventLogColumnError(
            f"column {log.time!r} of {log.path} holds no times, but {listed([str(found[0])])}: name a column with "
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
                found = json.loads(line)
                if isinstance(found, dict):
                    yield found


def missing_column(path: str, name: str, role: str, columns: list[str]) -> EventLogColumnError:
    """Return the error for a column that the log does not have."""
    return EventLogColumnError(
        f"{path} has no column {name!r} for the {role}: its columns are {listed(columns)}{nearest(name, columns)}"
    )


def listed(columns: list[str]) -> str:
    """Return names of columns for a message: shortened, and without control characters."""
    shown = [name if name.isprintable() else ascii(name) for name in columns[:COLUMNS_SHOWN]]
    shown = [name if len(name) <= EXCERPT_CHARACTERS else f"{name[:EXCERPT_CHARACTERS]}..." for name in shown]
    return ", ".join(shown) + (f" and {len(columns) - len(shown):,} more" if len(columns) > len(shown) else "")


def bad_rows(log: EventLog) -> Iterator[BadRow]:
    """Yield the rows of CSV or JSON lines that cannot be events, in the order of the files; none of a remote log."""
    form = log.format()
    for file in _files(log):
        if form is EventLogFormat.CSV:
            yield from _bad_cells(log, file)
        elif form is EventLogFormat.JSON_LINES:
            yield from _bad_objects(log, file)


def _bad_cells(log: EventLog, file: Path) -> Iterator[BadRow]:
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
                reason = _reason(log, cells)
            if reason:
                yield BadRow(str(file), line, _excerpt(",".join(row)), reason)


def _bad_objects(log: EventLog, file: Path) -> Iterator[BadRow]:
    with _opened(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            reason = _reason(log, found) if isinstance(found, dict) else "it is not a JSON object"
            if reason:
                yield BadRow(str(file), number, _excerpt(line), reason)


def _reason(log: EventLog, row: dict[str, object]) -> str:
    key = row.get(log.key)
    if key is None or key == "":
        return f"it has no {log.key!r}"
    if "\N{REPLACEMENT CHARACTER}" in str(key):
        return f"its {log.key!r} is not UTF-8"
    if log.time is not None and not is_event_time(row.get(log.time)):
        return f"its {log.time!r} is not a time"
    return ""


def _columns(log: EventLog, form: EventLogFormat) -> list[str]:
    """Return the columns of the log's files, in their order; none if this machine cannot tell."""
    found: dict[str, None] = {}
    for file in _files(log):
        try:
            found.update(dict.fromkeys(_columns_of(file, form)))
        except _UNREADABLE:
            return []  # Spark says what is wrong with the file.
        if form is EventLogFormat.CSV:
            break  # Spark compares the headers of the other files with that of the first.
    return list(found)


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
    seen = [file for file in files if not file.name.startswith(("_", "."))]
    return [] if any(file.suffix == ".zst" for file in seen) else seen


def _opened(file: Path) -> IO[str]:
    csv.field_size_limit(sys.maxsize)
    opener = _OPENERS.get(file.suffix.lower(), open)
    opened: IO[str] = opener(file, "rt", encoding="utf-8-sig", errors="replace", newline="")  # type: ignore[operator]
    return opened


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    shown = line if len(line) <= EXCERPT_CHARACTERS else f"{line[:EXCERPT_CHARACTERS]}..."
    return shown if shown.isprintable() else ascii(shown)


_BLANK = "".join(map(chr, range(0x21))) + "\x7f"
_LONG = range(-(1 << 63), 1 << 63)
_YEAR_MAX = 294_246
"""The last year whose microseconds since 1970 fit into 64 bits."""
_CLOCK = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.\d*)?(?P<zone>[^\d.].*)?)?)?"
_DATED = re.compile(
    rf"(?P<year>[+-]?\d{{4,6}})(?:-(?P<month>\d{{1,2}})(?:-(?P<day>\d{{1,2}})(?:[ T]{_CLOCK})?)?)?",
    re.ASCII | re.DOTALL,
)
_TIMED = re.compile(rf"(?:T{_CLOCK}|(?=\d+:){_CLOCK.replace('?P<', '?P<plain_')})", re.ASCII | re.DOTALL)
_OFFSET = re.compile(r"[+-](?:(\d\d?)(?::(\d\d?)|:(\d\d):(\d\d))?|(?P<h>\d\d)(?P<m>\d\d)(?P<s>\d\d)?)", re.ASCII)
_SHORT_IDS = re.compile(
    "ACT|AET|AGT|ART|AST|BET|BST|CAT|CNT|CST|CTT|EAT|ECT|EST|HST|IET|IST|JST|MIT|MST|NET|NST|PLT|PNT|PRT|PST|SST|VST"
)
"""Java's ``ZoneId.SHORT_IDS``."""


def is_event_time(value: object) -> bool:
    """Return whether Spark reads ``value``, a cell or a value of JSON, as a time: whole milliseconds, or a timestamp.

    This decides without Spark what its SQL would. Source: Spark 4, ``SparkDateTimeUtils.parseTimestampString`` and
    ``getZoneId``; Java, ``ZoneId.of``.
    """
    given = str(value)
    text = given.strip(_BLANK)
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return len(text) <= 20 and int(text) in _LONG
    found = _DATED.fullmatch(text)
    if found:
        return _is_date(found["year"], found["month"], found["day"]) and _is_clock(
            found["hour"], found["minute"], found["second"], found["zone"]
        )
    found = _TIMED.fullmatch(text)
    if found is None or given[:1] != text[:1] == "T":
        return False
    prefix = "" if found["hour"] else "plain_"
    return _is_clock(*(found[prefix + part] for part in ("hour", "minute", "second", "zone")))


def _is_date(year: str, month: str | None, day: str | None) -> bool:
    number, in_year = int(year), int(month or 1)
    if abs(number) > _YEAR_MAX or not 1 <= in_year <= 12:
        return False
    # The calendar repeats after 400 years; Python's has no year 0.
    return 1 <= int(day or 1) <= calendar.monthrange(number % 400 + 2000, in_year)[1]


def _is_clock(hour: str | None, minute: str | None, second: str | None, zone: str | None) -> bool:
    if int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        return False
    return zone is None or _is_zone(zone.strip(_BLANK))


def _is_zone(name: str) -> bool:
    if name == "Z" or _SHORT_IDS.fullmatch(name):
        return True
    for prefix in ("UTC", "GMT", "UT", ""):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and (_is_offset(rest) or (prefix and not rest)):
            return True
    return name in _regions()


def _is_offset(text: str) -> bool:
    found = _OFFSET.fullmatch(text)
    if found is None:
        return False
    hours, minutes, seconds = (
        int(next(filter(None, parts), 0))
        for parts in (found.group(1, "h"), found.group(2, 3, "m"), found.group(4, "s"))
    )
    return minutes < 60 and seconds < 60 and 3600 * hours + 60 * minutes + seconds <= 18 * 3600


@cache
def _regions() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())
