"""The measurements of a trial: a broker of its own, topics with the events, and every subject in its turn.

For restarts, subjects are killed and started again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import psutil

from harness import replay
from harness.budget import Deadline
from harness.experiments.kafka import bare, tasks
from harness.experiments.kafka.trial import (
    BARE,
    EMBEDDED,
    EVENTS_TOPIC,
    KEPT,
    LOST,
    STREAMS,
    WARM_UP_SHARE,
    Cell,
    KafkaTrial,
    RestartTrial,
    workload_of,
)
from harness.folders import temporary_folder
from harness.processes.child import (
    FIGURES_FILE,
    LastingProcess,
    MeasurementFailedError,
    child_environment,
    command_of,
    figures_after,
    figures_apart,
    run_program,
)
from harness.processes.kafka_jars import JARS
from harness.processes.load import LoadWatch, load_columns
from harness.workloads.tasks import START_MS
from harness.workloads.ycsb import Values, keys_of
from stores.changelog.interface import Changelog
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import Durability, TopicPartition
from stores.java import find_java
from stores.snapshots.index import IndexName

if TYPE_CHECKING:
    from stores.changelog.kafka import KafkaChangelog
    from stores.changelog.kafka.testing.broker import Broker

DEADLINE_S = 300.0
_BROKER_OPTIONS = ("-Xmx1g", "-Xms512m")
"""With both stages of the compiler, unlike the broker of tests."""
_BROKER_SETTINGS = "log.segment.delete.delay.ms=1000\n"
_TOPIC_SETTINGS = {"retention.ms": "-1"}
"""The broker would remove events whose own time is long ago."""
_STREAMS_PROGRAM, _RESTART_PROGRAM = "Streams.java", "Restart.java"
_STREAMS_HEAP = "-Xmx1g"
Batch = list[tuple[bytes | None, bytes | None, int]]


def run_rounds(trial: KafkaTrial, folder: Path, deadline: Deadline) -> Iterator[dict[str, Any]]:
    """Yield a row for each measurement, until ``deadline``. Raises: MeasurementFailedError, ConfigError."""
    log_file = folder / tasks.LOG_FILE
    with SqliteChangelog(log_file, Durability.PROCESS) as embedded:
        fill(trial, embedded)
    with _broker(folder, _BROKER_SETTINGS) as (broker, log):
        fill(trial, log)
        for number, cell in enumerate(trial.cells()):
            if deadline.passed:
                return
            application = f"measured-{number}"
            _make_topics(trial, log, application)
            assert broker.pid is not None
            watch = LoadWatch()
            broker_cpu_s = cpu_s(broker.pid)
            row = _row(trial, cell, broker.address, application, log_file)
            load = watch.figures()
            # The broker is no other work. The load is that of the whole process, with its start and its warm-up.
            load["cpu_s"] += cpu_s(broker.pid) - broker_cpu_s
            yield {**row, **load_columns([load]), "cpu_per_wall": row["cpu_s"] / row["seconds"]}
            _empty_topics(log)


@contextmanager
def _broker(folder: Path, settings: str = "") -> Iterator[tuple[Broker, KafkaChangelog]]:
    """Yield a broker of its own, and a changelog in it."""
    from stores.changelog.kafka import KafkaChangelog
    from stores.changelog.kafka.testing.broker import Broker

    with (
        Broker(folder / "broker", JARS, java_options=_BROKER_OPTIONS, settings=settings) as broker,
        KafkaChangelog({"bootstrap.servers": broker.address}, topic_settings=_TOPIC_SETTINGS) as log,
    ):
        yield broker, log


def fill(trial: KafkaTrial, log: Changelog) -> None:
    """Put the events into the topic of a changelog, each into the partition of its key."""
    work = workload_of(trial.workload)
    log.create_topic(EVENTS_TOPIC, trial.partitions)
    log.create_topic(work.output_topic, trial.partitions)
    events = iter(work.events(trial.seed, trial.events))  # type: ignore[attr-defined]
    with log.producer() as producer:
        while chunk := list(islice(events, 10_000)):
            batches: list[Batch] = [[] for _ in range(trial.partitions)]
            for key, value, timestamp_ms in chunk:
                batches[crc32(key) % trial.partitions].append((key, value, timestamp_ms))
            for number, batch in enumerate(batches):
                producer.send_all(TopicPartition(EVENTS_TOPIC, number), batch)
        producer.flush()


def _make_topics(trial: KafkaTrial, log: Changelog, application: str) -> None:
    """Create the changelog topics, so that no measurement waits for that."""
    for store in workload_of(trial.workload).store_names:
        log.create_store_topic(f"{application}-{store}-changelog", trial.partitions)


def _empty_topics(log: Changelog) -> None:
    """Remove the records of outputs, which the next measurement writes again."""
    for topic, partitions in log.topics().items():
        if topic.endswith("-out"):
            for number in range(partitions):
                partition = TopicPartition(topic, number)
                log.truncate(partition, log.end_offset(partition))


def _row(trial: KafkaTrial, cell: Cell, address: str, application: str, log_file: Path) -> dict[str, Any]:
    name, changelog = cell.subject
    arguments = {
        "address": address,
        "application": application,
        "workload": trial.workload,
        "partitions": trial.partitions,
        "commit_interval_ms": cell.commit_interval_ms,
        "events": trial.events,
    }
    if name == STREAMS:
        figures = _streams_measured({**arguments, "warm_up": trial.events // WARM_UP_SHARE}, DEADLINE_S)
    elif name == BARE:
        figures = figures_apart(bare.measured, "kafka", arguments, DEADLINE_S)
    else:

        def take_log(folder: Path) -> None:
            if changelog == EMBEDDED:
                shutil.copy(log_file, folder)

        figures = figures_apart(
            tasks.measured, "kafka", {**arguments, "name": name, "changelog": changelog}, DEADLINE_S, take_log
        )
    return {
        "kind": "kafka",
        "subject": name,
        "changelog": changelog,
        "workload": trial.workload,
        "partitions": trial.partitions,
        "commit_interval_ms": cell.commit_interval_ms,
        "repeat": cell.repeat,
        "seed": trial.seed,
        "trial": replay.command("kafka", trial),
        **figures,
    }


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a running process has taken."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _streams_measured(arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Run the program, and return its figures. Raises: MeasurementFailedError."""
    with temporary_folder("kafka") as folder:
        command = _streams_command(_STREAMS_PROGRAM, folder, {**arguments, "state": folder})
        ending = run_program(command, folder, deadline_s, dict(os.environ))
        return figures_after(ending, _STREAMS_PROGRAM, folder / FIGURES_FILE, deadline_s)


