"""The commit order and the rollback of a task without any store: each error at each step, and the state after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from stores.changelog import MemoryChangelog, Producer, Record
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitFailedError, ProducerFencedError, StoreError
from stores.interface import Position, TopicPartition
from stores.tasks import NO_INTERVAL, TaskContext
from stores.tasks.offset_reset import InputStarts
from stores.tasks.stores.store_group import StoreGroup
from stores.tasks.task_state import TaskCounters, TaskLifecycle, TaskState
from stores.tasks.task_transaction import TaskTransaction
from stores.tasks.timing import SystemClock, Timing
from stores.tests.tasks.setup import INPUT, TASK, feed

COMMITTED = ["before_commit", "finish_logs", "send_stream_times", "commit", "begin"]
AFTERWARDS = ["compact_logs", "upgrade_step", "swap_upgraded", "take_snapshots"]


class NoStores(StoreGroup):
    """No store at all: it notes each call, and raises the errors that a test has planned for it, in their order."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return []

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: dict[str, list[Exception]] = {}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    def position(self) -> Position:
        return {}

    def begin(self) -> None:
        self._called("begin")

    def before_commit(self) -> None:
        self._called("before_commit")

    def finish_logs(self) -> None:
        self._called("finish_logs")

    def send_stream_times(self, producer: Producer) -> None:
        self._called("send_stream_times")

    def commit(self, offsets: Mapping[TopicPartition, int], position: Position) -> None:
        self._called("commit")

    def compact_logs(self) -> None:
        self._called("compact_logs")

    def upgrade_step(self) -> None:
        self._called("upgrade_step")

    def swap_upgraded(self, position: Position) -> None:
        self._called("swap_upgraded")

    def take_snapshots(self) -> None:
        self._called("take_snapshots")

    def rollback(self) -> None:
        self._called("rollback")

    def return_to_commit(self, cause: BaseException, position: Position) -> None:
        self._called("return_to_commit")


class Begun:
    """A running transaction over no stores, in which one record of INPUT was processed."""

    def __init__(self, log: MemoryChangelog) -> None:
        feed(log, [1])
        self.log, self.stores, self.closed = log, NoStores(), 0
        timing = Timing(NO_INTERVAL, SystemClock())
        self.context = TaskContext(TASK, log, timing.punctuation, timing.stream_time)
        self.lifecycle = TaskLifecycle(TASK)
        self.transaction = TaskTransaction(
            "app",
            TASK,
            [INPUT],
            log,
            self.stores,
            self.context,
            timing,
            self.lifecycle,
            TaskCounters(),
            exactly_once=True,
            make_schedules=lambda: None,
            close=self._close,
            starts=InputStarts(TASK, log, None),
        )
        self.lifecycle.open()
        self.transaction.open_producer()
        self.transaction.begin()
        self.process()
        self.stores.calls.clear()

    def process(self) -> None:
        self.transaction.next_offsets[INPUT] = 1
        self.transaction.processed = 1

    def _close(self) -> None:
        self.closed += 1
        self.lifecycle.close()

    def state(self) -> TaskState:
        return self.lifecycle.state


@pytest.fixture
def begun() -> Begun:
    return Begun(MemoryChangelog())


