"""The experiment that measures tasks over a real broker, beside a bare loop and Kafka Streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from harness.budget import NIGHT, SMOKE, TimeOverError
from harness.experiment import Experiment, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments import nexmark_cores
from harness.experiments.kafka.restart import METHOD as RESTART_METHOD
from harness.experiments.kafka.restart import RESTARTS
from harness.experiments.kafka.trial import (
    BARE,
    BATCHES,
    KAFKA,
    NEXMARK,
    READY_S,
    RECORDS,
    STREAMS,
    TIMES_AS_LONG,
    KafkaTrial,
)
from harness.experiments.nexmark_cores import BY_NUMBER, OF_QUERIES
from harness.processes import kafka_jars
from harness.processes.load import LOAD_COLUMNS
from harness.report import text
from harness.report.database import busy, medians, ratio_columns
from harness.report.figures import Figures
from harness.report.listing import Column, Listing, Report
from harness.report.page import TextTable
from harness.report.ratios import ratio_table
from harness.report.rows import Row
from harness.scenario import Grid, cut_to, raised_to, times
from stores.config import StoreConfig

AT_LEAST: Mapping[str, float] = {BARE: 0.8, STREAMS: 1.3}
"""The least speed of the default backend over Kafka, relative to each yardstick."""
BATCHES_AT_LEAST: Mapping[int, Mapping[str, float]] = {100: {BARE: 0.8, STREAMS: 2.0}, 1_000: {BARE: 1.0, STREAMS: 2.5}}
"""The same for ``count`` in batches over one partition, by the commit interval in milliseconds."""
_CELL = ("workload", "partitions", "commit_interval_ms")
_OURS = f"ours.changelog in ('{KAFKA}', '{BATCHES}') and ours.subject not in ('{BARE}', '{STREAMS}')"
_CELL_OF_OURS = "(ours.workload, ours.partitions, ours.commit_interval_ms)"

_METHOD = """\
A broker of Apache Kafka runs on this machine, with a folder of its own. A topic has the events of a workload. Each
measurement is a fresh process and an application of its own, which processes all of them, exactly once. In every round
each subject is measured at each commit interval, in shuffled order, one interval after the other. A ratio is the median
of those of the rounds. The first fifth of the records is not timed. The
clock stops when the last record is committed.

* A *backend* is a task of ours for each partition. All tasks take turns in one thread. *Kafka* and *embedded* say where
  its changelog, its input and its outputs are. With *one transaction* all tasks commit together, as in a worker with
  `transaction.scope=thread`; otherwise each task has its own.
* With *batches* the task calls the workload's function of many records. Its outputs are the same, one for each record.
* *Bare loop* consumes, calls the workload with a dictionary as its store, and produces each change and each output. It
  uses the same client with the same settings, and has its input offsets in its transactions. It has no typed stores,
  so it does none of Nexmark.
* *Kafka Streams* 4.1 does the workload `count` and Nexmark's q4, q7 and q11 in Java: one thread, `exactly_once_v2`,
  persistent stores (key-value, window, session) with changelogs, no cache. Its processors read and write their stores
  as ours do, and forward one output for each event. Nothing is repartitioned.

q11 has a tenth of the events. A session is stored under its end, so with each record it gets a new key, and a search
for it passes the former ones, which are deleted. In batches only its last key is written.

At the end all subjects must have the same pairs in their stores; a difference fails the run. *CPU time* is that of the
process alone: the broker's is not in it. The broker has the same cores, so the wall time has its work as well. Keys of
`count` are drawn from 20,000.
"""


QUERY = f"""with subject as (
        select {", ".join(_CELL)}, subject, changelog, count(*) as repeats, records, {medians("seconds", "cpu_s")},
            min(seconds) as best_s, max(seconds) as worst_s, records / median(seconds) as records_per_s,
            {medians(*LOAD_COLUMNS)}
        from kafka group by {", ".join(_CELL)}, subject, changelog
    )
    select ours.*, ours.records_per_s / bare.records_per_s as bare_ratio,
        ours.records_per_s / streams.records_per_s as streams_ratio,
        streams.cpu_s / ours.cpu_s as streams_cpu_ratio
    from subject as ours
        left join subject as bare on bare.subject = '{BARE}' and {_OURS}
            and (bare.workload, bare.partitions, bare.commit_interval_ms) = {_CELL_OF_OURS}
        left join subject as streams on streams.subject = '{STREAMS}' and {_OURS}
            and (streams.workload, streams.partitions, streams.commit_interval_ms) = {_CELL_OF_OURS}"""
"""Medians over repeats for each subject and cell, with the ratios of speeds to the yardsticks, and of CPU times.

