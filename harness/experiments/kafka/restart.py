"""The experiment that kills an application over Kafka, and measures the time until it processes records again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from harness.budget import NIGHT, SMOKE
from harness.experiment import Experiment, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.kafka.trial import READY_S, RECORDS, STREAMS, RestartTrial
from harness.processes import kafka_jars
from harness.processes.load import LOAD_COLUMNS
from harness.report import text
from harness.report.database import busy, medians, ratio_columns
from harness.report.figures import Figures
from harness.report.listing import Column, Listing
from harness.report.page import TextTable
from harness.report.ratios import ratio_table
from harness.report.rows import Row
from harness.scenario import Grid, cut_to, raised_to
from stores.config import StoreConfig

KIND = "kafka_restart"
PROMISED = "one second"
"""The yardstick that is a time, not a subject."""

METHOD = f"""
For restarts, a worker of ours and an instance of Kafka Streams (`exactly_once_v2`) each keep the latest value of every
key in a store, both with a commit every 100 ms. Each is killed (SIGKILL) after its last commit, 1,000 more records are
put into the topic, and it is started again. *Ready* is the time from the assignment of its partitions to its first
processed record. *From the start* is the time from the start of its process, in which it also waits until the session
of the killed one is over (6 s). The worker opens its store, and replays the tail that the kill has cost. After the
first kill, the checkpoint file of Kafka Streams has no offset: it removes the store and restores all of it (*worst*).
That restore leaves a checkpoint, and after the later kills Kafka Streams restores the rest alone. The promise is
{READY_S:g} s with {RECORDS:,} records; smaller stores decide nothing.
"""


QUERY = f"""select records, subject, count(*) as repeats, median(ready_s) as ready_s, min(ready_s) as best_s,
        max(ready_s) as worst_s, {medians("start_s", "replayed", *LOAD_COLUMNS)}
    from {KIND} group by records, subject order by best_s"""


RATIOS = f"""with pair as (
        select records, subject, '{PROMISED}' as yardstick, {READY_S} / ready_s as faster, {busy(KIND)} as is_busy
        from {KIND}
        union all
        select records, ours.subject, theirs.subject, theirs.ready_s / ours.ready_s, {busy("ours")} or {busy("theirs")}
        from {KIND} as ours join {KIND} as theirs using (records, seed, repeat) where theirs.subject = '{STREAMS}'
    )
    select 'ready over Kafka after a kill, with ' || exact(records) || ' records' as claim, subject, yardstick,
        'CHANGELOG' as durability, null as records_per_commit,
        iif(yardstick = '{PROMISED}' and records >= {RECORDS}, 1.0, null) as at_least,
        {ratio_columns("faster", "is_busy")}
    from pair where subject <> '{STREAMS}' group by records, subject, yardstick"""
"""The promised time, and that of Kafka Streams, over that of each backend."""


RESTARTS = Listing(
    "From the assignment to the first processed record, after a kill: medians over the rounds",
    f"{KIND}_figure",
    (
        Column("records", "records", text.exact),
        Column("subject"),
        Column("ready", "ready_s", text.duration),
        Column("best", "best_s", text.duration),
        Column("worst", "worst_s", text.duration),
        Column("from the start", "start_s", text.duration),
        Column("replayed", "replayed", text.count),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
)


RECORDS_PER_S = 30_000
"""The rate of a slow machine, which fills a store of each subject."""
RESTORED_PER_S = 100_000
"""The rate at which Kafka Streams restores a store there."""


@dataclass(frozen=True, kw_only=True)
class RestartGrid(Grid):
    """A worker with many records in its store is killed and started again, beside an instance of Kafka Streams.

    A scenario holds if no ratio misses its threshold. A run of fewer than five rounds, on a busy machine, or with fewer
    records than are promised, decides none.
    """

    records: int = RECORDS
    backend: str = StoreConfig().backend
    repeats: int = 5

    sizes = MappingProxyType(
        {SMOKE: {"records": cut_to(10_000), "repeats": cut_to(1)}, NIGHT: {"repeats": raised_to(5)}}
    )

    def trials(self, seed: int) -> list[RestartTrial]:
        """Return the trial. Raises: ConfigError for an unknown backend, and for a number that counts nothing."""
        return [RestartTrial(self.records, seed, self.repeats, self.backend)]

    def undecided(self, figures: Figures) -> str:
        """Return why a run with fewer records leaves the promised time open, or the ratios that it does not decide."""
        if self.records < RECORDS:
            return (
                f"The time is promised for {RECORDS:,} records. This run had {self.records:,}, and does not decide it."
            )
        return super().undecided(figures)

    def missed_ratio(self, figure: Mapping[str, Any]) -> str:
        """Return the sentence for a time that is longer than promised."""
        return f"{figure['claim']}: {figure['subject']} needs {READY_S / figure['ratio']:.2f} s, not {READY_S:g}"


class KafkaRestart(Experiment[RestartTrial]):
    """The time from an assignment to the first record after a kill. The page about tasks over Kafka has its figures."""

    name = "kafka-restart"
    title = "restarts over Kafka"
    stage = "kafka"
    trial = RestartTrial
    grid = RestartGrid
    placement = TrialPlacement.LOCAL
    share = 3
    night_share = 34
    unit = ""
    figures_by = {KIND: QUERY}
    derived_by = RATIOS
    columns = {
        KIND: {
            "subject": str,
            "records": int,
            "repeat": int,
            "seed": int,
            "trial": str,
            "ready_s": float,
            "start_s": float,
            "replayed": int,
            **dict.fromkeys(LOAD_COLUMNS, float),
        }
    }

    def plan(self, request: Request) -> list[RestartTrial]:
        """Return the trial of a night; none if the default backend is left out."""
        if request.profile != NIGHT or not request.among([StoreConfig().backend]):
            return []
        return RestartGrid().plan(request.seed)

    def missing(self) -> str:
        """Return the reason why no broker or no Kafka Streams can run here, or ""."""
        return kafka_jars.missing(streams=True)

    def run(self, trial: RestartTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each restart. Raises: ConfigError; MeasurementFailedError."""
        # It needs the extra kafka.
        from harness.experiments.kafka.rounds import run_restarts

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

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return the times, and the ratios with what they decide."""
        return [*RESTARTS.tables(figures), ratio_table(figures)]
