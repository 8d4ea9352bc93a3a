"""A process of a trial: ``python -m harness.experiments.crash.writer NUMBER`` in the trial's work folder.

The first, 0, creates all files, and works on the input with a task: it commits, notes its acknowledgements, and dies
where the trial's fault says. Each later one reads a copy of the stores that the last process left. Then it recovers,
restores, and works to the end of the input, unless the trial's fault kills it on the way.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from harness import replay
from harness.experiments.crash.observation import History
from harness.experiments.crash.operations import (
    READING,
    STORES,
    apply,
    decoded,
    encoded,
    inputs,
    output,
    output_key,
)
from harness.experiments.crash.trial import (
    APPLICATION,
    CHANGELOG_FILE,
    FOUND_FOLDER,
    INPUT_TOPIC,
    OTHER_STATE_FOLDER,
    OUTPUT_TOPIC,
    STATE_FOLDER,
    TRIAL_FILE,
    CrashTrial,
    changelog_topic,
    history_file,
)
from harness.faults import NOTHING, Fault, ProvokedError
from harness.mutants import patch
from harness.processes.child import end_with_starter
from harness.typed_maps import as_map, record_kind, view_as_map
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.errors import ChangelogTimeoutError, ProducerFencedError
from stores.failpoints import failpoint as declaration
from stores.files.sqlite_library import connect, roll_back
from stores.interface import Durability, IsolationLevel, ProcessingGuarantee, TopicPartition
from stores.registry import backend_named, open_store
from stores.tasks import StateDirectory, TaskSettings
from stores.tasks.context import TaskContext
from stores.tasks.identifier import TaskId
from stores.tasks.stores.log_follower import RestoreReport
from stores.tasks.task import StreamTask
from stores.tasks.timing import NO_INTERVAL

TASK = TaskId(0, 0)
INPUT = TopicPartition(INPUT_TOPIC, 0)
PRESSURE: Mapping[str, object] = {"write_buffer_size_bytes": 16 << 10}
"""Options that make engines that have them flush in the background all the time."""
FLUSH_TIME_S = 0.3
"""The time for background flushes before a death under flush pressure, so that they reach the files."""


class Job:
    """One process's part of a trial: a task over the input, from where the last process stopped."""

    def __init__(self, trial: CrashTrial, work: Path, step: Fault, history: History) -> None:
        self._trial, self._work, self._step, self._history = trial, work, step, history
        self.processed = self.commits = 0
        self._transactional: set[str] = set()
        # At PROCESS a kill loses nothing of the log. DISK would be several times slower.
        self._changelog = SqliteChangelog(work / CHANGELOG_FILE, Durability.PROCESS, timeout_s=step.changelog_timeout_s)
        for topic in (INPUT_TOPIC, OUTPUT_TOPIC):
            self._changelog.create_topic(topic)
        self._task = self._instance(STATE_FOLDER)

    def _instance(self, state_folder: str) -> StreamTask:
        """Return an instance of the task, with its stores below a folder of its own."""
        trial = self._trial
        store = StoreConfig(
            backend=trial.backend,
            durability=Durability(trial.durability),
            options=store_options(trial),
            uncommitted_max_bytes=trial.uncommitted_max_bytes,
            records=record_kind(trial.records),
        )
        return StreamTask(
            APPLICATION,
            TASK,
            state_dir=self._work / state_folder,
            changelog=self._changelog,
            stores=dict.fromkeys(STORES, store),
            process=self._process,
            inputs=[INPUT],
            settings=TaskSettings(commit_interval_ms=NO_INTERVAL, guarantee=ProcessingGuarantee(trial.guarantee)),
        )

    def open(self) -> list[RestoreReport]:
        """Recover and restore the task's stores."""
        return self._task.open()

    def states(self) -> dict[str, dict[str, str]]:
        """Return all pairs of each store."""
        return {store: dump(as_map(self._trial.records, self._task.store(store))) for store in STORES}

    def reported(self, reports: Sequence[RestoreReport]) -> dict[str, dict[str, Any]]:
        """Return each restored store with its restore report, as JSON values."""
        states = self.states()
        return {
            report.store: {
                "state": states[report.store],
                "records": report.records,
                "wiped": report.wiped,
                "reason": report.reason,
            }
            for report in reports
        }

    def work(self) -> None:
        """Process the input from the task's offset to its end, or until the fault strikes; then close."""
        while self._stretch():
            pass
        self._step.finish(self)
        self.close()
        self._history.note("closed")

    def close(self) -> None:
        """Close the task and its changelog."""
        self._task.close()
        self._changelog.close()

    def _stretch(self) -> bool:
        """Process records from the task's offset. Return True if an abort reset it and it must continue from there."""
        for record in self._input(self._task.input_offsets()[INPUT]):
            early_commits = self._early_commits()
            try:
                self._task.process(INPUT, record)
            except ProvokedError:
                self._history.note("aborted")
                self._note_return()
                return self._step.after_abort(self)
            if self._early_commits() > early_commits:
                self._acknowledge(record.offset + 1)
            if self._step.after_record(self):
                break
            if (record.offset + 1) % self._trial.commit_every == 0 and not self._commit(record.offset + 1):
                return True
        return False

    def note(self, event: str) -> None:
        """Note an event in the history."""
        self._history.note(event)

    def die(self, at: str) -> NoReturn:
        """End this process by SIGKILL, so that no cleanup runs."""
        self._history.note("killed", at=at)
        os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(1)

    def let_flush(self) -> None:
        """Give background flushes time to reach the files."""
        time.sleep(FLUSH_TIME_S)

    def finish(self) -> None:
        """Commit, and note the final states."""
        self._task.commit()
        self._history.note("final", states=self.states())

    def be_taken_over(self) -> None:
        """Let another instance process the records of one commit, from this one's last commit on."""
        other = self._instance(OTHER_STATE_FOLDER)
        other.open()
        for record in islice(self._input(other.input_offsets()[INPUT]), self._trial.commit_every):
            other.process(INPUT, record)
        other.close()
        self._history.note("taken_over")

    def commit_in_vain(self) -> None:
        """Continue without knowledge of the other instance, and try to commit."""
        try:
            for record in islice(self._input(self._task.input_offsets()[INPUT]), 1):
                self._task.process(INPUT, record)
            self._task.commit()
        except ProducerFencedError:
            self._history.note("refused")

    def _input(self, first: int) -> Iterator[Record]:
        """Yield the input from record ``first`` on, generated one by one: it may be larger than memory."""
        for number, operations in enumerate(inputs(self._trial.mix, self._trial.seed)):
            if number >= first:
                yield Record(number, output_key(number), encoded(operations))

    def _process(self, record: Record, context: TaskContext) -> None:
        reads = []
        stores = {store: as_map(self._trial.records, context.store(store)) for store in STORES}
        self._transactional = {name for name, store in stores.items() if store.transactional}
        for operation in decoded(record.value or b""):
            read = apply(operation, stores[operation.store])
            if operation.kind in READING:
                reads.append(read)
        context.forward(OUTPUT_TOPIC, record.key, output(reads))
        self.processed += 1
        self._step.in_record(self)

    def _early_commits(self) -> int:
        return sum(self._task.metrics.early_commit_total.values())

    def _note_return(self) -> None:
        self._history.note(
            "fell_back",
            next_input=self._task.input_offsets()[INPUT],
            stores=self.reported(self._task.restore_reports()),
            transactional=sorted(self._transactional),
        )

    def _commit(self, next_input: int) -> bool:
        """Return True if the commit is made, False if it timed out: the task then continues from its last commit."""
        self.commits += 1
        if self._step.in_commit(self):
            return False
        self._task.commit()
        self._acknowledge(next_input)
        return True

    def time_out(self) -> bool:
        """Commit while another process holds the changelog. Return True if that timed out."""
        try:
            with occupied(self._work / CHANGELOG_FILE):
                self._task.commit()
        except ChangelogTimeoutError:
            self._history.note("timed_out")
            self._note_return()
            return True
        return False

    def _acknowledge(self, next_input: int) -> None:
        ends = {store: self._changelog.end_offset(changelog_partition(store)) for store in STORES}
        self._history.note("acknowledged", next_input=next_input, log_ends=ends)


