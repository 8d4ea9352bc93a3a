"""The experiment that measures tasks over a real broker, beside a bare loop and Kafka Streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness.budget import NIGHT, SMOKE, TimeOverError
from harness.experiment import (
    Experiment,
    Failure,
    Figures,
    Request,
    Row,
    Rows,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.kafka.report import QUERY, RATIOS, REPORT, SPEEDS, partitions_text
from harness.experiments.kafka.trial import KafkaTrial
from harness.processes import kafka_jars
from harness.processes.load import LOAD_COLUMNS
from harness.report.page import TextTable
from harness.report.ratios import ratio_table
from harness.scenario import Grid, cut_to, raised_to, times
from stores.config import StoreConfig

BACKENDS = (StoreConfig().backend, "lmdb-indexed-batch", "sqlite-indexed-batch")
"""The backends that keep their records. The default one is compared with the yardsticks."""
RECORDS_PER_S = 30_000
"""The rate of a slow machine."""


@dataclass(frozen=True, kw_only=True)
class KafkaGrid(Grid):
    """Tasks over a real broker, a bare loop and Kafka Streams process the same topic in turns, and end alike.

    ``work`` are workloads, each with a number of partitions. A scenario holds if the end states are the same, and no
    ratio of the default backend misses its threshold. A run of fewer than five rounds, or on a busy machine, decides no
    ratio.
    """

    work: tuple[tuple[str, int], ...] = (("count", 1), ("count", 2), ("flights", 1))
    events: int = 300_000
    commit_intervals_ms: tuple[int, ...] = (100, 1_000, 30_000)
    backends: tuple[str, ...] = BACKENDS[:1]
    repeats: int = 5

    sizes = MappingProxyType(
        {
            SMOKE: {"events": cut_to(10_000), "repeats": cut_to(1)},
            NIGHT: {"events": times(10), "repeats": raised_to(5)},
        }
    )

    def trials(self, seed: int) -> list[KafkaTrial]:
        """Return a trial for each workload. Raises: ConfigError for an unknown name."""
        return [
            KafkaTrial(name, partitions, seed, self.events, self.commit_intervals_ms, self.backends, self.repeats)
            for name, partitions in self.work
        ]


class Kafka(Experiment[KafkaTrial]):
    """Records per second of tasks over Kafka, with yardsticks that process the same topic."""

    name = "kafka"
    title = "tasks over Kafka"
    stage = "kafka"
    trial = KafkaTrial
    grid = KafkaGrid
    placement = TrialPlacement.LOCAL
    share = 6
    night_share = 10
    unit = ""
    figures_by = {"kafka": QUERY}
    derived_by = RATIOS
    report = REPORT
    columns = {
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
            **dict.fromkeys(LOAD_COLUMNS, float),
        }
    }

    def plan(self, request: Request) -> list[KafkaTrial]:
        """Return the trials of a night, some minutes each; none if the default backend is left out."""
        chosen = request.among(BACKENDS)
        if request.profile != NIGHT or BACKENDS[0] not in chosen:
            return []
        return KafkaGrid(backends=tuple(chosen)).plan(request.seed)

    def missing(self) -> str:
        """Return the reason why no broker or no Kafka Streams can run here, or ""."""
        return kafka_jars.missing(streams=True)

    def run(self, trial: KafkaTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each measurement. Raises: ConfigError; MeasurementFailedError."""
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

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return a table for each workload, and the ratios with what they decide."""
        return [*SPEEDS.tables(figures), ratio_table(figures)]


def _line(row: Row) -> str:
    interval = f"{row['commit_interval_ms']:,} ms"
    return (
        f"{row['workload']}, {partitions_text(row['partitions'])}, a commit every {interval}: {row['subject']}, "
        f"{row['changelog']}, {row['records'] / row['seconds']:,.0f} records/s"
    )
