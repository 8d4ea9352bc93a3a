"""Queries that allow staleness are answered by standby copies, also while the worker of the task hangs or is killed.

Source: KIP-535, "Allow state stores to serve stale reads during rebalance".
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, cast
from unittest.mock import create_autospec

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.changelog.group import GroupMember, Peer
from stores.changelog.partitioners import PARTITIONERS
from stores.config import StoreConfig
from stores.errors import ChangelogTimeoutError, StoreClosedError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.records import (
    INT64,
    STR,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
    Windowed,
)
from stores.registry import backends
from stores.tasks import RestoreProgress, StreamTask, TaskContext, TaskId, TaskSettings, Upgrade, UpgradeMode
from stores.tasks.task_resources import StandbyTask
from stores.tests.worker.places import Place
from stores.tests.worker.queried_app import PARTITIONS
from stores.tests.worker.queries.asking import Reply, ask
from stores.tests.worker.queries.stage import ADDRESS, HERE, LINES, MOVING, OTHER, THERE, Stage
from stores.tests.worker.queries.test_queried_workers import GET, KEYS, QUERIES, RANGE, address_of, eventually, feed
from stores.tests.worker.queries.test_queried_workers import worker as queried_worker
from stores.tests.worker.worker_process import IDLE, WorkerProcess
from stores.worker import standbys
from stores.worker.copy_moment import CopyMoment
from stores.worker.running_task import Assignment, RunningTask
from stores.worker.standbys import StandbyCopy, Standbys

STALE = {"stale": "true", "max_lag": 0}
FOLLOWING = r"2 tasks, [\d,]+ records/s, lag 0; 2 standby copies, lag 0$"


def worker(place: Place, name: str) -> WorkerProcess:
    own = {"state.dir": str(place.folder / f"state-{name}"), "num.standby.replicas": "1"}
    return queried_worker(place, name, {**QUERIES, **own})


def answered(reply: Reply) -> tuple[int, Any, Any]:
    return reply.status, reply.body.get("copy"), reply.body.get("value")


def test_a_standby_copy_answers_while_the_worker_of_the_task_hangs_or_is_killed(place: Place) -> None:
    feed(place, KEYS.items())
    with worker(place, "first") as first:
        first.await_line(f"4 {IDLE}")
        with worker(place, "second") as second:
            first.await_line(FOLLOWING)
            second.await_line(FOLLOWING)
            there, here = address_of(first), address_of(second)
            partitions = ask(here, "/stores/numbers").body["partitions"]
            theirs = next(each["partition"] for each in partitions if each["instance"] == there)
            assert partitions[theirs].get("standbys") == [here], (partitions, second.errors)
            assert partitions[theirs]["standby_lag"] == 0
            keys = [key for key in KEYS if PARTITIONERS["murmur2"](key.encode(), PARTITIONS) == theirs]
            key = keys[0]
            # By default the task alone answers.
            assert ask(here, GET, key=key).status == 307
            asking = partial(ask, here, GET, key=key)
            reply = eventually(lambda: asking(**STALE), lambda reply: reply.status == 200 and "value" in reply.body)
            assert (answered(reply), reply.body["lag"]) == ((200, "standby", KEYS[key]), 0)
            assert answered(ask(there, GET, key=key, **STALE)) == (200, "active", KEYS[key])
            [(partition, offset)] = ask(there, GET, key=key).body["position"].items()
            bound = f"{partition}:{offset}"
            reply = asking(stale="true", bound=bound, wait_ms=30_000)
            assert (answered(reply), reply.body["position"]) == ((200, "standby", KEYS[key]), {partition: offset})
            first.send(signal.SIGSTOP)
            page = ask(here, RANGE, partition=theirs, **STALE)
            assert (page.status, page.body["copy"], sorted(page.keys)) == (200, "standby", sorted(keys))
            assert answered(asking(**STALE)) == (200, "standby", KEYS[key])
            behind = asking(stale="true", bound=f"{partition}:{offset + 1}")
            assert (behind.status, behind.body["copy"], behind.body["behind"]) == (409, "standby", {partition: 1})
            first.send(signal.SIGKILL)
            while (reply := asking(**STALE)).body.get("copy") != "active":
                # Also while the copy becomes the task.
                assert answered(reply) == (200, "standby", KEYS[key])
            assert answered(reply) == (200, "active", KEYS[key])
            assert second.terminate() == 0, second.errors
            assert "Traceback" not in second.errors


@pytest.fixture
def copied(stage: Stage) -> Stage:
    """A task, and a copy of the store ``counts`` that lacks its last commit."""
    stage.put("counts", ("a", 1))
    stage.moment = CopyMoment({"counts": stage.task.store("counts").snapshot()}, {}, {})
    stage.put("counts", ("a", 2))
    return stage


@pytest.mark.parametrize(
    "parameters",
    [
        {"stale": "yes", "max_lag": "1"},
        {"stale": "true"},
        {"max_lag": "1"},
        {"stale": "false", "max_lag": "1"},
        {"stale": "true", "max_lag": "-1"},
        {"stale": "true", "bound": f"lines-{THERE}:1"},
    ],
)
def test_a_query_says_how_stale_its_answer_may_be(stage: Stage, parameters: Mapping[str, str]) -> None:
    assert stage.ask("counts/get", key="a", **parameters).status == 400


def test_a_copy_answers_within_the_lag_and_the_position_that_the_query_allows(copied: Stage) -> None:
    ask = partial(copied.ask, "counts/get", key="a", partition=THERE, stale="true")
    assert copied.moment is not None
    copied.moment.lacks({LINES: 3}, 1)
    assert answered(ask(max_lag=5)) == (200, "standby", 1)
    assert (ask(max_lag=4).status, ask(max_lag=4).body["lag"]) == (409, 5)
    copied.moment.lag = None
    assert ask(max_lag=1 << 40).status == 409
    copied.moment.position = {TopicPartition("lines", THERE): 7}
    assert answered(ask(bound=f"lines-{THERE}:7")) == (200, "standby", 1)
    reply = ask(bound=f"lines-{THERE}:8")
    assert (reply.status, reply.body["behind"]) == (409, {f"lines-{THERE}": 1})
    # That of the store itself, and the committed one.
    assert reply.body["position"] == {f"lines-{HERE}": 0, f"lines-{THERE}": 7}
    # At either level: a copy has committed data only.
    assert answered(ask(bound=f"lines-{THERE}:7", isolation_level="read_uncommitted")) == (200, "standby", 1)
    # A store that is not in the copy, such as one in memory, is at the worker of the task.
    assert copied.ask("visits/get", key="a", partition=THERE, stale="true", max_lag=9).headers["Location"]


def test_the_task_answers_before_its_copy_and_the_copy_before_its_restore(copied: Stage) -> None:
    ask = partial(copied.ask, "counts/get", key="a", stale="true", max_lag=9)
    assert answered(ask(partition=HERE)) == (200, "active", 2)
    assert answered(ask(partition=0)) == (200, "standby", 1)
    assert copied.ask("counts/get", key="a", partition=0).status == 503
    copied.moment = None
    assert ask(partition=0).status == 503
    for copied.copied in (0, MOVING):
        reply = ask(partition=copied.copied)
        assert (reply.status, reply.body["instance"]) == (307, OTHER)
    assert str(ADDRESS) not in reply.headers["Location"]
    assert copied.ask("counts/get", key="a", partition=MOVING).status == 503


ON_DISK = [name for name, backend in backends().items() if backend.persistent and backend.transactional]
KINDS: Mapping[str, RecordKind | None] = {
    "bytes": None,
    "times": TimestampedKeyValue(key=STR, value=INT64),
    "headers": TimestampedKeyValueWithHeaders(key=STR, value=INT64),
    "versions": Versioned(key=STR, value=INT64, history_retention_ms=1_000_000),
    "windows": Window(key=STR, value=INT64, size_ms=10, retention_ms=1_000_000),
    "window-headers": Window(key=STR, value=INT64, size_ms=10, retention_ms=1_000_000, headers=True),
    "sessions": Session(key=STR, value=INT64, retention_ms=1_000_000),
}


def rewrite(record: Record, context: TaskContext) -> None:
    """Give each of some keys the record's number, in each store."""
    number = int(record.value or b"0")
    for key in "abcde":
        context.store("bytes").put(key.encode(), b"%d" % number)
        context.store("times").put(key, number, 1)
        context.store("headers").put(key, number, 1, (("number", b"%d" % number),))
        context.store("versions").put(key, number, number)
        context.store("windows").put(key, number, 10)
        context.store("window-headers").put(key, number, 10, 1, (("number", b"%d" % number),))
        context.store("sessions").put(Windowed(key, 10, 20), number)


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_copy_shows_commits_whole_at_each_step(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may end within a commit: the changelog of each store has five records for it."""
    monkeypatch.setattr(standbys, "STEP_RECORDS", 3)
    monkeypatch.setattr(standbys, "FOLLOW_S", 0.0)
    monkeypatch.setattr(standbys, "POSITION_S", 0.0)
    log = MemoryChangelog()
    log.create_topic("lines", 1)
    lines = TopicPartition("lines", 0)

    def made(folder: str) -> StreamTask:
        stores = {name: StoreConfig(backend, records=kind) for name, kind in KINDS.items()}
        directory = tmp_path / folder
        return StreamTask(
            "app", TaskId(0, 0), state_dir=directory, changelog=log, stores=stores, process=rewrite, inputs=[lines]
        )

    copy = StandbyCopy(TaskId(0, 0), lambda task_id, on_restore: made("copy"), queried=True)

    def numbers(snapshots: Mapping[str, Any]) -> set[int]:
        found = [int(value) for _, value in snapshots["bytes"].all()]
        found += [value.value for _, value in snapshots["times"].all()]
        found += [int(value.headers[0][1]) for _, value in snapshots["headers"].all()]
        found += [value.value for _, value in snapshots["versions"].all()]
        found += [value for _, value in snapshots["windows"].all()]
        found += [int(value.headers[0][1]) for _, value in snapshots["window-headers"].all()]
        found += [value for key in "abcde" for _, value in snapshots["sessions"].fetch(key)]
        assert len(found) in (0, 35)
        return {*found}

    with made("task") as task:
        lags = set()
        for number in range(1, 4):
            with log.producer() as producer:
                producer.send(lines, b"k", b"%d" % number)
                producer.flush()
            task.run(commit=True)
            more = True
            while more:
                more = copy.step()
                moment = copy.moment()
                if moment is not None:
                    with moment:
                        shown = numbers(moment.snapshots)
                        assert len(shown) <= 1
                        lags.add(moment.lag)
                        assert moment.lag == 0 if shown == {number} else moment.lag
                        assert moment.position.get(lines) == max(shown, default=0) - 1
        held = copy.moment()
        assert held is not None
        assert len(lags) > 1
        copy.close()
        assert copy.moment() is None
        with pytest.raises(StoreClosedError):
            held.snapshots["bytes"].get(b"a")
        held.close()


class FollowedTask:
    """A task whose records with a value write it, and its copy, which is looked at after each step."""

    def __init__(self, folder: Path, upgrade: Upgrade | None = None, backend: str = "lmdb") -> None:
        self.folder, self.log, self.upgrade, self.backend = folder, MemoryChangelog(), upgrade, backend
        self.log.create_topic("lines", 1)
        self.task = self.made("task")
        self.task.open()
        self.copy = StandbyCopy(TaskId(0, 0), lambda task_id, on_restore: self.made("copy"), queried=True)

    def made(self, name: str, on_restore: Callable[[RestoreProgress], None] | None = None) -> StreamTask:
        return StreamTask(
            "app",
            TaskId(0, 0),
            state_dir=self.folder / name,
            changelog=self.log,
            stores={
                "values": StoreConfig(
                    self.backend, upgrade=self.upgrade, upgrade_mode=UpgradeMode.IN_PLACE if self.upgrade else None
                ),
                "passing": StoreConfig("memory"),
            },
            process=lambda record, context: context.store("values").put(b"k", record.value) if record.value else None,
            inputs=[TopicPartition("lines", 0)],
            settings=TaskSettings(on_restore=on_restore),
        )

    def commit(self, value: bytes) -> None:
        """Let the task process one more record, and commit."""
        with self.log.producer() as producer:
            producer.send(TopicPartition("lines", 0), None, value)
            producer.flush()
        self.task.run(commit=True)

    def step(self) -> tuple[bytes | None, int | None, int | None] | None:
        """Make a step of the copy; return the value that it shows, its position and its lag."""
        self.copy.step()
        if (moment := self.copy.moment()) is None:
            return None
        with moment:
            assert set(moment.snapshots) == {"values"}, "a copy has no stores in memory"
            position = moment.position.get(TopicPartition("lines", 0))
            return moment.snapshots["values"].get(b"k"), position, moment.lag


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FollowedTask]:
    for pause in ("RETRY_S", "FOLLOW_S", "POSITION_S"):
        monkeypatch.setattr(standbys, pause, 0.0)
    followed = FollowedTask(tmp_path)
    yield followed
    followed.copy.close()
    followed.task.close()


def test_a_copy_says_the_position_and_the_lag_of_its_last_step(
    followed: FollowedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.commit(b"1")
    assert followed.step() == (b"1", 0, 0)
    first = cast(CopyMoment, followed.copy.moment())
    first.close()
    followed.commit(b"")
    assert followed.step() == (b"1", 1, 0)
    follow = StandbyTask.follow

    def failing(task: StandbyTask, max_records: int) -> NoReturn:
        raise ChangelogTimeoutError("no answer")

    def overtaken(task: StandbyTask, max_records: int) -> int:
        lag = follow(task, max_records)
        followed.commit(b"2")
        return lag

    with monkeypatch.context() as patched:
        patched.setattr(StandbyTask, "follow", failing)
        assert followed.step() == (b"1", 1, None)
        patched.setattr(StandbyTask, "follow", overtaken)
        assert followed.step() == (b"1", 1, 0)
    assert followed.step() == (b"2", 2, 0)
    assert first.shared() is None


def test_a_copy_that_could_not_be_read_once_answers_later(
    followed: FollowedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(task: StandbyTask) -> NoReturn:
        raise StoreUnavailableError("too few descriptors")

    followed.commit(b"1")
    with monkeypatch.context() as patched:
        patched.setattr(StandbyTask, "snapshots", failing)
        assert followed.step() is None
    assert followed.step() == (b"1", 0, 0)


@pytest.mark.parametrize("backend", ON_DISK)
def test_the_last_moment_of_a_copy_is_read_until_its_task_runs(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it restores the rest, and nothing of an open transaction: from the older commit to the newer one."""
    monkeypatch.setattr(standbys, "FOLLOW_S", 0.0)
    monkeypatch.setattr(standbys, "LOOK_S", 0.005)
    followed = FollowedTask(tmp_path, backend=backend)
    followed.commit(b"1")
    task_id, member = TaskId(0, 0), create_autospec(GroupMember, instance=True)
    lines = TopicPartition("lines", 0)
    member.peers.return_value = [
        Peer("a", "here", frozenset(), True),
        Peer("b", "there", frozenset([lines]), False),
    ]
    shown: list[object] = []

    def look() -> None:
        moment = copies.moment(task_id)
        if moment is None:
            shown.append(None)
            return
        with moment:
            shown.append(moment.snapshots["values"].get(b"k"))

    def make(task_id: TaskId, on_restore: Callable[[RestoreProgress], None]) -> StreamTask:
        def restored(progress: RestoreProgress) -> None:
            look()
            on_restore(progress)

        return followed.made("copy", on_restore=restored)

    copies = Standbys(1, make, lambda partitions: [task_id], queried=True)
    copies.start(member)
    deadline = monotonic() + 600
    while not shown or shown[-1] != b"1":
        assert monotonic() < deadline
        look()
    shown.clear()
    # It is within its next step when it is claimed: the rest is restored by the task.
    with monkeypatch.context() as patched:
        patched.setattr(StandbyTask, "follow", lambda self, max_records: 1)
        followed.commit(b"2")
        followed.task.close()
        member.peers.return_value = [Peer("a", "here", frozenset([lines]), True)]
        copies.claim([task_id])
    look()
    running = RunningTask(Assignment(task_id), make, 60.0, copies)
    running.step()
    assert shown == [b"1", b"1"]
    assert running.status.running
    look()
    assert shown[-1] is None
    assert running.task.store("values").get(b"k") == b"2"
    running.release(clean=True)
    copies.stop()
    assert copies.join(600)


class InBrackets:
    """The store in another format, for a function or a reader: it has nothing but what they call."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def put(self, key: bytes, value: bytes) -> None:
        self.store.put(key, value)

    def get(self, key: bytes) -> bytes:
        return b"(%b)" % self.store.get(key)


@pytest.mark.usefixtures("followed")
def test_a_copy_is_shown_by_the_proxy_of_an_online_upgrade(tmp_path: Path) -> None:
    upgrade = Upgrade(
        1, lambda record, version: [(cast(bytes, record.key), record.value)], online=True, proxy=InBrackets
    )
    proxied = FollowedTask(tmp_path / "proxied", upgrade)
    for number in range(2):
        proxied.commit(b"1")
        assert proxied.step() == (b"(1)", number, 0)
    proxied.copy.close()
    proxied.task.close()


def test_a_copy_whose_store_was_closed_is_read_anew(copied: Stage) -> None:
    moment = cast(CopyMoment, copied.moment)
    assert moment.is_open
    copied.task.close()
    assert not moment.is_open
    copied.task.open()


def test_workers_with_copies_are_named_if_they_answer_queries_and_are_others() -> None:
    partition = TopicPartition("lines", 0)
    members = [
        Peer("owner", "a", frozenset({partition}), False, "127.0.0.1:1"),
        Peer("silent", "b", frozenset(), False),
        Peer("self", "c", frozenset(), True, "127.0.0.1:3"),
        Peer("other", "d", frozenset(), False, "127.0.0.1:4"),
    ]
    member = create_autospec(GroupMember, instance=True)
    member.peers.return_value = members
    copies = Standbys(3, lambda task_id, on_restore: None, lambda partitions: ())  # type: ignore[arg-type,return-value]
    copies._look(member)
    assert copies.addresses(partition) == ["127.0.0.1:4"]
