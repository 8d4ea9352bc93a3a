"""The tasks of a worker against a model: whatever the group does and when, the worker runs those that it was given.

The model is the group's own table. The worker's listener, its stream threads and the members of the group are real.
The threads make their turns when the model says so. The group acts also while a function runs, or a task opens or
closes. Nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from stores.changelog import file_group
from stores.changelog.file_group import FileGroupMember
from stores.changelog.group import GroupListener
from stores.changelog.kafka.group_member import KafkaGroupMember
from stores.interface import TopicPartition
from stores.tasks import TaskId
from stores.worker import Application, Processor, Worker, running_task, stream_thread, worker
from stores.worker.stream_thread import StreamThread

PARTITIONS = [TopicPartition("words", number) for number in range(4)]
CALLS = ("lock", "open", "run", "close")
TURNS_MAX = 8
_APPLICATION = Application("model", Processor(["words"], lambda record, context: None))


class FailedError(Exception):
    """The error of a function."""


class ManualThread(StreamThread):
    """A stream thread without a thread: ``turn`` makes one of its turns. Who waits for it makes turns, too."""

    in_turn = False

    def start(self) -> None:
        """Do not begin."""

    def await_released(self, task_ids: Collection[TaskId], timeout_s: float) -> bool:
        if not self.in_turn:
            self.turn()
        return super().await_released(task_ids, 0)

    def turn(self) -> None:
        """Make a turn; end as the thread does after ``stop`` or an error."""
        if self._ended:
            return
        self.in_turn = True
        try:
            if not self._turn():
                self._finish()
        except FailedError as error:
            self.failure = error
            self._finish()
        finally:
            self.in_turn = False


class Stage:
    """A worker whose tasks call back into the model: ``during`` may act while a task opens, runs or closes."""

    def __init__(self, threads: int, during: Callable[[str, TaskId], None]) -> None:
        self.worker = Worker(_APPLICATION, {"changelog.file": "unused", "state.dir": "unused"})
        self.worker._leading = {"words": 0}
        self.open: dict[TaskId, object] = {}
        """The tasks that are open, which hold the lock of their folder."""
        self.lost: list[object] = []
        """The tasks that were open when their partition was lost."""
        self.began: Callable[[TopicPartition], None] = lambda partition: None
        self.commits: Callable[[TopicPartition], None] = lambda partition: None
        self._during = during
        self.threads = [ManualThread(number, self.make, 60.0) for number in range(threads)]
        self.worker._threads = list(self.threads)

    def make(self, task_id: TaskId, on_restore: object) -> Any:
        me = object()
        partition = TopicPartition("words", task_id.partition)

        def open_task(copy: object) -> None:
            assert copy is None, "no thread keeps a standby copy here"
            assert task_id not in self.open, "it would wait for the lock of the folder"
            self.open[task_id] = me
            self._during("lock", task_id)
            self.began(partition)
            self._during("open", task_id)

        def run(records_max: int, *, only_arrived: bool) -> int:
            assert self.open.get(task_id) is me
            self._during("run", task_id)
            self.commits(partition)
            return 0

        def close(clean: bool = True) -> None:
            if self.open.get(task_id) is not me:
                return
            assert not clean or me not in self.lost
            self._during("close", task_id)
            try:
                if clean:
                    self.commits(partition)
            finally:
                del self.open[task_id]

        return SimpleNamespace(
            open=open_task, run=run, close=close, input_offsets=dict, metrics=SimpleNamespace(process_total=0)
        )

    @property
    def running(self) -> set[int]:
        """The partitions whose tasks run."""
        return {status.task_id.partition for thread in self.threads for status in thread.status() if status.running}

    def settle(self) -> None:
        """Let the threads make turns until all of their tasks are as they are to be."""
        for _ in range(TURNS_MAX):
            for thread in self.threads:
                thread.turn()


class EmbeddedGroup:
    """A group over files: the worker is one of its members, and the others keep what they get."""

    def __init__(self, folder: Path, listener: GroupListener) -> None:
        self._path = folder / "log.sqlite"
        self._own = self._member(listener)
        self._others: list[FileGroupMember] = []

    def _member(self, listener: GroupListener) -> FileGroupMember:
        return FileGroupMember(self._path, "model", PARTITIONS, listener, "f")

    def act(self, number: int) -> None:
        """Let a member join or leave, or let one of them look."""
        kind = number % 4
        if kind == 0 and len(self._others) < 3:
            ignoring: Any = SimpleNamespace(assign=lambda given: None, revoke=lambda given: None)
            self._others.append(self._member(ignoring))
        elif kind == 1 and self._others:
            self._others.pop(number // 4 % len(self._others)).close()
        for each in [*self._others, *([] if kind == 3 else [self._own])]:
            each.poll(0)

    @property
    def held(self) -> set[int]:
        return {number for _, number in self._own._held}

    def close(self) -> None:
        for each in [*self._others, self._own]:
            each.close()


class _Coordinator:
    """A client of the worker's member, by which the model's coordinator calls it back."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[Any, Any], None]] = {}
        self.generation = 1
        self.held: list[Any] = []

    def subscribe(self, topics: object, **calls: Callable[[Any, Any], None]) -> None:
        self.calls = calls

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.held += partitions

    def incremental_unassign(self, partitions: list[Any]) -> None:
        numbers = {each.partition for each in partitions}
        self.held = [each for each in self.held if each.partition not in numbers]

    def assignment(self) -> list[Any]:
        return list(self.held)

    def pause(self, partitions: object) -> None:
        pass

    def close(self) -> None:
        pass

    def consumer_group_metadata(self) -> bytes:
        return b"generation %d group\0" % self.generation


