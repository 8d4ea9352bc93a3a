"""The experiment that kills an application over Kafka, and measures the time until it processes records again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from harness.budget import NIGHT, SMOKE
from harness.experiment import Experiment, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.kafka.trial import LOST, LOST_READY_S, READY_S, RECORDS, STREAMS, RestartTrial
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
PROMISED, PROMISED_LOST = "one second", "one minute"
"""The yardsticks that are times, not subjects: with local files, and without them."""
LOST_RECORDS = 10 * RECORDS
"""The records with which the promise without local files is decided."""

METHOD = f"""
For restarts, a worker of ours and an instance of Kafka Streams (`exactly_once_v2`) each keep the latest value of every
key in a store, both with a commit every 100 ms. Each is killed (SIGKILL) after its last commit, 1,000 more records are
put into the topic, and it is started again. *Ready* is the time from the assignment of its partitions to its first
processed record. *From the start* is the time from the start of its process, in which it also waits until the session
of the killed one is over (6 s). The worker opens its store, and replays the tail that the kill has cost. After the
first kill, the checkpoint file of Kafka Streams has no offset: it removes the store and restores all of it (*worst*).
That restore leaves a checkpoint, and after the later kills Kafka Streams restores the rest alone. The promise is
{READY_S:g} s with {RECORDS:,} records; smaller stores decide nothing.

Where local files are *lost*, they are removed after each kill, as on a new machine. The worker begins with its newest
snapshot by files. That is in a folder on the same disk, and in the page cache as far as it fits. It was taken after
nearly all records, so hardly any is replayed: with an interval of ten minutes those of up to ten minutes are. Kafka
Streams restores its changelog. The promise is {LOST_READY_S:g} s with {LOST_RECORDS:,} records.
"""


QUERY = f"""select records, state, subject, count(*) as repeats, median(ready_s) as ready_s, min(ready_s) as best_s,
        max(ready_s) as worst_s, {medians("start_s", "replayed", *LOAD_COLUMNS)}
    from {KIND} group by records, state, subject order by best_s"""


RATIOS = f"""with promise as (
        select *, iif(state = '{LOST}', '{PROMISED_LOST}', '{PROMISED}') as promised,
            iif(state = '{LOST}', {LOST_READY_S}, {READY_S}) as promised_s,
            iif(state = '{LOST}', {LOST_RECORDS}, {RECORDS}) as promised_records
        from {KIND}
    ), pair as (
        select records, state, subject, promised as yardstick, promised_s / ready_s as faster,
            iif(records >= promised_records, 1.0, null) as at_least, {busy("promise")} as is_busy
        from promise
        union all
        select records, state, ours.subject, theirs.subject, theirs.ready_s / ours.ready_s, null,
            {busy("ours")} or {busy("theirs")}
        from promise as ours join {KIND} as theirs using (records, state, seed, repeat)
        where theirs.subject = '{STREAMS}'
    )
    select 'ready over Kafka ' || iif(state = '{LOST}', 'without its files', 'after a kill') || ', with '
            || exact(records) || ' records' as claim,
        subject, yardstick, 'CHANGELOG' as durability, null as records_per_commit, max(at_least) as at_least,
        {ratio_columns("faster", "is_busy")}
    from pair where subject <> '{STREAMS}' group by records, state, subject, yardstick"""
"""The promised time, and that of Kafka Streams, over that of each backend."""


RESTARTS = Listing(
    "From the assignment to the first processed record, after a kill: medians over the rounds",
    f"{KIND}_figure",
    (
        Column("records", "records", text.exact),
        Column("local files", "state"),
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

    With ``loses_state`` their local files are removed before each restart. Without ``streams`` there is the worker
    alone.

    A scenario holds if no ratio misses its threshold. A run of fewer than five rounds, on a busy machine, or with fewer
    records than are promised, decides none.
    """

    records: int = RECORDS
    backend: str = StoreConfig().backend
    repeats: int = 5
    loses_state: bool = False
    streams: bool = True

    sizes = MappingProxyType(
        {SMOKE: {"records": cut_to(10_000), "repeats": cut_to(1)}, NIGHT: {"repeats": raised_to(5)}}
    )

    def trials(self, seed: int) -> list[RestartTrial]:
        """Return the trial. Raises: ConfigError for an unknown backend, and for a number that counts nothing."""
        ways = {"loses_state": self.loses_state, "streams": self.streams}
        return [RestartTrial(self.records, seed, self.repeats, self.backend, **ways)]

    def undecided(self, figures: Figures) -> str:
        """Return why a run with fewer records leaves the promised time open, or the ratios that it does not decide."""
        promised = LOST_RECORDS if self.loses_state else RECORDS
        if self.records < promised:
            return (
                f"The time is promised for {promised:,} records. This run had {self.records:,}, and does not decide it."
            )
        return super().undecided(figures)

    def missed_ratio(self, figure: Mapping[str, Any]) -> str:
        """Return the sentence for a time that is longer than promised."""
        promised_s = LOST_READY_S if figure["yardstick"] == PROMISED_LOST else READY_S
        return f"{figure['claim']}: {figure['subject']} needs {promised_s / figure['ratio']:.2f} s, not {promised_s:g}"


class KafkaRestart(Experiment[RestartTrial]):
    """The time from an assignment to the first record after a kill. The page about tasks over Kafka has its figures."""

    name = "kafka-restart"
    title = "restarts over Kafka"
    stage = "kafka"
    trial = RestartTrial
    grid = RestartGrid
    placement = TrialPlacement.LOCAL
    share = 3
    night_share = 45
    unit = ""
    figures_by = {KIND: QUERY}
    derived_by = RATIOS
    columns = {
        KIND: {
            "subject": str,
            "records": int,
            "state": str,
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
        """Return the seconds until all stores are full, and of one round."""
        return 60.0 + trial.records * (len(trial.subjects) / RECORDS_PER_S + trial.streams / RESTORED_PER_S)

    def extent(self, trial: RestartTrial) -> tuple[str, int]:
        """Return the number of restarts."""
        return "restarts", trial.repeats * len(trial.subjects)

    def tried(self, trial: RestartTrial, rows: Sequence[Row]) -> int:
        """Return the number of restarts that were made."""
        return len(rows)

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return the times, and the ratios with what they decide."""
        return [*RESTARTS.tables(figures), ratio_table(figures)]