They are for backends over Kafka only: the embedded changelog does other work than the yardsticks.
"""


_SPEED = "ours.records / ours.seconds / (theirs.records / theirs.seconds)"
_CPU = """ours.records / ours.cpu_s / (theirs.records / theirs.cpu_s)
    * coalesce(theirs.machine_speed / ours.machine_speed, 1)"""
_BUSY = f"{busy('ours')} or {busy('theirs')}"
_AT_LEAST_OF_BATCHES = " ".join(
    f"when ours.commit_interval_ms = {interval_ms} then iif(theirs.subject = '{BARE}', {goals[BARE]}, {goals[STREAMS]})"
    for interval_ms, goals in BATCHES_AT_LEAST.items()
)
_AT_LEAST = f"""case when ours.subject <> '{StoreConfig().backend}' or workload like 'nexmark%' then null
        when ours.changelog = '{KAFKA}' then iif(theirs.subject = '{BARE}', {AT_LEAST[BARE]}, {AT_LEAST[STREAMS]})
        when workload <> 'count' or partitions <> 1 then null
        {_AT_LEAST_OF_BATCHES} end"""
RATIOS = f"""select workload || ' over Kafka, '
            || iif(partitions = 1, 'one partition', exact(partitions) || ' partitions')
            || ', a commit every ' || duration(commit_interval_ms / 1000.0) as claim,
        ours.subject || iif(ours.changelog = '{BATCHES}', ' in batches', '') as subject,
        theirs.subject as yardstick, 'CHANGELOG' as durability, null as records_per_commit,
        {_AT_LEAST} as at_least,
        {ratio_columns(_SPEED, _BUSY, _CPU)}
    from kafka as ours join kafka as theirs using ({", ".join(_CELL)}, seed, repeat)
    where {_OURS} and theirs.subject in ('{BARE}', '{STREAMS}')
    group by {", ".join(_CELL)}, ours.subject, ours.changelog, theirs.subject"""
"""The speed of each backend over Kafka, relative to each yardstick in its round."""


SPEEDS = Listing(
    "`{workload}` at level CHANGELOG, exactly once: medians over the rounds",
    """kafka_figure where workload not like 'nexmark%'
        order by workload, partitions, commit_interval_ms, subject, changelog""",
    (
        Column("partitions", "partitions", text.exact),
        Column("commit interval", "commit_interval_ms / 1000.0", text.duration),
        Column("subject"),
        Column("changelog"),
        Column("records/s", "records_per_s", text.count),
        Column("best", "records / best_s", text.count),
        Column("worst", "records / worst_s", text.count),
        Column("CPU time per record", "cpu_s / records", text.duration),
        Column("of the bare loop", "bare_ratio", text.ratio),
        Column("of Kafka Streams", "streams_ratio", text.ratio),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
)


NEXMARK_SPEEDS = Listing(
    "Nexmark over Kafka at level CHANGELOG, exactly once: medians; Flink's are published figures of other machines",
    f"kafka_figure {OF_QUERIES} order by {BY_NUMBER}, partitions, commit_interval_ms, subject, changelog",
    (
        Column("query", "substr(query, 9)"),
        Column("partitions", "partitions", text.exact),
        Column("commit interval", "commit_interval_ms / 1000.0", text.duration),
        Column("subject"),
        Column("changelog"),
        Column("read events/s", "records_per_s", text.count),
        Column("of Kafka Streams", "streams_ratio", text.ratio),
        Column("CPU per read event", "cpu_s / records", text.duration),
        Column("all events/s and core", "records / cpu_s / share", text.count),
        Column("of Kafka Streams per core", "streams_cpu_ratio", text.ratio),
        Column("Flink 1.13", "flink", text.count),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
    shown_once=(1, 2, 11),
)


REPORT = Report(
    ("kafka", "kafka_restart"),
    "kafka",
    "Tasks over Kafka",
    (
        "Tasks process a topic of a real broker exactly once, beside a bare loop and Kafka Streams.",
        f"The goals are {AT_LEAST[BARE]:g} of the speed of the bare loop, and {AT_LEAST[STREAMS]:g} of that of "
        "Kafka Streams. A count in batches is to have "
        + ", and ".join(
            f"{goals[BARE]:g} and {goals[STREAMS]:g} of them at a commit each {text.duration(interval_ms / 1_000)}"
            for interval_ms, goals in BATCHES_AT_LEAST.items()
        )
        + ".",
        "Queries of Nexmark have no goal: they are shown beside Kafka Streams, and per core.",
        f"After a kill with {RECORDS:,} records in its store, a worker is to be ready in {READY_S:g} s.",
    ),
    (SPEEDS, NEXMARK_SPEEDS, RESTARTS),
    _METHOD + nexmark_cores.METHOD + RESTART_METHOD,
)


def partitions_text(number: int) -> str:
    """Return a number of partitions in words."""
    return "one partition" if number == 1 else f"{number:,} partitions"


BACKENDS = (StoreConfig().backend, "lmdb-indexed-batch", "sqlite-indexed-batch")
"""The backends that keep their records. The default one is compared with the yardsticks."""
NEXMARK_WORK = tuple((query, 1) for query in NEXMARK)
WITH_GOALS = (("count", 1, 100), ("count", 1, 1_000), ("count", 2, 100), ("flights", 1, 1_000))
"""The workloads, partitions and commit intervals (ms) with which a night begins, because goals name them."""
RECORDS_PER_S = 30_000
"""The rate of a slow machine."""


@dataclass(frozen=True, kw_only=True)
class KafkaGrid(Grid):
    """Tasks over a real broker, a bare loop and Kafka Streams process the same topic in turns, and end alike.

    ``work`` are workloads, each with a number of partitions; a slow one gets fewer ``events``. A scenario holds if the
    end states are the same, and no ratio of the default backend misses its threshold. A run of fewer than five rounds,
    or on a busy machine, decides no ratio.
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
            KafkaTrial(
                name,
                partitions,
                seed,
                self.events // TIMES_AS_LONG.get(name, 1),
                self.commit_intervals_ms,
                self.backends,
                self.repeats,
            )
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
    night_share = 75
    unit = ""
    figures_by = {"kafka": QUERY}
    derived_by = RATIOS
    report = REPORT
    failed_by = """select trial as repeat, 'subjects have processed the same topic, and their stores differ' as sentence
        from kafka group by trial having count(distinct entries || ' ' || checksum) > 1 order by trial"""
    """Trials whose subjects do not have the same pairs at the end."""
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
            "machine_speed": float,
            "entries": int,
            "checksum": str,
            **dict.fromkeys(LOAD_COLUMNS, float),
        }
    }

    def plan(self, request: Request) -> list[KafkaTrial]:
        """Return the trials of a night; none if the default backend is left out.

        Each has one commit interval, so that a round takes about a minute. A night begins with those that have goals,
        with the default backend alone. It has the time for some of the others: the next night goes on with another one.
        """
        names = request.among(BACKENDS)
        if request.profile != NIGHT or BACKENDS[0] not in names:
            return []
        whole = [
            *KafkaGrid(backends=tuple(names)).plan(request.seed),
            *KafkaGrid(work=NEXMARK_WORK, commit_intervals_ms=(1_000,), backends=tuple(names)).plan(request.seed),
        ]
        cells = {(each.workload, each.partitions, ms): each for each in whole for ms in each.commit_intervals_ms}
        first = [replace(cells.pop(cell), backends=BACKENDS[:1], commit_intervals_ms=cell[2:]) for cell in WITH_GOALS]
        order = sorted(cells, key=lambda cell: (cell[0] not in NEXMARK, cell[2]))
        others = [replace(cells[cell], commit_intervals_ms=cell[2:]) for cell in order]
        turn = request.seed % len(others)
        return first + others[turn:] + others[:turn]

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
        return 30.0 + cells * (3.0 + trial.events * TIMES_AS_LONG.get(trial.workload, 1) / RECORDS_PER_S)

    def extent(self, trial: KafkaTrial) -> tuple[str, int]:
        """Return the number of measurements."""
        return "measurements", len(trial.cells())

    def tried(self, trial: KafkaTrial, rows: Sequence[Row]) -> int:
        """Return the number of measurements that were made."""
        return len(rows)

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return a table for each workload, and the ratios with what they decide."""
        return [*SPEEDS.tables(figures), *NEXMARK_SPEEDS.tables(figures), ratio_table(figures)]


def _line(row: Row) -> str:
    interval = f"{row['commit_interval_ms']:,} ms"
    return (
        f"{row['workload']}, {partitions_text(row['partitions'])}, a commit every {interval}: {row['subject']}, "
        f"{row['changelog']}, {row['records'] / row['seconds']:,.0f} records/s"
    )
