"""The thread of the standby copies: a claim closes a copy first, and an error does not end the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stores.changelog.group import Peer
from stores.errors import (
    ChangelogError,
    ChangelogTimeoutError,
    StoreCorruptedError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.tasks import TaskId
from stores.tasks.task_resources import OpenCopy
from stores.worker import standbys
from stores.worker.standbys import Standbys, standby_partitions

FIRST, SECOND = TaskId(0, 1), TaskId(0, 2)
DEADLINE_S = 600.0


class Copies:
    """Standby copies that keep their calls, and raise or return what ``answers`` has for the next one."""

    def __init__(self, answers: Iterable[Any] = ()) -> None:
        self.calls: list[tuple[TaskId, str]] = []
        self.handed: dict[TaskId, Any] = {}
        """The open stores of the copies that can be handed over."""
        self._answers = list(answers)

    def make(self, task_id: TaskId, on_restore: object) -> Any:
        def call(name: str) -> Any:
            self.calls.append((task_id, name))
            answer = self._answers.pop(0) if self._answers and name == "follow" else 0
            if isinstance(answer, BaseException):
                raise answer
            return answer

        copy = SimpleNamespace(
            open=lambda: call("open"),
            follow=lambda max_records: call("follow"),
            offsets=lambda: {TopicPartition("log", task_id.partition): 5},
            close=lambda clean=True: call("close" if clean else "close unclean"),
            hand_over=lambda: self.handed.get(task_id),
        )
        return SimpleNamespace(standby=lambda: copy)

    def of(self, task_id: TaskId) -> list[str]:
        return [name for each, name in self.calls if each == task_id and name != "follow"]


class Member:
    """A member of a group with another one, which has all partitions."""

    def __init__(self) -> None:
        partitions = frozenset(TopicPartition("words", number) for number in (1, 2))
        self.peers_now: Any = [Peer("a", "here", frozenset(), True), Peer("b", "there", partitions, False)]
        self.asked = 0

    def peers(self) -> Any:
        self.asked += 1
        if isinstance(self.peers_now, BaseException):
            raise self.peers_now
        return self.peers_now


def tasks_of(partitions: Iterable[TopicPartition]) -> Collection[TaskId]:
    return [TaskId(0, number) for _, number in partitions]


def await_true(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def await_asked(member: Member) -> None:
    """Wait until the thread has taken an answer that the member gives from now on."""
    before = member.asked
    await_true(lambda: member.asked > before + 2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((standbys, "FOLLOW_S"), (standbys, "RETRY_S")):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(standbys, "LOOK_S", 0.005)
    monkeypatch.setattr(standbys, "_IDLE_S", 0.005)


@pytest.fixture
def member() -> Member:
    return Member()


@pytest.fixture
def started(member: Member) -> Iterator[Callable[[Copies], Standbys]]:
    running: list[Standbys] = []

    def start(copies: Copies) -> Standbys:
        thread = Standbys(1, copies.make, tasks_of)
        thread.start(member)  # type: ignore[arg-type]
        running.append(thread)
        return thread

    yield start
    for thread in running:
        thread.stop()
        assert thread.join(DEADLINE_S)


def is_following(thread: Standbys) -> bool:
    return [status.lag for status in thread.status()] == [0, 0]


Start = Callable[[Copies], Standbys]


def test_a_claimed_copy_is_closed_before_its_task_opens_and_comes_back_afterwards(started: Start) -> None:
    copies = Copies()
    thread = started(copies)
    await_true(lambda: is_following(thread))
    assert thread.changelog_offsets().keys() == {FIRST, SECOND}
    thread.claim([FIRST])
    assert copies.of(FIRST) == ["open", "close"]
    await_true(lambda: [status.task_id for status in thread.status()] == [SECOND])
    assert copies.of(SECOND) == ["open"]
    assert copies.of(FIRST) == ["open", "close"]
    thread.unclaim([FIRST])
    await_true(lambda: is_following(thread))
    assert copies.of(FIRST) == ["open", "close", "open"]


def test_a_copy_with_much_to_restore_is_released_after_its_step(started: Start) -> None:
    copies = Copies([1_000] * 100_000)
    thread = started(copies)
    await_true(lambda: len(copies.calls) > 10)
    thread.claim([FIRST, SECOND])
    assert copies.of(FIRST)[-1] == "close"
    assert copies.of(SECOND)[-1:] in ([], ["close"])


def test_the_end_of_the_worker_closes_the_copies(started: Start) -> None:
    copies = Copies()
    thread = started(copies)
    await_true(lambda: is_following(thread))
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert copies.of(FIRST) == copies.of(SECOND) == ["open", "close"]


@pytest.mark.parametrize(
    "error", [StoreCorruptedError("c"), StoreUnavailableError("u"), StoreLockedError("l"), ChangelogError("c")]
)
def test_a_copy_that_fails_is_closed_without_a_checkpoint_and_opened_again(started: Start, error: Exception) -> None:
    copies = Copies([error])
    thread = started(copies)
    await_true(lambda: is_following(thread))
    assert copies.of(FIRST) == ["open", "close unclean", "open"]
    assert thread.failure is None


def test_a_copy_stays_open_while_the_changelog_does_not_answer(
    started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    copies = Copies([ChangelogTimeoutError("no answer")] * 6)
    thread = started(copies)
    await_true(lambda: is_following(thread))
    assert copies.of(FIRST) == ["open"]
    # Once for each copy.
    assert sum("no answer" in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize("unknown", [None, ChangelogTimeoutError("t"), ChangelogError("e")])
def test_copies_stay_while_the_members_are_unknown(
    started: Start, member: Member, unknown: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    copies = Copies()
    thread = started(copies)
    await_true(lambda: is_following(thread))
    member.peers_now = unknown
    await_asked(member)
    assert is_following(thread)
    assert len(caplog.records) == (0 if unknown is None else 1)
    # An error that comes again after the members were known is told again.
    member.peers_now = []
    await_asked(member)
    member.peers_now = unknown
    await_asked(member)
    assert len(caplog.records) == (0 if unknown is None else 2)


def test_the_copies_are_computed_once_for_each_change_of_the_members(
    started: Start, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    def counting(*arguments: Any) -> Any:
        computed.append(1)
        return standby_partitions(*arguments)

    monkeypatch.setattr(standbys, "standby_partitions", counting)
    copies = Copies()
    thread = started(copies)
    await_true(lambda: is_following(thread))
    steps = len(copies.calls)
    await_true(lambda: len(copies.calls) > steps + 20)
    assert len(computed) == 1
    member.peers_now = [*member.peers_now, Peer("c", None, frozenset(), False)]
    await_true(lambda: len(computed) == 2)
    assert is_following(thread)


def test_copies_that_are_not_due_any_more_are_closed(started: Start, member: Member) -> None:
    copies = Copies()
    thread = started(copies)
    await_true(lambda: is_following(thread))
    member.peers_now = [Peer("a", "here", frozenset([TopicPartition("words", 1)]), True), member.peers_now[1]]
    member.peers_now[1] = member.peers_now[1]._replace(partitions=frozenset([TopicPartition("words", 2)]))
    await_true(lambda: [status.task_id for status in thread.status()] == [SECOND])
    assert copies.of(FIRST) == ["open", "close"]


def test_a_defect_ends_the_thread_with_its_copies_closed(started: Start) -> None:
    copies = Copies([0, ZeroDivisionError()])
    thread = started(copies)
    await_true(lambda: thread.failure is not None)
    assert thread.join(DEADLINE_S)
    assert isinstance(thread.failure, ZeroDivisionError)
    assert copies.of(FIRST) == copies.of(SECOND) == ["open", "close"]
    thread.claim([FIRST])
    assert not thread.status()


def test_neither_a_claim_nor_the_end_waits_for_an_answer_of_the_group(started: Start, member: Member) -> None:
    copies = Copies()
    thread = started(copies)
    await_true(lambda: is_following(thread))
    has_asked, may_answer = threading.Event(), threading.Event()

    def peers() -> Any:
        has_asked.set()
        assert may_answer.wait(DEADLINE_S)
        return member.peers_now

    member.peers = peers  # type: ignore[method-assign]
    try:
        assert has_asked.wait(DEADLINE_S)
        thread.claim([FIRST])
        assert copies.of(FIRST) == ["open", "close"]
        thread.stop()
        assert thread.join(DEADLINE_S)
        assert copies.of(SECOND) == ["open", "close"]
    finally:
        may_answer.set()


class OpenStores(OpenCopy):
    """The open stores of a copy that was handed over: the number of times that they were closed."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def closings(self) -> int:
        return self.closed


