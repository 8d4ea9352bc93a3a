"""The tables of a report, from its figures. Each names its durability level, in its caption or in a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.report import text
from harness.report.choice import Choice, reference
from harness.report.figures import Figure

Figures = Mapping[str, Sequence[Figure]]


class Table(NamedTuple):
    """Cells as text; columns whose places are in ``right`` hold numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()

    def markdown(self) -> str:
        """The caption and the table, or the caption with what stands for an empty one."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}.\n"
        return f"{self.caption}:\n\n{text.table(self.head, self.rows, self.right)}"

    def plain(self) -> str:
        """The same for a terminal."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}."
        caption = self.caption.replace("`", "")
        return f"{caption}:\n{text.plain_table(self.head, self.rows, self.right)}"


def choice_table(found: Sequence[Choice]) -> Table:
    """Need, level, backend, figure, the next best, and what to know about it."""
    rows = [
        [
            choice.need,
            choice.durability,
            f"**{choice.backend}**" if choice.backend else text.NOT_MEASURED,
            choice.figure,
            choice.next_best,
            choice.remark,
        ]
        for choice in found
    ]
    return Table(
        "Worked out from the figures below", ("need", "level", "pick", "why: its figure", "next best", "note"), rows
    )


def summary_table(figures: Figures, backends: Mapping[str, Mapping[str, Any]], durability: str = "CHANGELOG") -> Table:
    """One line per backend at one level: the table of README and of the terminal."""
    at = reference(figures["throughput"], durability)
    rates = {figure["backend"]: figure for figure in figures["throughput"] if at is not None and at.holds(figure)}
    names = sorted({*rates, *(figure["backend"] for figure in figures["crash"] if figure["durability"] == durability)})
    rows = []
    for name in sorted(names, key=lambda name: -(rates[name]["records_per_s"] if name in rates else 0)):
        figure = rates.get(name, {})
        facts = backends.get(name, {})
        rows.append(
            [
                name,
                _kept(facts),
                text.count(figure.get("records_per_s")),
                text.latency(figure.get("commit_p99_us")),
                text.duration(figure.get("open_after_kill_s")),
                text.size(figure.get("peak_memory_bytes")),
                text.size(figure.get("bytes_on_disk")),
                crash_count(figures, name, durability),
            ]
        )
    what = f", {at.text}" if at is not None else ""
    head = (
        "backend",
        "after a crash",
        "records/s",
        "commit, p99",
        "ready after a kill",
        "peak memory",
        "on disk",
        "crash trials as expected",
    )
    return Table(f"Level {durability}{what}", head, rows, range(2, 8))


def crash_count(figures: Figures, backend: str, durability: str) -> str:
    """``120 of 120``: a backend's crash trials at a level, those with a defect built in on purpose left out."""
    cells = [
        figure
        for figure in figures["crash"]
        if figure["backend"] == backend and figure["durability"] == durability and figure["expected"] == "valid"
    ]
    if not cells:
        return text.NONE
    return f"{sum(cell['as_expected'] for cell in cells)} of {sum(cell['trials'] for cell in cells)}"


def throughput_tables(figures: Figures) -> list[Table]:
    """One table per workload, level and number of partitions."""
    tables = []
    for workload, durability, partitions in _distinct(figures["throughput"], "workload", "durability", "partitions"):
        rows = [
            [
                figure["backend"],
                text.exact(figure["records_per_commit"]),
                text.count(figure["records_per_s"]),
                f"{text.count(figure['records_per_s_low'])} to {text.count(figure['records_per_s_high'])}",
                text.latency(figure["commit_p50_us"]),
                text.latency(figure["commit_p99_us"]),
                text.latency(figure["commit_max_us"]),
                text.size(figure["bytes_written"]),
                text.size(figure["bytes_on_disk"]),
                text.size(figure["peak_memory_bytes"]),
                text.exact(figure["open_files"]),
                text.duration(figure["open_after_kill_s"]),
                figure["end_state"],
            ]
            for figure in figures["throughput"]
            if (figure["workload"], figure["durability"], figure["partitions"]) == (workload, durability, partitions)
        ]
        repeats = max(
            figure["repeats"]
            for figure in figures["throughput"]
            if (figure["workload"], figure["durability"]) == (workload, durability)
        )
        records = max(figure["records"] for figure in figures["throughput"] if figure["workload"] == workload)
        caption = (
            f"Workload `{workload}`, level {durability}, {partitions} partition{'s' * (partitions != 1)}, "
            f"{text.exact(records)} records, medians of {repeats}"
        )
        head = (
            "backend",
            "records per commit",
            "records/s",
            "lowest to highest",
            "commit p50",
            "p99",
            "longest",
            "written",
            "on disk",
            "peak memory",
            "open files",
            "ready after a kill",
            "end state against Spark SQL",
        )
        tables.append(Table(caption, head, rows, range(1, 12)))
    return tables