def test_a_commit_goes_to_the_changelog_first_and_then_to_the_stores(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = begun.context._producer.commit

    def noted() -> Mapping[TopicPartition, int]:
        begun.stores.calls.append("LOG")
        return commit()

    monkeypatch.setattr(begun.context._producer, "commit", noted)
    begun.transaction.commit()
    assert begun.stores.calls == [*COMMITTED[:3], "LOG", *COMMITTED[3:], *AFTERWARDS]
    assert begun.log.committed_offsets("app") == {INPUT: 1}
    assert begun.transaction.is_empty
    assert begun.transaction.committed == 1


@pytest.mark.parametrize("step", ["before_commit", "finish_logs", "send_stream_times"])
@pytest.mark.parametrize("error", [CommitFailedError("no space"), ChangelogError("no"), ValueError("of a serde")])
def test_an_error_before_the_changelogs_commit_is_rolled_back(begun: Begun, step: str, error: Exception) -> None:
    begun.stores.errors[step] = [error]
    with pytest.raises(type(error)):
        begun.transaction.commit()
    assert begun.stores.calls[-3:] == [step, "return_to_commit", "begin"]
    assert begun.state() is TaskState.RUNNING
    assert begun.log.committed_offsets("app") == {}
    assert begun.transaction.next_offsets == {INPUT: 0}
    assert begun.transaction.committed == 0


@pytest.mark.parametrize("took", [False, True])
def test_a_changelog_whose_commit_is_in_doubt_decides_what_is_committed(
    begun: Begun, took: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = begun.context._producer.commit

    def doubtful() -> None:
        if took:
            commit()
        raise ChangelogError("the connection broke")

    monkeypatch.setattr(begun.context._producer, "commit", doubtful)
    with pytest.raises(ChangelogError):
        begun.transaction.commit()
    assert begun.state() is TaskState.RUNNING
    assert begun.transaction.next_offsets == {INPUT: int(took)}
    assert begun.transaction.committed == int(took)
    begun.process()
    begun.transaction.commit()
    assert begun.log.committed_offsets("app") == {INPUT: 1}


def test_a_changelog_that_does_not_answer_to_a_rollback_is_tried_again_by_the_next_call(begun: Begun) -> None:
    begun.stores.errors["return_to_commit"] = [ChangelogTimeoutError("silent")] * 2
    error = ValueError("of the function")
    begun.transaction.roll_back(error)
    assert begun.state() is TaskState.ROLLBACK_PENDING
    assert begun.stores.calls == ["return_to_commit", "rollback"]
    with pytest.raises(ChangelogTimeoutError) as late:
        begun.transaction.resume()
    assert late.value.__cause__ is error
    begun.transaction.resume()
    assert begun.state() is TaskState.RUNNING
    assert begun.transaction.next_offsets == {INPUT: 0}


@pytest.mark.parametrize("step", ["commit", "swap_upgraded"])
def test_a_store_that_can_t_continue_after_the_changelogs_commit_fails_the_task(begun: Begun, step: str) -> None:
    begun.stores.errors[step] = [CommitFailedError("the disk is gone")]
    with pytest.raises(CommitFailedError) as first:
        begun.transaction.commit()
    assert begun.state() is TaskState.FAILED
    assert begun.log.committed_offsets("app") == {INPUT: 1}
    with pytest.raises(StoreError) as error:
        begun.transaction.resume()
    assert error.value.__cause__ is first.value
    assert not begun.closed


def test_a_changelog_that_does_not_answer_while_a_store_replays_is_rolled_back(begun: Begun) -> None:
    begun.stores.errors["commit"] = [ChangelogTimeoutError("silent")]
    with pytest.raises(ChangelogTimeoutError):
        begun.transaction.commit()
    assert begun.state() is TaskState.RUNNING
    assert begun.transaction.next_offsets == {INPUT: 1}
    assert begun.transaction.committed == 1


def test_a_rollback_that_fails_is_noted_on_the_error_and_fails_the_task(begun: Begun) -> None:
    begun.stores.errors["return_to_commit"] = [CommitFailedError("the disk is gone")]
    error = ValueError("of the function")
    begun.transaction.roll_back(error)
    assert begun.state() is TaskState.FAILED
    assert len(error.__notes__) == 1


@pytest.mark.parametrize("failure", [ChangelogError("the log is gone"), ProducerFencedError("a newer one")])
def test_a_producer_that_cannot_abort_leaves_no_staged_writes_to_readers(
    begun: Begun, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(begun.context._producer, "abort", fail)
    begun.transaction.roll_back(ValueError("of the function"))
    assert begun.stores.calls == ["rollback"]
    assert begun.state() in (TaskState.FAILED, TaskState.FENCED)


@pytest.mark.parametrize("when", ["before", "commit", "rollback"])
def test_a_fenced_task_shows_no_staged_writes_and_closes_itself(
    begun: Begun, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fenced(*_: object) -> None:
        raise ProducerFencedError("a newer one")

    run: Callable[[], None] = begun.transaction.commit
    if when == "before":
        begun.stores.errors["finish_logs"] = [ProducerFencedError("a newer one")]
    elif when == "commit":
        monkeypatch.setattr(begun.context._producer, "commit", fenced)
    else:
        monkeypatch.setattr(begun.context._producer, "abort", fenced)
        run = lambda: begun.transaction.roll_back(ValueError("of the function"))  # noqa: E731
    if when == "rollback":
        run()
    else:
        with pytest.raises(ProducerFencedError):
            run()
        assert "rollback" in begun.stores.calls
    assert begun.state() is TaskState.FENCED
    assert begun.closed == 1


def test_an_error_of_closing_a_fenced_task_is_noted_on_the_first_one(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fenced() -> None:
        raise ProducerFencedError("a newer one")

    def failing() -> None:
        raise CommitFailedError("the disk is gone")

    monkeypatch.setattr(begun.context._producer, "commit", fenced)
    monkeypatch.setattr(begun.transaction, "_close", failing)
    with pytest.raises(ProducerFencedError) as error:
        begun.transaction.commit()
    assert len(error.value.__notes__) == 1


def test_input_is_read_from_where_the_changelog_has_the_last_commit(begun: Begun) -> None:
    begun.transaction.commit()
    assert list(begun.log.read(INPUT, begun.transaction.next_offsets[INPUT])) == []
    assert [type(record) for record in begun.log.read(INPUT)] == [Record]