class KafkaGroup:
    """A consumer group as its member sees it: partitions come, are revoked, or are lost; others have them meanwhile.

    It knows how often others have had each partition, and checks that a commit has the offsets of a task that began
    after the last time.
    """

    def __init__(self, listener: GroupListener, stage: Stage) -> None:
        self._client = _Coordinator()
        cluster: Any = SimpleNamespace(
            client=lambda kind, own: self._client,
            asked=lambda doing, ask: SimpleNamespace(members=[]),
            settings=SimpleNamespace(value=lambda name, default: default),
        )
        fencing: Any = SimpleNamespace(
            fence_by=lambda group, member: None, outside_metadata=lambda group: b"generation 0 group\0"
        )
        self._member = KafkaGroupMember(cluster, "group", ["words"], listener, "f", 6.0, fencing=fencing)
        self._elsewhere: dict[TopicPartition, int] = dict.fromkeys(PARTITIONS, 0)
        self._as_of: dict[TopicPartition, int] = {}
        self._stage = stage
        stage.began, stage.commits = self._began, self._commits

    def _began(self, partition: TopicPartition) -> None:
        self._member.begin([partition])
        self._as_of[partition] = self._elsewhere[partition]

    def _commits(self, partition: TopicPartition) -> None:
        self._member.metadata([partition])
        assert partition.partition in self.held
        assert self._as_of[partition] == self._elsewhere[partition], "offsets that another member has passed"

    def act(self, number: int) -> None:
        """Assign or revoke a partition, or lose all; in a new generation."""
        partition = PARTITIONS[number // 4 % len(PARTITIONS)]
        theirs = confluent_kafka.TopicPartition(*partition)
        client = self._client
        client.generation += 1
        has = [each for each in client.held if each.partition == partition.partition]
        if number % 4 == 3:
            partitions = list(client.held)
            self._stage.lost += [work for task_id, work in self._stage.open.items() if task_id.partition in self.held]
            client.calls["on_lost"](client, partitions)
            for each in partitions:
                self._elsewhere[TopicPartition(each.topic, each.partition)] += 1
        elif has:
            client.calls["on_revoke"](client, has)
            self._elsewhere[partition] += 1
        else:
            client.calls["on_assign"](client, [theirs])
        self._member._look()

    @property
    def held(self) -> set[int]:
        return {each.partition for each in self._client.held}

    def close(self) -> None:
        self._member.close()


@pytest.fixture(autouse=True)
def _without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RELEASE_S", 0.0)
    monkeypatch.setattr(stream_thread, "_IDLE_S", 0.0)
    monkeypatch.setattr(running_task, "PAUSE_S", 0.0)
    monkeypatch.setattr(file_group, "BALANCE_S", 0.0)


ACTS = st.one_of(st.sampled_from([0, 0, 3]), st.integers(0, 15))
"""Often the same partition, whose task may still be busy since the time before."""
STEPS = st.lists(st.one_of(st.tuples(st.just("act"), ACTS), st.tuples(st.just("turn"), st.integers(0, 1))), max_size=12)
DURING = st.lists(st.tuples(st.sampled_from(CALLS), st.lists(ACTS, max_size=5)), max_size=8)


class Trial:
    """The steps of one random order: acts of the group between the turns, and acts while a task is busy."""

    def __init__(self, threads: int, during: Collection[tuple[str, list[int]]], fails_at: int = 0) -> None:
        self._during = list(during)
        self._in_act = False
        self._calls, self._fails_at = 0, fails_at
        self.stage = Stage(threads, self._called)
        self.group: EmbeddedGroup | KafkaGroup

    def _act(self, act: int) -> None:
        self._in_act = True
        try:
            self.group.act(act)
        finally:
            self._in_act = False

    def _called(self, call: str, task_id: TaskId) -> None:
        # One thread takes part in the group: while it waits for a release, nothing else happens there.
        if self._during and self._during[0][0] == call and not self._in_act:
            for act in self._during.pop(0)[1]:
                self._act(act)
        if call == "run":
            self._calls += 1
            if self._calls == self._fails_at:
                raise FailedError

    def run(self, steps: Collection[tuple[str, int]]) -> None:
        """Make the steps, and let the threads settle."""
        for kind, number in steps:
            if kind == "act":
                self._act(number)
            else:
                self.stage.threads[number % len(self.stage.threads)].turn()
        self._during = []
        self.stage.settle()

    def check(self) -> None:
        """Check that exactly the tasks run that the group has given to the worker."""
        assert self.stage.running == self.group.held
        assert {task_id.partition for task_id in self.stage.open} == self.group.held
        statuses = [status.task_id.partition for thread in self.stage.threads for status in thread.status()]
        assert sorted(statuses) == sorted(self.group.held)

    def end(self) -> None:
        """Let the worker end, and check that nothing is left open."""
        self.stage.worker._ended = True
        for thread in self.stage.threads:
            thread.stop()
        self.stage.settle()
        self.group.close()
        assert not self.stage.open
        assert all(thread.assigned == [] for thread in self.stage.threads)


def embedded(trial: Trial, folder: Path) -> EmbeddedGroup:
    return EmbeddedGroup(folder, trial.stage.worker)


def kafka(trial: Trial, folder: Path) -> KafkaGroup:
    return KafkaGroup(trial.stage.worker, trial.stage)


KINDS = pytest.mark.parametrize("group", [embedded, kafka])


@KINDS
@seed(1)
@settings(max_examples=150, deadline=None)
@given(threads=st.integers(1, 2), steps=STEPS, during=DURING)
def test_the_tasks_that_run_are_those_that_the_group_has_given(
    tmp_path_factory: pytest.TempPathFactory, group: Any, threads: int, steps: Any, during: Any
) -> None:
    trial = Trial(threads, during)
    trial.group = group(trial, tmp_path_factory.mktemp("group"))
    trial.run(steps)
    trial.check()
    trial.end()


@KINDS
@seed(2)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, during=DURING, fails_at=st.integers(1, 5))
def test_after_an_error_the_thread_closes_its_tasks_and_the_other_thread_keeps_its_own(
    tmp_path_factory: pytest.TempPathFactory, group: Any, steps: Any, during: Any, fails_at: int
) -> None:
    trial = Trial(2, during, fails_at)
    trial.group = group(trial, tmp_path_factory.mktemp("group"))
    trial.run(steps)
    failing = [thread for thread in trial.stage.threads if thread.failure is not None]
    assert all(thread.assigned == [] for thread in failing)
    others = [task_id for thread in trial.stage.threads if thread not in failing for task_id in thread.assigned]
    assert sorted(trial.stage.open) == sorted(others)
    trial.end()
