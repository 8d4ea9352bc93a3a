"""The measurements of a restart: a broker, a topic with the records, and subjects that are killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from harness import replay
from harness.budget import Deadline, check_time
from harness.experiments.kafka import restart_worker
from harness.experiments.kafka.rounds import STREAMS_HEAP, cpu_s
from harness.experiments.kafka.trial import EVENTS_TOPIC, STREAMS, RestartTrial
from harness.processes.child import MeasurementFailedError, child_environment, complaint_in, read_figures, write_figures
from harness.processes.kafka_jars import JARS
from harness.processes.load import LoadWatch, load_columns
from harness.workloads.count import START_MS
from harness.workloads.synthetic import Values, keys_of
from stores.interface import TopicPartition
from stores.java import find_java

if TYPE_CHECKING:
    from stores.changelog.kafka import KafkaChangelog

PROGRAM = Path(__file__).with_name("Restart.java")
INPUT = TopicPartition(EVENTS_TOPIC, 0)
MORE = 1_000
"""The records that are waiting when a subject is started again."""
SESSION_TIMEOUT_MS = 6_000
"""The time after which the broker gives the tasks of a killed process away: the least that it allows."""
STALLED_S = 300.0
"""The time without any progress after which a measurement has failed. A restore by Kafka Streams shows none."""
_BROKER_OPTIONS = ("-Xmx1g", "-Xms512m")
_PIECE = 10_000
_LOOK_S = 0.02
_ASK_S = 0.5
"""The time between two questions to the broker, which has to work for the subject."""


def run_restarts(trial: RestartTrial, folder: Path, deadline: Deadline) -> Iterator[dict[str, Any]]:
    """Yield a row for each restart, until ``deadline``. Raises: MeasurementFailedError, ConfigError."""
    from stores.changelog.kafka import KafkaChangelog
    from stores.changelog.kafka.testing.broker import Broker

    with Broker(folder / "broker", JARS, java_options=_BROKER_OPTIONS) as broker:
        with KafkaChangelog({"bootstrap.servers": broker.address}, topic_settings={"retention.ms": "-1"}) as log:
            log.create_topic(EVENTS_TOPIC)
            subjects = {
                name: RestartSubject(trial, name, folder / f"{number}", broker.address, log)
                for number, name in enumerate(trial.subjects)
            }
            total = append(log, trial, 0, trial.records)
            for subject in subjects.values():
                with subject:
                    subject.await_committed(total)
            for repeat in range(trial.repeats):
                total = append(log, trial, total, MORE)
                for name in Random(f"{trial.seed} {repeat}").sample(trial.subjects, len(trial.subjects)):
                    if deadline.passed:
                        return
                    assert broker.pid is not None
                    watch, broker_cpu_s = LoadWatch(), cpu_s(broker.pid)
                    with subjects[name] as subject:
                        found = subject.await_figures()
                        load = watch.figures()
                        # Neither the broker nor the subject, which goes on, is other work.
                        load["cpu_s"] += cpu_s(broker.pid) - broker_cpu_s + cpu_s(subject.pid)
                        subject.await_committed(total)
                    yield {
                        "kind": "kafka_restart",
                        "subject": name,
                        "records": trial.records,
                        "repeat": repeat,
                        "seed": trial.seed,
                        "trial": replay.command("kafka-restart", trial),
                        **found,
                        **load_columns([load]),
                    }


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


class RestartSubject:
    """One subject. A ``with`` block starts its process, and kills it at the end."""

    def __init__(self, trial: RestartTrial, name: str, folder: Path, address: str, log: KafkaChangelog) -> None:
        self._name, self._folder, self._log = name, folder, log
        self._application = f"restarted-{folder.name}"
        self._starts, self._started_at = 0, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        arguments = {
            "address": address,
            "application": self._application,
            "commit_interval_ms": trial.commit_interval_ms,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "state": str(folder / "state"),
        }
        is_ours = name != STREAMS
        self._command = _our_command(folder, arguments, name) if is_ours else _streams_command(folder, arguments)

    def __enter__(self) -> Self:
        self._starts += 1
        self._started_at = time.monotonic()
        with self._complaints.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*self._command, str(self._figures)],
                cwd=self._folder,
                env=dict(os.environ) if self._name == STREAMS else child_environment(None, self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    @property
    def pid(self) -> int:
        """The ID of its process, which runs."""
        assert self._process is not None
        return self._process.pid

    def await_figures(self) -> dict[str, Any]:
        """Wait until it has processed its first record; return its figures. Raises: MeasurementFailedError.

        ``start_s`` is the time since its process was started. It includes the rest of the session of the killed one.
        """
        self._await(lambda: int(self._figures.exists()), 1, "processed no record", _LOOK_S)
        start_s = time.monotonic() - self._started_at
        return {"replayed": None, **read_figures(self._figures), "start_s": start_s}

    def await_committed(self, records: int) -> None:
        """Wait until it has committed so many records. Raises: MeasurementFailedError."""

        def committed() -> int:
            return self._log.committed_offsets(self._application).get(INPUT, 0)

        self._await(committed, records, "committed nothing", _ASK_S)

    def _await(self, reached: Callable[[], int], wanted: int, failing: str, pause_s: float) -> None:
        furthest, since = -1, time.monotonic()
        while (now := reached()) < wanted:
            check_time()
            assert self._process is not None
            if self._process.poll() is not None:
                complaint = complaint_in(self._complaints.read_text(errors="replace"))
                raise MeasurementFailedError(f"{self._name} ended with status {self._process.returncode}: {complaint}")
            if now > furthest:
                furthest, since = now, time.monotonic()
            elif time.monotonic() - since > STALLED_S:
                raise MeasurementFailedError(f"{self._name} has {failing} for {STALLED_S:.0f} s")
            time.sleep(pause_s)

    @property
    def _figures(self) -> Path:
        return self._folder / f"figures-{self._starts}"

    @property
    def _complaints(self) -> Path:
        return self._folder / "complaints"


def _our_command(folder: Path, arguments: Mapping[str, Any], backend: str) -> list[str]:
    write_figures(folder / restart_worker.ARGUMENTS_FILE, {**arguments, "backend": backend})
    return [sys.executable, "-P", "-m", restart_worker.__name__, str(folder)]


def _streams_command(folder: Path, arguments: Mapping[str, Any]) -> list[str]:
    from stores.changelog.kafka.testing.jars import STREAMS as STREAMS_JARS

    given = folder / "given.properties"
    given.write_text("".join(f"{name}={value}\n" for name, value in arguments.items()))
    java = find_java("Kafka Streams").program
    jars = f"{JARS / STREAMS_JARS}/*"
    return [str(java), STREAMS_HEAP, f"-Djava.io.tmpdir={folder}", "-cp", jars, str(PROGRAM), str(given)]
