"""The experiment that kills an application over Kafka, and measures the time until it processes records again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness import profiles
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
from harness.experiments.kafka.restart_report import KIND, figures, ratios, restart_tables
from harness.experiments.kafka.trial import RestartTrial
from harness.processes import kafka_jars
from harness.report.page import Page, Table
from harness.report.ratios import ratio_table
from stores.config import StoreConfig
from stores.errors import ConfigError

RECORDS_PER_S = 30_000
"""The rate of a slow machine, which fills a store of each subject."""
RESTORED_PER_S = 100_000
"""The rate at which Kafka Streams restores a store there."""


class KafkaRestart(Experiment[RestartTrial]):
    """The time from an assignment to the first record after a kill. The page about tasks over Kafka has its figures."""

    name = "kafka-restart"
    title = "restarts over Kafka"
    stage = "kafka"
    trial = RestartTrial
    placement = Placement.LOCAL
    unmeasured = "restarts over Kafka were not measured"
    share = 3
    unit = ""
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            KIND: {
                "subject": str,
                "records": int,
                "repeat": int,
                "seed": int,
                "trial": str,
                "ready_s": float,
                "start_s": float,
                "replayed": int,
                "cpu_per_wall": float,
                "load_average": float,
                "others_share": float,
                "steal_share": float,
            }
        }
    )

    def plan(self, request: Request) -> list[RestartTrial]:
        """Return the trial of a profile; none if the default backend is left out."""
        default = StoreConfig().backend
        profile = profiles.profile(request.profile)
        if not profile.kafka_restart_records or (request.backends is not None and default not in request.backends):
            return []
        return [RestartTrial(profile.kafka_restart_records, request.seed)]

    def missing(self) -> str:
        """Return the reason why no broker or no Kafka Streams can run here, or ""."""
        return kafka_jars.missing(streams=True)

    def run(self, trial: RestartTrial, worker: Worker) -> Iterable[Row]:
        """Return a row for each restart. Raises: ConfigError; MeasurementFailedError."""
        if reason := self.missing():
            raise ConfigError(f"restarts over Kafka cannot be measured: {reason}")
        # It needs the extra kafka.
        from harness.experiments.kafka.restart_rounds import run_restarts

        worker.folder.mkdir()
        rows = []
        for row in run_restarts(trial, worker.folder, worker.deadline):
            worker.say(
                f"{row['subject']} with {row['records']:,} records: ready {row['ready_s']:.3f} s after its assignment, "
                f"{row['start_s']:.3f} s after its start"
            )
            rows.append(row)
        return rows

    def cost_s(self, trial: RestartTrial) -> float:
        """Return the seconds until both stores are full, and of one round."""
        return 60.0 + trial.records * (2 / RECORDS_PER_S + 1 / RESTORED_PER_S)

    def extent(self, trial: RestartTrial) -> tuple[str, int]:
        """Return the number of restarts."""
        return "restarts", trial.repeats * len(trial.subjects)

    def tried(self, trial: RestartTrial, rows: Sequence[Row]) -> int:
        """Return the number of restarts that were made."""
        return len(rows)

    def finish(self, trials: Sequence[RestartTrial], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return the rows, and rows of kind "ratio"."""
        return [*rows, *ratios(rows)]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the medians over repeats, in order."""
        return {KIND: figures(rows.get(KIND, ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return nothing: a missed ratio fails a run only if it is asked to be strict."""
        return []

    def tables(self, figures: Figures, rows: Rows) -> list[Table]:
        """Return the times, and the ratios with what they decide."""
        return [*restart_tables(figures), ratio_table(figures)]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page | None:
        """Return None: the page about tasks over Kafka has the figures."""
        return None