@contextmanager
def occupied(changelog: Path) -> Iterator[None]:
    """Hold the changelog file's write lock during the block: a commit to it waits until its timeout."""
    with closing(connect(changelog)) as other:
        other.execute("begin immediate")
        yield
        roll_back(other)


def changelog_partition(store: str) -> TopicPartition:
    """Return the changelog partition of one of the task's stores."""
    return TopicPartition(changelog_topic(store), TASK.partition)


def store_options(trial: CrashTrial) -> dict[str, object]:
    """Return the backend's options in this trial."""
    options = backend_named(trial.backend).options
    pressure = PRESSURE if trial.fault.flushes else {}
    return {name: value for name, value in pressure.items() if name in options} | dict(trial.options)


def dump(store: Any) -> dict[str, str]:
    """Return all pairs of a store, or of a typed store as a map, as text for a history."""
    with store.all() as pairs:
        return {key.decode("latin-1"): value.decode("latin-1") for key, value in pairs}


def work(number: int) -> None:
    """Work until the fault kills this process, or to the end of the input.

    A process that is not the first notes what it finds before it recovers, and what it restores. The last one notes the
    final state of persistent stores.
    """
    folder = Path.cwd()
    trial = replay.from_text(CrashTrial, (folder / TRIAL_FILE).read_text())
    steps = trial.fault.steps
    step = steps[number] if number < len(steps) else NOTHING
    patch(trial.mutant, backend_named(trial.backend).name)
    with History(folder / history_file(number)) as history:
        if number:
            history.note("found", stores={store: found(trial, folder / FOUND_FOLDER, store) for store in STORES})
        else:
            history.note("begin")
            if trial.fault.place and declaration(trial.fault.place).settled_before:
                settle(Job(trial, folder, NOTHING, history))
        job = Job(trial, folder, step, history)
        step.arm(job)
        reports = job.open()
        if number:
            history.note("restored", stores=job.reported(reports))
        job.work()
        if step is NOTHING and backend_named(trial.backend).persistent:
            history.note(
                "final", states={store: found(trial, folder / STATE_FOLDER, store)["state"] for store in STORES}
            )


def settle(job: Job) -> None:
    """Let the stores of a task persist what they note of themselves when they are made."""
    job.open()
    job.close()


def found(trial: CrashTrial, folder: Path, store: str) -> dict[str, Any]:
    """Open one store below ``folder`` alone, and return its content after recovery and its declared properties."""
    path = StateDirectory(folder).store_folder(TASK, trial.backend, store)
    with open_store(
        trial.backend, path, name=store, durability=trial.durability, options=store_options(trial)
    ) as content:
        return {
            "state": dump(view_as_map(trial.records, content.read_only(IsolationLevel.READ_COMMITTED))),
            "committed_offset": content.committed_offset(changelog_partition(store)),
            "position": content.position(IsolationLevel.READ_COMMITTED).get(INPUT),
            "recovery": content.recover().outcome,
            "transactional": content.transactional,
            "manages_offsets": content.manages_offsets,
            "persistent": content.persistent,
        }


if __name__ == "__main__":
    end_with_starter()
    work(int(sys.argv[1]))
