"""Tasks of the library: one with a transaction of its own, or two in that of their thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from harness.tests.client_retries.subject import (
    INPUT,
    NO_HOOKS,
    RECORDS,
    Abandoned,
    Deadline,
    Fenced,
    Hook,
    Hooks,
    Subject,
)
from harness.tests.client_retries.trial import THREAD, Trial
from stores import failpoints
from stores.changelog.interface import Record
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.client import served
from stores.changelog.producer import BEFORE_COMMIT
from stores.errors import (
    ChangelogTimeoutError,
    CommitInDoubtError,
    ProducerFencedError,
    StoreError,
    TransactionAbortedError,
)
from stores.interface import TopicPartition
from stores.tasks import NO_INTERVAL, SharedResources, StreamTask, TaskContext, TaskId, TaskSettings, ThreadTransaction

SESSION_S = 6
_PASSING = (ChangelogTimeoutError, CommitInDoubtError, TransactionAbortedError)


class Tasks(Subject):
    """The tasks keep no store: what a transaction has besides outputs and offsets are more records."""

    def __init__(
        self, trial: Trial, address: str, name: str, instance: str, folder: Path, *, gives_up: bool = False
    ) -> None:
        super().__init__(trial, address, name, instance, gives_up=gives_up)
        self._folder = folder / instance
        self._held: set[TopicPartition] = set()
        self._tasks: list[StreamTask] = []
        self._member: Any = None
        self._log: Any = None
        self._target, self._hooks = 0, NO_HOOKS

    def open(self) -> None:
        own = self.settings() | self.producer_settings()
        self._log = KafkaChangelog(own, timeout_s=20)
        transaction = None
        if self.trial.scope == THREAD:
            self._join()
            transaction = ThreadTransaction(self._log, f"{self.name}/{self.instance}")
        for number in self.partitions:
            task = StreamTask(
                self.name,
                TaskId(0, number),
                state_dir=self._folder,
                changelog=self._log,
                stores={},
                process=partial(self._process, number),
                inputs=[TopicPartition(INPUT, number)],
                shared=SharedResources(transaction=transaction),
                settings=TaskSettings(
                    commit_interval_ms=NO_INTERVAL, task_timeout_s=0, partitioner=lambda key, count: int(key)
                ),
            )
            self._tasks.append(task)
            self._until_done(task.open)

    def _join(self) -> None:
        self._member = self._log.join_group(
            self.name, [INPUT], self, fingerprint="f", session_timeout_s=SESSION_S, fencing=True
        )
        deadline = Deadline()
        while len(self._held) < len(self.partitions):
            self._member.poll(0.05)
            deadline.check()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Take partitions, as a listener of the group."""
        self._held |= set(partitions)

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Give partitions back, as a listener of the group."""
        self._held -= set(partitions)

    lose = revoke

    def _process(self, partition: int, record: Record, context: TaskContext) -> None:
        context.forward(self.name, b"%d" % partition, b"%d" % record.offset)
        if partition == self.partitions[-1]:
            self._come(context, self._target - 1 - record.offset)

    def _come(self, context: TaskContext, left: int) -> None:
        """Call the hooks of the stages that are reached when the last partition has ``left`` more inputs."""
        if left not in (0, RECORDS // 2):
            return
        producer: Any = context._producer
        # The producer holds few records, but more than these.
        producer._append(ends=False)
        if left == 0:
            self._hooks.sending()
        with suppress(KafkaException):  # The next call of the library reports it.
            served(producer._writer._client.flush, 20)
        (self._hooks.begun if left else self._hooks.sent)()

    def work(self, target: int, hooks: Hooks = NO_HOOKS) -> None:
        self._target, self._hooks = target, hooks
        with _reaching(hooks.ending):
            self._until_done(self._run)

    def abandon(self, target: int, hooks: Hooks) -> None:
        self._target, self._hooks = target, hooks
        with _reaching(hooks.ending), suppress(Abandoned, *_PASSING):
            self._run()

    def attempt(self, target: int) -> None:
        self._target, self._hooks = target, NO_HOOKS
        with suppress(StoreError):
            self._run()

    def _run(self) -> None:
        """Process up to the target, and commit."""
        while behind := [task for task in self._tasks if self._next(task) < self._target]:
            for task in behind:
                task.run(self._target - self._next(task))
        self._tasks[0].commit()
        if any(self._next(task) < self._target for task in self._tasks):
            raise TransactionAbortedError("it was rolled back")

    def _next(self, task: StreamTask) -> int:
        [offset] = task.input_offsets().values()
        return offset

    def _until_done(self, call: Callable[[], object]) -> None:
        deadline = Deadline()
        while True:
            try:
                call()
                return
            except ProducerFencedError:
                raise Fenced from None
            except _PASSING as error:
                self.notes.append(type(error).__name__)
                deadline.check()

    def leave(self) -> None:
        if self._member is not None:
            self._member.close()

    def close(self) -> None:
        for task in self._tasks:
            with suppress(StoreError):
                task.close(clean=False)
        if self._member is not None:
            self._member.close()
        self._log.close()


@contextmanager
def _reaching(hook: Hook) -> Iterator[None]:
    """Call a hook before each commit. If it abandons that, the commit fails as one that can't be requested in time."""

    def come() -> None:
        try:
            hook()
        except Abandoned:
            raise ChangelogTimeoutError("the application gives up") from None

    failpoints.arm(BEFORE_COMMIT, come)
    try:
        yield
    finally:
        failpoints.disarm(BEFORE_COMMIT)
