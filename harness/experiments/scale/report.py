"""The figures, the tables, the plot and the page about stores of many records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.budget import TIME_OVER
from harness.experiments.scale.steps import COMMIT_BYTES_MAX, COMMIT_RECORDS, LEVEL, LOOKUPS_MAX, PARTS, SCAN_RECORDS
from harness.report import text
from harness.report.charts import Chart
from harness.report.database import busy
from harness.report.figures import Figure
from harness.report.listing import Column, Listing, Plot, Report
from harness.report.page import PageFinding

_METHOD = f"""\
A process puts all records into a new store at level CHANGELOG, in commits of {COMMIT_RECORDS:,}. Runs after the 23rd of
November 2026 also bound a commit by {text.size(COMMIT_BYTES_MAX)}. Keys are hashes, so those of a commit are at random
places of the store. *Longest commit* is that of the whole load. A fresh process opens the store, whose files are in the
page cache as far as they fit. It looks up to {LOOKUPS_MAX:,} keys of each kind up: *old* keys are from the first tenth
of the puts, *new* ones from the last, *absent* ones were never put. *Scans* read {SCAN_RECORDS:,} records from a key at
random, *whole scan* all of them. A third process restores a task's store of the same records from its changelog, which
has them in the order of the puts.

*Peak memory* is that of a process, with the pages of files that it maps: for LMDB that is mostly page cache. *Disk* is
counted after a clean close, and *compacted* after `txstores compact`. Each value that is looked up, the number of
records and their order are checked.

With a limit, all of these processes are in a cgroup that limits their memory and page cache. The store has half of it
as `memory_max_bytes`. Each figure is from one store, not repeated.
"""


QUERY = f"""select *, {busy("scale")} as busy, 1.0 * bytes_on_disk / nullif(state_bytes, 0) as disk_times,
    1.0 * compacted_bytes / nullif(state_bytes, 0) as compacted_times
    from scale order by backend, busy, bytes_on_disk, records"""
"""The stores, with the bytes on disk over those of the keys and values, before and after a compaction."""


OUTGREW = "it needs more memory than its limit"
"""The beginning of the problem of a store whose process the kernel killed for that."""


def is_cut(row: Mapping[str, Any]) -> bool:
    """Return True if the time was over before all of a row was measured. That is no failure."""
    return str(row["problem"]).startswith(TIME_OVER)


def findings(figures: Sequence[Figure]) -> list[PageFinding]:
    """Return how many stores showed what was put, and a finding about those that their limit on memory has killed.

    These say nothing about records. Stores whose time was over, or that could not have a limit, do not count.
    """
    measured = [figure for figure in figures if not is_cut(figure) and not figure["unlimited"]]
    outgrown = [figure for figure in measured if str(figure["problem"]).startswith(OUTGREW)]
    whole = [figure for figure in measured if figure not in outgrown]
    good = sum(not figure["problem"] for figure in whole)
    verdict = "showed every record, in the memory that they may use"
    results = [PageFinding("stores of many records", len(whole), good, verdict)]
    if outgrown:
        needs = "; ".join(map(_need, outgrown))
        limited = sum(bool(figure["memory_max_bytes"]) for figure in measured)
        results.append(
            PageFinding("limits on the memory of a store", limited, limited - len(outgrown), f"were enough: {needs}")
        )
    return results


def _need(figure: Figure) -> str:
    state, limit = text.size(figure["state_bytes"]), text.size(figure["memory_max_bytes"])
    return f"{figure['backend']} with {state} of keys and values needs more than {limit}"


_STORE = (
    Column("backend"),
    Column("records", "records", text.exact),
    Column("value", "value_bytes", lambda bytes_: f"{bytes_:,} B"),
    Column("memory limit", "size(nullif(memory_max_bytes, 0))", right=True),
)
_SPEEDS = Listing(
    "Speeds at level CHANGELOG, per second",
    "scale_figure",
    (
        *_STORE,
        Column("puts", "puts_per_s", text.count),
        Column("gets, old", "gets_old_per_s", text.count),
        Column("gets, new", "gets_new_per_s", text.count),
        Column("gets, absent", "gets_absent_per_s", text.count),
        Column("scans", "scan_per_s", text.count),
        Column("whole scan", "whole_scan_per_s", text.count),
        Column("restored", "restore_per_s", text.count),
        Column("longest commit", "commit_max_s", text.duration),
    ),
)
_SIZES = Listing(
    "Memory, disk and time to open at level CHANGELOG",
    "scale_figure",
    (
        *_STORE,
        Column("keys and values", "state_bytes", text.size),
        Column("disk", "bytes_on_disk", text.size),
        Column("disk, times the data", "disk_times", text.ratio),
        Column("compacted", "compacted_times", text.ratio),
        Column("compacted in", "compact_s", text.duration),
        Column("peak memory, puts", "load_peak_bytes", text.size),
        Column("reads", "read_peak_bytes", text.size),
        Column("restore", "restore_peak_bytes", text.size),
        Column("open", "open_s", text.duration),
        Column("restore in", "restore_s", text.duration),
        Column(
            "note",
            f"""case when unlimited <> '' then 'not measured: ' || unlimited when problem <> '' then problem
                when busy then 'busy machine' else '{text.NONE}' end""",
        ),
    ),
)


_MARKS = f"""with part as (
        select *, count(*) over store as parts,
            cast({100 // PARTS} * row_number() over (store order by records_there) as text) as step
        from scale_part_figure window store as (partition by memory_max_bytes, value_bytes, records, backend)
    )
    select exact(records) || ' records of ' || exact(value_bytes) || ' bytes'
            || iif(memory_max_bytes, ', ' || size(memory_max_bytes) || ' of memory', '') as title,
        '{LEVEL}' as level, backend, puts_per_s as value, step, step as measure
    from part where parts = {PARTS} order by memory_max_bytes, value_bytes, records, backend, records_there"""


REPORT = Report(
    ("scale",),
    "scale",
    "Stores of many records",
    (
        (
            "Stores are filled with {iif(count(*), 'up to ' || exact(max(records)), 'many')} records, whose keys are "
            "at random.",
            "scale_figure where puts_per_s",
        ),
        "Then they are looked up, scanned, opened and restored.",
    ),
    (_SPEEDS, _SIZES),
    _METHOD,
    (
        Plot(
            Chart(
                "scale",
                "Puts per second, by how many of its records a store has",
                "lines",
                (),
                "puts/s",
                "puts/s",
                "% of the records",
            ),
            _MARKS,
        ),
    ),
)