@pytest.fixture
def handed(started: Start) -> tuple[Copies, Standbys, OpenStores]:
    """The first copy can be handed over."""
    copies, stores = Copies(), OpenStores()
    copies.handed[FIRST] = stores
    thread = started(copies)
    await_true(lambda: is_following(thread))
    return copies, thread, stores


Handed = tuple[Copies, Standbys, OpenStores]


def test_a_claimed_copy_is_handed_over_open_and_its_task_takes_it_once(handed: Handed) -> None:
    copies, thread, stores = handed
    assert thread.take(FIRST) is None
    thread.claim([FIRST])
    assert [status.task_id for status in thread.status()] == [SECOND]
    assert thread.take(FIRST) is stores
    assert thread.take(FIRST) is None
    thread.replaced(FIRST)
    thread.replaced(FIRST)
    thread.unclaim([FIRST])
    await_true(lambda: is_following(thread))
    assert copies.of(FIRST) == ["open", "open"]
    assert not stores.closed


def test_a_copy_that_its_task_does_not_take_is_closed_and_opened_again(handed: Handed) -> None:
    copies, thread, stores = handed
    thread.claim([FIRST])
    thread.unclaim([FIRST])
    await_true(lambda: is_following(thread))
    assert stores.closed == 1
    assert thread.take(FIRST) is None
    assert copies.of(FIRST) == ["open", "open"]


def test_a_copy_that_was_handed_over_is_closed_at_the_end(handed: Handed) -> None:
    _, thread, stores = handed
    thread.claim([FIRST])
    assert stores.closings() == 0
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert stores.closings() == 1
    assert thread.take(FIRST) is None


def test_a_task_that_the_group_gives_to_the_worker_gets_its_copy_also_if_the_claim_comes_later(
    handed: Handed, member: Member
) -> None:
    """The look at the members may come first."""
    copies, thread, stores = handed
    own, others = (frozenset([TopicPartition("words", number)]) for number in (1, 2))
    member.peers_now = [Peer("a", "here", own, True), Peer("b", "there", others, False)]
    await_true(lambda: [status.task_id for status in thread.status()] == [SECOND])
    await_asked(member)
    assert not stores.closed
    thread.claim([FIRST])
    assert thread.take(FIRST) is stores
    assert copies.of(FIRST) == ["open"]
    assert not stores.closed


def test_copies_that_are_due_or_claimed_are_needed_whether_they_are_open_or_not(started: Start, member: Member) -> None:
    thread = started(Copies([StoreCorruptedError("c")] * 1000))
    await_true(lambda: thread.needed == {FIRST, SECOND})
    other = TaskId(0, 7)
    thread.claim([other])
    assert thread.needed == {FIRST, SECOND, other}
    thread.unclaim([other])
    assert thread.needed == {FIRST, SECOND}
