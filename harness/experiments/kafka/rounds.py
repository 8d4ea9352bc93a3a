"""The measurements of a trial: a broker of its own, topics with the events, and every subject in its turn."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil

from harness import replay
from harness.budget import Deadline
from harness.experiments.kafka import bare, tasks
from harness.experiments.kafka.trial import (
    BARE,
    EMBEDDED,
    EVENTS_TOPIC,
    STREAMS,
    WARM_UP_SHARE,
    Cell,
    KafkaTrial,
    workload_of,
)
from harness.folders import temporary_folder
from harness.processes.child import FIGURES_FILE, figures_after, figures_apart, run_program
from harness.processes.kafka_jars import JARS
from harness.processes.load import LoadWatch, load_columns
from stores.changelog.interface import Changelog
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import Durability, TopicPartition
from stores.java import find_java

DEADLINE_S = 300.0
_BROKER_OPTIONS = ("-Xmx1g", "-Xms512m")
"""With both stages of the compiler, unlike the broker of tests."""
_BROKER_SETTINGS = "log.segment.delete.delay.ms=1000\n"
_TOPIC_SETTINGS = {"retention.ms": "-1"}
"""The broker would remove events whose own time is long ago."""
Batch = list[tuple[bytes | None, bytes | None, int]]


def run_rounds(trial: KafkaTrial, folder: Path, deadline: Deadline) -> Iterator[dict[str, Any]]:
    """Yield a row for each measurement, until ``deadline``. Raises: MeasurementFailedError, ConfigError."""
    from stores.changelog.kafka import KafkaChangelog
    from stores.changelog.kafka.testing.broker import Broker

    log_file = folder / tasks.LOG_FILE
    with SqliteChangelog(log_file, Durability.PROCESS) as embedded:
        _fill(trial, embedded)
    with Broker(folder / "broker", JARS, java_options=_BROKER_OPTIONS, settings=_BROKER_SETTINGS) as broker:
        with KafkaChangelog({"bootstrap.servers": broker.address}, topic_settings=_TOPIC_SETTINGS) as log:
            _fill(trial, log)
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


def _fill(trial: KafkaTrial, log: Changelog) -> None:
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
        found = _streams_measured({**arguments, "warm_up": trial.events // WARM_UP_SHARE}, DEADLINE_S)
    elif name == BARE:
        found = figures_apart(bare.__name__, "kafka", arguments, DEADLINE_S)
    else:

        def take_log(folder: Path) -> None:
            if changelog == EMBEDDED:
                shutil.copy(log_file, folder)

        found = figures_apart(
            tasks.__name__, "kafka", {**arguments, "name": name, "changelog": changelog}, DEADLINE_S, take_log
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
        **found,
    }


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a running process has taken."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


_STREAMS_PROGRAM = Path(__file__).with_name("Streams.java")
STREAMS_HEAP = "-Xmx1g"


def _streams_measured(arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Run the program, and return its figures. Raises: MeasurementFailedError."""
    from stores.changelog.kafka.testing.jars import STREAMS

    with temporary_folder("kafka") as folder:
        given = folder / "given.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in {**arguments, "state": folder}.items()))
        command = [
            str(find_java("Kafka Streams").program), STREAMS_HEAP, f"-Djava.io.tmpdir={folder}",
            "-cp", f"{JARS / STREAMS}/*", str(_STREAMS_PROGRAM), str(given), str(folder / FIGURES_FILE),
        ]  # fmt: skip
        ending = run_program(command, folder, deadline_s, dict(os.environ))
        return figures_after(ending, _STREAMS_PROGRAM.name, folder / FIGURES_FILE, deadline_s)
