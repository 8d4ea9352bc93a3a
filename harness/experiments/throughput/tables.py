"""The tables of throughput. Each names its durability level in its caption."""

from __future__ import annotations

from harness.report import text
from harness.report.figures import Figures, distinct
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
            for figure in own
        ]
        repeats = max(figure["repeats"] for figure in own)
        records = max(figure["records"] for figure in own)
        caption = (
            f"Workload `{workload}`, level {durability}, {partitions} partition{'s' * (partitions != 1)}, "
            f"{text.exact(records)} records, {f'medians of {repeats}' if repeats > 1 else 'measured once'}"
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
        different = [place for place, figure in enumerate(own) if figure["end_state"] == "different"]
        tables.append(Table(caption, head, rows, range(1, 12), (1, 12), different))
    return tables
