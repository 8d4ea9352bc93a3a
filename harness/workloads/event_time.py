"""Texts that Spark reads as the time of an event: whole milliseconds, or a timestamp as its SQL casts one.

This decides without Spark what Spark would. Source: Spark 4, ``SparkDateTimeUtils.parseTimestampString`` and
``getZoneId``; Java, ``ZoneId.of``.
"""

from __future__ import annotations

import calendar
import re
import zoneinfo
from functools import cache

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
    """Return whether Spark reads ``value``, a cell or a value of JSON, as a time."""
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
