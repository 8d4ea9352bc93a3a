"""The figures, the table and the page about the time until readers see a write."""

from __future__ import annotations

from harness.report import text
from harness.report.listing import Column, Listing, Report

_METHOD = """\
A writer numbers its writes to one key, about a hundred a second, and commits once per interval. A reader at each level
looks the key up all the time. Lookups beside commits and the cost of iterators are among the ratios and suites of a
store by itself.
"""


_LAGS = Listing(
    "Level {durability}: how long a write takes to be seen by a reader on another thread",
    "visibility_figure order by durability, isolation_level, backend, committed_by, commit_interval_s",
    (
        Column("backend"),
        Column("committed by", "committed_by"),
        Column("every", "commit_interval_s", text.duration),
        Column("isolation level", "isolation_level"),
        Column("writes", "writes", text.exact),
        Column("seen after, median", "lag_p50_s", text.duration),
        Column("p99", "lag_p99_s", text.duration),
        Column("longest", "lag_max_s", text.duration),
        Column("p99 / interval", "lag_p99_s / commit_interval_s", text.ratio),
    ),
)
_LATEST = (
    "The longest 99th percentile at READ_COMMITTED was {ratio(max(lag_p99_s / commit_interval_s))} commit intervals."
)


REPORT = Report(
    ("visibility",),
    "readers",
    "Readers on other threads",
    (
        "A reader at READ_COMMITTED sees a write once it is committed, which takes up to one commit interval.",
        "A reader at READ_UNCOMMITTED sees it at once.",
        (_LATEST, "visibility_figure where isolation_level = 'READ_COMMITTED'"),
    ),
    (_LAGS,),
    _METHOD,
)
