"""The figures, the tables, the plot and the page about stores of many records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.budget import TIME_OVER
from harness.experiments.scale.scale import LEVEL
from harness.experiments.scale.steps import COMMIT_BYTES_MAX, COMMIT_RECORDS, LOOKUPS_MAX, PARTS, SCAN_RECORDS
from harness.processes.load import is_busy
from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import Figure, Figures, in_order
from harness.report.page import Page, PageFinding, Table, tables
from harness.report.rows import Row

_METHOD = f"""\
A process puts all records into a new store at level CHANGELOG, in commits of {COMMIT_RECORDS:,}. Runs after the 23rd of
November 2026 also bound a commit by {text.size(COMMIT_BYTES_MAX)}. Keys are hashes, so those of a commit are at random
places of the store. *Longest commit* is that of the whole load. A fresh process opens the store, whose files are in the
page cache as far as they fit. It looks up to {LOOKUPS_MAX:,} keys of each kind up: *old* keys are from the first tenth
of the puts, *new* ones from the last, *absent* ones were never put. *Scans* read {SCAN_RECORDS:,} records from a key at
random, *whole scan* all of them. A third process restores a task's store of the same records from its changelog, which
has them in the order of the puts.

*Peak memory* is that of a process, with the pages of files that it maps: for LMDB that is mostly page cache. *Disk* is
counted after a clean close. Each value that is looked up, the number of records and their order are checked.

With a limit, all of these processes are in a cgroup that limits their memory and their page cache. Each figure is from
one store, not repeated.
"""


def scale(rows: Iterable[Row]) -> list[Figure]:
    """Return a figure for each store, with ``disk_times``, its bytes on disk over those of its keys and values."""
    return in_order(
        {**row, "kind": "scale", "busy": is_busy(row), "disk_times": _times(row["bytes_on_disk"], row["state_bytes"])}
        for row in rows
    )


def parts(rows: Iterable[Row]) -> list[Figure]:
    """Return a figure for each part of the puts."""
    return in_order({**row, "kind": "scale_part"} for row in rows)


def is_cut(row: Mapping[str, Any]) -> bool:
    """Return True if the time was over before all of a row was measured. That is no failure."""
    return str(row["problem"]).startswith(TIME_OVER)


def finding(figures: Sequence[Figure]) -> PageFinding:
    """Return how many stores showed what was put. Those whose time was over, or that had no limit, do not count."""
    tried = [figure for figure in figures if not is_cut(figure) and not figure["unlimited"]]
    good = sum(not figure["problem"] for figure in tried)
    return PageFinding(
        "stores of many records", len(tried), good, "showed every record, in the memory that they may use"
    )


def _times(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def scale_tables(figures: Figures) -> list[Table]:
    """Return a table of speeds and one of sizes."""
    own = figures["scale"]
    if not own:
        return []
    head = ("backend", "records", "value", "memory limit")
    speeds = Table(
        "Speeds at level CHANGELOG, per second",
        (*head, "puts", "gets, old", "gets, new", "gets, absent", "scans", "whole scan", "restored", "longest commit"),
        [
            [
                *_subject(figure),
                *(
                    text.count(figure[name])
                    for name in (
                        "puts_per_s",
                        "gets_old_per_s",
                        "gets_new_per_s",
                        "gets_absent_per_s",
                        "scan_per_s",
                        "whole_scan_per_s",
                        "restore_per_s",
                    )
                ),
                text.duration(figure["commit_max_s"]),
            ]
            for figure in own
        ],
        range(1, 12),
    )
    sizes = Table(
        "Memory, disk and time to open at level CHANGELOG",
        (
            *head,
            "keys and values",
            "disk",
            "disk, times the data",
            "peak memory, puts",
            "reads",
            "restore",
            "open",
            "restore in",
            "note",
        ),
        [
            [
                *_subject(figure),
                text.size(figure["state_bytes"]),
                text.size(figure["bytes_on_disk"]),
                text.ratio(figure["disk_times"]),
                *(text.size(figure[name]) for name in ("load_peak_bytes", "read_peak_bytes", "restore_peak_bytes")),
                text.duration(figure["open_s"]),
                text.duration(figure["restore_s"]),
                _note(figure),
            ]
            for figure in own
        ],
        range(1, 12),
    )
    return [speeds, sizes]


def _subject(figure: Figure) -> list[str]:
    limit = figure["memory_max_bytes"]
    shown = text.size(limit) if limit else text.NONE
    return [figure["backend"], text.exact(figure["records"]), f"{figure['value_bytes']:,} B", shown]


def _note(figure: Figure) -> str:
    if figure["unlimited"]:
        return f"not measured: {figure['unlimited']}"
    return figure["problem"] or ("busy machine" if figure["busy"] else text.NONE)


def scale_chart(figures: Sequence[Figure]) -> Chart:
    """Return puts per second of each tenth of the records: a panel for each size, and for each limit of memory."""
    lines: dict[tuple[int, int, int], dict[str, list[tuple[int, float]]]] = {}
    for figure in figures:
        cell = (figure["memory_max_bytes"], figure["value_bytes"], figure["records"])
        line = lines.setdefault(cell, {}).setdefault(figure["backend"], [])
        line.append((figure["records_there"], figure["puts_per_s"]))
    steps = [f"{100 * part // PARTS}" for part in range(1, PARTS + 1)]
    panels = [
        Panel(
            _title(*cell),
            [
                Mark(backend, speed, step=step, measure=step)
                for backend, line in sorted(of_cell.items())
                if len(line) == PARTS
                for step, (_, speed) in zip(steps, sorted(line), strict=True)
            ],
            str(LEVEL),
        )
        for cell, of_cell in sorted(lines.items())
    ]
    title = "Puts per second, by how many of its records a store has"
    return Chart("scale", title, "lines", panels, "puts/s", "puts/s", "% of the records")


def _title(memory_max_bytes: int, value_bytes: int, records: int) -> str:
    limit = f", {text.size(memory_max_bytes)} of memory" if memory_max_bytes else ""
    return f"{records:,} records of {value_bytes:,} bytes{limit}"


def page(figures: Figures) -> Page:
    """Return the page."""
    own = [figure for figure in figures["scale"] if figure["puts_per_s"]]
    most = f"up to {text.exact(max(figure['records'] for figure in own))}" if own else "many"
    return Page(
        "scale",
        "Stores of many records",
        (
            f"Stores are filled with {most} records, whose keys are at random.",
            "Then they are looked up, scanned, opened and restored.",
        ),
        tables(*scale_tables(figures)) if figures["scale"] else (),
        _METHOD,
        findings=(finding(figures["scale"]),),
        plots=(scale_chart(figures["scale_part"]),),
    )
