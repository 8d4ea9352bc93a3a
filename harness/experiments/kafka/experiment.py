"""The experiment that measures tasks over a real broker, beside a bare loop and Kafka Streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness import profiles
from harness.budget import TimeOverError
from harness.experiment import (
    Claim,
    Columns,
    Experiment,
    Failure,
    Figure,
    Figures,
    Placement,
    Request,
    Row,
    Rows,
    Worker,
)
from harness.experiments.kafka.report import figures, kafka_tables, page, partitions_text, ratios
from harness.experiments.kafka.trial import KafkaTrial
from harness.processes import kafka_jars
from harness.report.page import Page, Table
from harness.report.ratios import ratio_table
from stores.config import StoreConfig
from stores.errors import ConfigError

WORK = (("count", 1), ("count", 2), ("flights", 1))
"""Workloads, and numbers of partitions."""
BACKENDS = (StoreConfig().backend, "lmdb-indexed-batch", "sqlite-indexed-batch")
"""The backends that keep their records. The default one is compared with the yardsticks."""
RECORDS_PER_S = 30_000
"""The rate of a slow machine."""


class Kafka(Experiment[KafkaTrial]):
    """Records per second of tasks over Kafka, with yardsticks that process the same topic."""

    name = "kafka"
    title = "tasks over Kafka"
    stage = "kafka"
    trial = KafkaTrial
    placement = Placement.LOCAL
    share = 6
    unit = ""
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "kafka": {
                "subject": str,
                "changelog": str,
                "workload": str,
                "partitions": int,
                "commit_interval_ms": int,
                "repeat": int,
                "seed": int,
                "trial": str,
                "records": int,
                "seconds": float,
                "cpu_s": float,
                "entries": int,
                "checksum": str,
                "cpu_per_wall": float,
                "load_average": float,
                "others_share": float,
                "steal_share": float,
            }
        }
    )

    def plan(self, request: Request) -> list[KafkaTrial]:
        """Return the trials of a profile; none if the default backend is left out."""
        default = StoreConfig().backend
        repeats = profiles.profile(request.profile).kafka_repeats
        if not repeats or (request.backends is not None and default not in request.backends):
            return []
        backends = tuple(name for name in BACKENDS if request.backends is None or name in request.backends)
        return [KafkaTrial(*work, request.seed, backends=backends, repeats=repeats) for work in WORK]

    def missing(self) -> str:
        """Return the reason why no broker or no Kafka Streams can run here, or ""."""
        return kafka_jars.missing(streams=True)

    def run(self, trial: KafkaTrial, worker: Worker) -> Iterable[Row]:
        """Return a row for each measurement. Raises: ConfigError; MeasurementFailedError."""
        if reason := self.missing():
            raise ConfigError(f"tasks over Kafka cannot be measured: {reason}")
        # They need the extra kafka.
        from harness.experiments.kafka.rounds import run_rounds

        worker.folder.mkdir()
        rows: list[Row] = []
        try:
            for row in run_rounds(trial, worker.folder, worker.deadline):
                worker.say(_line(row))
                rows.append(row)
        except TimeOverError:
            if not rows:
                raise
        return rows

    def cost_s(self, trial: KafkaTrial) -> float:
        """Return the seconds of the start and of one round: the deadline may cut further ones."""
        cells = len(trial.subjects) * len(trial.commit_intervals_ms)
        return 30.0 + cells * (3.0 + trial.events / RECORDS_PER_S)

    def extent(self, trial: KafkaTrial) -> tuple[str, int]:
        """Return the number of measurements."""
        return "measurements", len(trial.cells())

    def tried(self, trial: KafkaTrial, rows: Sequence[Row]) -> int:
        """Return the number of measurements that were made."""
        return len(rows)

    def finish(self, trials: Sequence[KafkaTrial], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return the rows, and rows of kind "ratio"."""
        return [*rows, *ratios(rows)]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the medians over repeats, in order."""
        return {"kafka": figures(rows.get("kafka", ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return each trial whose subjects do not have the same pairs at the end."""
        ends: dict[str, set[tuple[int, str]]] = {}
        for row in rows.get("kafka", ()):
            ends.setdefault(row["trial"], set()).add((row["entries"], row["checksum"]))
        return [
            Failure("subjects have processed the same topic, and their stores differ", command)
            for command, found in sorted(ends.items())
            if len(found) > 1
        ]

    def tables(self, figures: Figures, rows: Rows) -> list[Table]:
        """Return a table for each workload, and the ratios with what they decide."""
        return [*kafka_tables(figures), ratio_table(figures)]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about tasks over Kafka."""
        return page(figures, str(facts.get(f"{self.stage}_skipped") or ""))


def _line(row: Row) -> str:
    interval = f"{row['commit_interval_ms']:,} ms"
    return (
        f"{row['workload']}, {partitions_text(row['partitions'])}, a commit every {interval}: {row['subject']}, "
        f"{row['changelog']}, {row['records'] / row['seconds']:,.0f} records/s"
    )