def opening_tables(figures: Figures) -> list[Table]:
    """One table per level."""
    head = ("backend", "records in the store", "open", "restore", "replayed", "ready, median", "ready, slowest")
    return [
        Table(
            f"Level {durability}, killed with a commit open, then opened in a fresh process",
            head,
            [
                [
                    figure["backend"],
                    text.exact(figure["records"]),
                    text.duration(figure["open_s"]),
                    text.duration(figure["restore_s"]),
                    text.exact(figure["replayed"]),
                    text.duration(figure["ready_s"]),
                    text.duration(figure["ready_s_high"]),
                ]
                for figure in figures["opening"]
                if figure["durability"] == durability
            ],
            range(1, 7),
        )
        for (durability,) in _distinct(figures["opening"], "durability")
    ]


def ratio_table(figures: Figures) -> Table:
    """Each ratio with its threshold and whether it is reached."""
    met = {True: "yes", False: "**no**", None: text.NONE}
    rows = [
        [
            figure["claim"],
            figure["durability"] or text.NONE,
            text.exact(figure["records_per_commit"]),
            figure["subject"],
            figure["yardstick"],
            f"{figure['ratio']:.2f}",
            text.NONE if figure["at_least"] is None else f"{figure['at_least']:g}",
            met[figure["met"]],
        ]
        for figure in figures["ratio"]
    ]
    head = ("claim", "level", "records per commit", "backend", "against", "ratio", "at least", "reached")
    return Table("Ratios of medians within this run; more than 1 is faster than the yardstick", head, rows, (2, 5, 6))


def benchmark_tables(figures: Figures) -> list[Table]:
    """One table per suite and level."""
    head = (
        "benchmark",
        "subject",
        "records per commit",
        "keys",
        "records/s",
        "median of a round",
        "interquartile range",
        "rounds",
    )
    return [
        Table(
            f"Suite `{suite}`, level {durability or text.NONE}",
            head,
            [
                [
                    figure["name"],
                    figure["subject"],
                    text.exact(figure["records_per_commit"]),
                    figure["distribution"] or text.NONE,
                    text.count(figure["records_per_s"]),
                    text.duration(figure["median_s"]),
                    text.duration(figure["iqr_s"]),
                    text.exact(figure["rounds"]),
                ]
                for figure in figures["benchmark"]
                if (figure["suite"], figure["durability"]) == (suite, durability)
            ],
            (2, 4, 5, 6, 7),
        )
        for suite, durability in _distinct(figures["benchmark"], "suite", "durability")
    ]


def crash_tables(figures: Figures, *, expected: str) -> list[Table]:
    """Backends by failpoints, one table per scenario, guarantee and level; a cell counts trials by how they ended."""
    cells = [figure for figure in figures["crash"] if figure["expected"] == expected]
    tables = []
    for scenario, guarantee, durability in _distinct(cells, "scenario", "guarantee", "durability"):
        own = [
            cell
            for cell in cells
            if (cell["scenario"], cell["guarantee"], cell["durability"]) == (scenario, guarantee, durability)
        ]
        names = sorted({cell["backend"] for cell in own})
        rows = []
        for place in sorted({place_of(cell) for cell in own}):
            counts = [
                _outcome([cell for cell in own if place_of(cell) == place and cell["backend"] == name])
                for name in names
            ]
            rows.append([f"`{place}`", *counts])
        caption = f"`{scenario}`, {guarantee.replace('_', ' ')}, level {durability}"
        tables.append(Table(caption, ("what befalls it", *names), rows, range(1, 1 + len(names))))
    return tables


def place_of(cell: Figure) -> str:
    """Where a trial's process is killed, or what else befalls it."""
    return str(cell["failpoint"] or cell["fault"])


def _outcome(cells: Sequence[Figure]) -> str:
    if not cells:
        return ""
    counts = {name: sum(cell[name] for cell in cells) for name in ("valid", "anomaly", "unknown")}
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number)


def _distinct(figures: Sequence[Figure], *names: str) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(tuple(figure[name] for name in names) for figure in figures))


def _kept(facts: Mapping[str, Any]) -> str:
    if not facts:
        return text.NONE
    if not facts["persistent"]:
        return "nothing left: rebuilt whole"
    return "whole; the tail is replayed" if facts["transactional"] else "wiped and rebuilt whole"