def _streams_command(program: str, folder: Path, arguments: Mapping[str, Any]) -> list[str]:
    """Return the command of a program for Kafka Streams, which writes its figures into ``folder``."""
    from stores.changelog.kafka.testing.jars import STREAMS as STREAMS_JARS

    properties = folder / "given.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in arguments.items()))
    return [
        str(find_java("Kafka Streams").program), _STREAMS_HEAP, f"-Djava.io.tmpdir={folder}",
        "-cp", f"{JARS / STREAMS_JARS}/*", str(Path(__file__).with_name(program)), str(properties),
        str(folder / FIGURES_FILE),
    ]  # fmt: skip


INPUT = TopicPartition(EVENTS_TOPIC, 0)
MORE = 1_000
"""The records that are waiting when a subject is started again."""
SESSION_TIMEOUT_MS = 6_000
"""The time after which the broker gives the tasks of a killed process away: the least that it allows."""
STALLED_S, STALLED_RECORDS_PER_S = 300.0, 50_000
"""The time without any progress after which a measurement has failed. A restore by Kafka Streams shows none."""
_PIECE = 10_000
_LOOK_S = 0.02
_ASK_S = 0.5
"""The time between two questions to the broker, which has to work for the subject."""


def run_restarts(trial: RestartTrial, folder: Path, deadline: Deadline) -> Iterator[dict[str, Any]]:
    """Yield a row for each restart, until ``deadline``. Raises: MeasurementFailedError, ConfigError."""
    with _broker(folder) as (broker, log):
        log.create_topic(EVENTS_TOPIC)
        subjects: dict[str, RestartSubject] = {}
        total = append(log, trial, 0, trial.records)
        for number, name in enumerate(trial.subjects):
            own = folder / f"{number}"
            with RestartSubject(trial, name, own, broker.address, log) as subject:
                subject.await_committed(total)
            if trial.loses_state and name != STREAMS:
                # Snapshots while the store is filled would be many, and all of them stay for an hour.
                with RestartSubject(trial, name, own, broker.address, log, own / "snapshots") as subject:
                    total = _await_snapshot(log, trial, subject, own / "snapshots", total)
            subjects[name] = subject
        for repeat in range(trial.repeats):
            total = append(log, trial, total, MORE)
            for name in Random(f"{trial.seed} {repeat}").sample(trial.subjects, len(trial.subjects)):
                if deadline.passed:
                    return
                assert broker.pid is not None
                if trial.loses_state:
                    shutil.rmtree(subjects[name].state)
                watch, broker_cpu_s = LoadWatch(), cpu_s(broker.pid)
                with subjects[name] as subject:
                    figures = subject.await_record()
                    if figures.pop("from_snapshot") is not (trial.loses_state and name != STREAMS):
                        raise MeasurementFailedError(f"{name} did not begin with the files that this trial measures")
                    load = watch.figures()
                    # Neither the broker nor the subject, which goes on, is other work.
                    load["cpu_s"] += cpu_s(broker.pid) - broker_cpu_s + cpu_s(subject.pid)
                    subject.await_committed(total)
                yield {
                    "kind": "kafka_restart",
                    "subject": name,
                    "records": trial.records,
                    "state": LOST if trial.loses_state else KEPT,
                    "repeat": repeat,
                    "seed": trial.seed,
                    "trial": replay.command("kafka-restart", trial),
                    **figures,
                    **load_columns([load]),
                }


