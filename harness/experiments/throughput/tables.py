"""The tables of throughput. Each names its durability level in its caption."""

from __future__ import annotations

from harness.report import text
from harness.report.figures import Figures, distinct
from harness.report.interval import with_interval
from harness.report.table import Table


def throughput_tables(figures: Figures) -> list[Table]:
    """Return one table per workload, level and number of partitions."""
    tables = []
    for workload, durability, partitions in distinct(figures["throughput"], "workload", "durability", "partitions"):
        own = [
            figure
            for figure in figures["throughput"]
            if (figure["workload"], figure["durability"], figure["partitions"]) == (workload, durability, partitions)
        ]
        rows = [
            [
                figure["backend"],
                text.exact(figure["records_per_commit"]),
                text.exact(figure["records"]),
                text.exact(figure["repeats"]),
                text.exact(figure["busy"]),
                with_interval(figure, "records_per_s", text.count),
                with_interval(figure, "commit_p50_us", text.latency),
                with_interval(figure, "commit_p99_us", text.latency),
                text.latency(figure["commit_max_us"]),
                text.size(figure["bytes_written"]),
                with_interval(figure, "bytes_on_disk", text.size),
                with_interval(figure, "peak_memory_bytes", text.size),
                text.exact(figure["open_files"]),
                text.duration(figure["open_after_kill_s"]),
                figure["end_state"],
            ]
            for figure in own
        ]
        caption = (
            f"Workload `{workload}`, level {durability}, {partitions} partition{'s' * (partitions != 1)}, "
            "medians of n repeats, with intervals from 5 on"
        )
        head = (
            "backend",
            "records per commit",
            "records",
            "n",
            "busy",
            "records/s",
            "commit p50",
            "p99",
            "longest",
            "written",
            "on disk",
            "peak memory",
            "open files",
            "opened again",
            "end state against Spark SQL",
        )
        different = [place for place, figure in enumerate(own) if figure["end_state"] == "different"]
        tables.append(Table(caption, head, rows, range(1, 14), (1, 2, 3, 4, 14), different))
    return tables
