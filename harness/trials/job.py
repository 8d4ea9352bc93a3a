"""The task of a trial at work on its input: it commits, notes what it was promised, and dies where it is told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.faults import Abort, Kill, KillAfter, Step, Stop, has_flush_pressure
from harness.trials.history import History
from harness.trials.layout import (
    APPLICATION,
    CHANGELOG_FILE,
    INPUT_TOPIC,
    OUTPUT_TOPIC,
    STATE_FOLDER,
    STORES,
    changelog_topic,
)
from harness.trials.operations import READING, apply, decoded, encoded, inputs, output
from harness.trials.oracle import output_key
from harness.trials.trial import Trial
from stores import failpoints
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.interface import Durability, ProcessingGuarantee, ReadOnlyKeyValueStore, TopicPartition
from stores.registry import backend_named
from stores.tasks.context import TaskContext
from stores.tasks.identifier import TaskId
from stores.tasks.restore import RestoreReport
from stores.tasks.task import StreamTask

TASK = TaskId(0, 0)
INPUT = TopicPartition(INPUT_TOPIC, 0)
PRESSURE: Mapping[str, object] = {"write_buffer_size_bytes": 16 << 10}
"""Options that make an engine which has them flush in the background all the time."""
FLUSH_TIME_S = 0.3
"""How long flushes in the background get to end before a death under flush pressure: what they reach is then sure."""


class ProvokedError(Exception):
    """What the user's function raises where a trial asks for an abort."""


class Job:
    """One process's share of a trial: a task over the whole input, from where the last one left it."""

    def __init__(
        self, trial: Trial, work: Path, step: Step | None, history: History, *, wipe_unclean: bool = True
    ) -> None:
        self._trial, self._step, self._history = trial, step, history
        self._processed = 0
        # A killed process loses nothing of a log at PROCESS, and at DISK it would be several times slower.
        self._changelog = SqliteChangelog(work / CHANGELOG_FILE, Durability.PROCESS)
        for topic in (INPUT_TOPIC, OUTPUT_TOPIC):
            self._changelog.create_topic(topic)
        store = StoreConfig(
            backend=trial.backend,
            durability=Durability(trial.durability),
            options=store_options(trial),
            uncommitted_max_bytes=trial.uncommitted_max_bytes,
        )
        self._task = StreamTask(
            APPLICATION,
            TASK,
            state_dir=work / STATE_FOLDER,
            changelog=self._changelog,
            stores=dict.fromkeys(STORES, store),
            process=self._process,
            inputs=[INPUT],
            guarantee=ProcessingGuarantee(trial.guarantee),
            wipe_unclean=wipe_unclean,
        )

    def open(self) -> list[RestoreReport]:
        """Recover and restore the task's stores."""
        return self._task.open()

    def states(self) -> dict[str, dict[str, str]]:
        """All pairs of each store."""
        return {store: dump(self._task.store(store)) for store in STORES}

    def work(self) -> None:
        """Process the input from where the task stands to its end or to where the fault strikes; then close."""
        while self._stretch():
            pass
        self._task.commit()
        self._history.note("final", states=self.states())
        self._task.close()
        self._changelog.close()
        self._history.note("closed")

    def _stretch(self) -> bool:
        """Work from where the task stands; True where an abort has set it back and it is to go on from there."""
        for record in self._input(self._task.input_offsets()[INPUT]):
            early_commits = self._early_commits()
            try:
                self._task.process(INPUT, record)
            except ProvokedError:
                self._history.note("aborted")
                return self._goes_on_after_abort()
            if self._early_commits() > early_commits:
                self._acknowledge(record.offset + 1)
            if isinstance(self._step, KillAfter) and self._processed == self._step.records:
                self._let_flush(self._step)
                die(self._history, "record")
            if isinstance(self._step, Stop) and self._processed == self._step.records:
                self._history.note("stopped")
                break
            if (record.offset + 1) % self._trial.commit_every == 0:
                self._commit(record.offset + 1)
        return False

    def _input(self, first: int) -> Iterator[Record]:
        """The input from record ``first`` on, made as it is read: it may be larger than memory."""
        for number, operations in enumerate(inputs(self._trial.mix, self._trial.seed)):
            if number >= first:
                yield Record(number, output_key(number), encoded(operations))

    def _process(self, record: Record, context: TaskContext) -> None:
        reads = []
        for operation in decoded(record.value or b""):
            read = apply(operation, context.store(operation.store))
            if operation.kind in READING:
                reads.append(read)
        context.forward(OUTPUT_TOPIC, record.key, output(reads))
        self._processed += 1
        if isinstance(self._step, Abort) and self._processed == self._step.records:
            self._let_flush(self._step)
            raise ProvokedError

    def _let_flush(self, step: Abort | KillAfter) -> None:
        if step.flush_pressure:
            time.sleep(FLUSH_TIME_S)

    def _goes_on_after_abort(self) -> bool:
        assert isinstance(self._step, Abort)
        if self._step.then == "kill":
            die(self._history, "abort")
        return self._step.then == "go_on"

    def _early_commits(self) -> int:
        return sum(self._task.metrics.early_commit_total.values())

    def _commit(self, next_input: int) -> None:
        self._task.commit()
        self._acknowledge(next_input)

    def _acknowledge(self, next_input: int) -> None:
        ends = {store: self._changelog.end_offset(changelog_partition(store)) for store in STORES}
        self._history.note("acknowledged", next_input=next_input, log_ends=ends)


def changelog_partition(store: str) -> TopicPartition:
    """The changelog partition of one of the task's stores."""
    return TopicPartition(changelog_topic(store), TASK.partition)


def store_options(trial: Trial) -> dict[str, object]:
    """The backend's options in this trial."""
    known = backend_named(trial.backend).options
    pressure = PRESSURE if has_flush_pressure(trial.fault) else {}
    return {name: value for name, value in pressure.items() if name in known} | dict(trial.options)


def dump(store: ReadOnlyKeyValueStore) -> dict[str, str]:
    """All pairs of a store, as text that a history can hold."""
    with store.all() as pairs:
        return {key.decode("latin-1"): value.decode("latin-1") for key, value in pairs}


def arm(step: Step | None, history: History) -> None:
    """Let the failpoint of a ``Kill`` end this process when it is reached as often as the kill says.

    Raises: ValueError where no module that is loaded declares it.
    """
    if not isinstance(step, Kill):
        return
    reached = 0

    def count() -> None:
        nonlocal reached
        reached += 1
        if reached == step.hit:
            die(history, step.failpoint)

    failpoints.arm(step.failpoint, count)


def die(history: History, at: str) -> None:
    """End this process by SIGKILL; nothing of it runs afterwards."""
    history.note("killed", at=at)
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)