def _await_snapshot(
    log: KafkaChangelog, trial: RestartTrial, subject: RestartSubject, snapshots: Path, total: int
) -> int:
    """Wait until a snapshot has all records that ``subject`` has processed. Return the number of all records.

    A snapshot is taken after a commit, so there are some more records.
    """
    wanted = log.end_offset(TopicPartition(f"{subject.application}-{tasks.STORE}-changelog", 0))

    def reached() -> int:
        nonlocal total
        total = append(log, trial, total, 1)
        names = map(IndexName.parse, (file.name for file in snapshots.rglob("*")))
        return max((name.offset for name in names if name is not None), default=-1)

    subject.await_progress(reached, wanted, "sent no snapshot", STALLED_S, tasks.SNAPSHOT_INTERVAL_MS / 1_000)
    return total


def append(log: KafkaChangelog, trial: RestartTrial, first: int, count: int) -> int:
    """Append records to the topic; return the number of all. Each of the first ``trial.records`` has its own key."""
    values = Values(trial.seed)
    with log.producer() as producer:
        numbers = iter(range(first, first + count))
        while chunk := list(islice(numbers, _PIECE)):
            keys = keys_of(np.asarray(chunk, dtype=np.int64) % trial.records)
            pairs = zip(keys, chunk, strict=True)
            # Kafka Streams does not take records without a time.
            producer.send_all(INPUT, [(key, values.value(key, number), START_MS + number) for key, number in pairs])
        producer.flush()
    return first + count


class RestartSubject(LastingProcess):
    """One subject. A ``with`` block starts its process, and kills it at the end.

    A worker takes snapshots by files if it gets a folder for them.
    """

    def __init__(
        self,
        trial: RestartTrial,
        name: str,
        folder: Path,
        address: str,
        log: KafkaChangelog,
        snapshots: Path | None = None,
    ) -> None:
        self._log, self.application = log, f"restarted-{folder.name}"
        self._stalled_s = STALLED_S + trial.records / STALLED_RECORDS_PER_S
        self.state = folder / "state"
        folder.mkdir(exist_ok=True)
        arguments = {
            "address": address,
            "application": self.application,
            "commit_interval_ms": trial.commit_interval_ms,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "state": str(self.state),
        }
        if name == STREAMS:
            super().__init__(name, _streams_command(_RESTART_PROGRAM, folder, arguments), folder, dict(os.environ))
        else:
            own = {"backend": name, "snapshots": None if snapshots is None else str(snapshots)}
            ours = command_of(f"{tasks.__name__}:restarted", {**arguments, **own}, folder)
            super().__init__(name, ours, folder, child_environment(None, folder))

    def await_record(self) -> dict[str, Any]:
        """Wait until it has processed its first record; return its figures. Raises: MeasurementFailedError.

        ``start_s`` is the time since its process was started. It includes the rest of the session of the killed one.
        """
        figures = self.await_figures("processed no record", self._stalled_s, _LOOK_S)
        return {"replayed": None, "from_snapshot": False, **figures, "start_s": time.monotonic() - self.started_at}

    def await_committed(self, records: int) -> None:
        """Wait until it has committed so many records. Raises: MeasurementFailedError."""

        def committed() -> int:
            return self._log.committed_offsets(self.application).get(INPUT, 0)

        self.await_progress(committed, records, "committed nothing", self._stalled_s, _ASK_S)
