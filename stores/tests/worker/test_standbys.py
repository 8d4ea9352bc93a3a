"""Workers with standby copies: when one is killed, another continues with its copy, and restores only what that lacks.

Source: KIP-441; KIP-892, "Offsets for Consumer Rebalances".
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from stores.changelog import SqliteChangelog
from stores.changelog.group import Peer
from stores.interface import TopicPartition
from stores.tasks.directory.state_directory import PROCESS_FILE
from stores.tests.worker.counting_app import PARTITIONS, app
from stores.tests.worker.places import EmbeddedPlace, Place, expected_counts
from stores.tests.worker.worker_process import DEADLINE_S, IDLE, WorkerProcess
from stores.worker import Worker
from stores.worker.standbys import Standbys, standby_partitions

ALONE = f"4 {IDLE}"
FOLLOWING = r"2 tasks, [\d,]+ records/s, lag 0; 2 standby copies, lag 0$"
ONE_FOLLOWING = r"1 tasks, [\d,]+ records/s, lag 0; [1-4] standby copies, lag 0$"
TWO = r"2 tasks, [\d,]+ records/s, lag 0"


def words(name: str, each: int, partitions: Iterable[int] = range(PARTITIONS)) -> list[str]:
    """Return different words, ``each`` in every partition: each word is one record of a changelog."""
    by_partition: dict[int, list[str]] = {number: [] for number in partitions}
    for number in range(100 * each):
        word = f"{name}-{number}"
        some = by_partition.get(sum(word.encode()) % PARTITIONS)
        if some is not None and len(some) < each:
            some.append(word)
    return [word for some in by_partition.values() for word in some]


FIRST = words("first", 20)
SECOND = words("second", 10)


def worker(
    place: Place, name: str, replicas: int = 1, more: Mapping[str, str] | None = None, dies_at: str = ""
) -> WorkerProcess:
    """A worker with a state directory of its own. From its first rebalance on it kills itself at ``dies_at``."""
    settings = {"state.dir": str(place.folder / f"state-{name}"), "num.standby.replicas": str(replicas), **(more or {})}
    properties = {**place.properties(), **settings}
    return WorkerProcess(place.folder, name, properties, dies_at=dies_at, in_rebalance=bool(dies_at), verbose=True)


def restored(process: WorkerProcess) -> list[int]:
    """Return the number of records of each restore so far that had any."""
    return [int(number) for number in re.findall(r"store 'counts' restored (\d+) records", process.errors)]


def kill(process: WorkerProcess) -> None:
    process.send(signal.SIGKILL)
    assert process.ended() == -signal.SIGKILL


def finish(place: Place, process: WorkerProcess, fed: list[str]) -> None:
    """Feed the second words, let the worker end, and compare all outputs with the model."""
    place.feed(SECOND)
    place.await_counted(len(fed + SECOND))
    assert process.terminate() == 0, process.errors
    assert Counter(place.counted()) == expected_counts(fed + SECOND)


@pytest.mark.parametrize("replicas", [1, 0])
def test_the_tasks_of_a_killed_worker_continue_with_the_standby_copies(place: Place, replicas: int) -> None:
    """Without standby copies their changelogs are restored whole."""
    place.feed(FIRST)
    with worker(place, "first", replicas) as first:
        # When the second worker joins, everything is committed: a copy at the end stays there.
        place.await_counted(len(FIRST))
        first.await_line(ALONE)
        with worker(place, "second", replicas) as second:
            shared = FOLLOWING if replicas else f"2 {IDLE}"
            first.await_line(shared)
            second.await_line(shared)
            before = restored(second)
            kill(first)
            second.await_line(ALONE)
            after = restored(second)[len(before) :]
            if replicas:
                assert after == []
            else:
                assert sum(before + after) == len(FIRST)
            finish(place, second, FIRST)


def test_a_worker_killed_after_it_continued_with_its_copies_loses_and_repeats_nothing(place: Place) -> None:
    """Its tasks write into the stores that the copies had open: what a kill takes from them is in the changelogs."""
    place.feed(FIRST)
    middle = words("middle", 5)
    with worker(place, "first") as first:
        place.await_counted(len(FIRST))
        first.await_line(ALONE)
        with worker(place, "second") as second:
            first.await_line(FOLLOWING)
            second.await_line(FOLLOWING)
            kill(first)
            second.await_line(ALONE)
            assert second.errors.count("continues with the open stores of its standby copy") == 2
            place.feed(middle)
            place.await_counted(len(FIRST + middle))
            kill(second)
    with worker(place, "second") as third:
        third.await_line(ALONE)
        finish(place, third, FIRST + middle)


@pytest.mark.parametrize(("dies_at", "tail"), [("changelog.before_commit", 0), ("changelog.after_commit", 10)])
def test_the_tasks_of_a_worker_killed_in_a_common_commit_continue_with_the_standby_copies(
    place: Place, dies_at: str, tail: int
) -> None:
    """All tasks of a thread have one transaction. It is aborted, or it is all that a copy may lack. Source: KIP-447."""
    place.feed(FIRST)
    shared = {"transaction.scope": "thread"}
    if not isinstance(place, EmbeddedPlace):
        shared["transaction.timeout.ms"] = "5000"
    with worker(place, "first", more=shared, dies_at=dies_at) as first:
        place.await_counted(len(FIRST))
        first.await_line(ALONE)
        with worker(place, "second", more=shared) as second:
            first.await_line(FOLLOWING)
            second.await_line(FOLLOWING)
            before = restored(second)
            middle = words("middle", 5)
            place.feed(middle)
            assert first.ended() == -signal.SIGKILL, first.errors
            second.await_line(ALONE)
            assert sum(restored(second)[len(before) :]) <= tail < len(FIRST) // 2
            finish(place, second, FIRST + middle)


def test_a_standby_copy_that_lags_restores_no_more_than_the_tail(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(FIRST)
    own = (0, 1)  # The first worker keeps these: the copies of all partitions are equal.
    tail = words("tail", 15, own)
    with worker(place, "first") as first:
        place.await_counted(len(FIRST))
        with worker(place, "second") as second:
            first.await_line(FOLLOWING)
            second.await_line(FOLLOWING)
            before = restored(second)
            second.send(signal.SIGSTOP)
            place.feed(tail)
            place.await_counted(len(FIRST + tail))
            kill(first)
            second.send(signal.SIGCONT)
            second.await_line(ALONE)
            after = restored(second)[len(before) :]
            # The copies may have followed a part of it before they were closed.
            assert sum(after) <= len(tail) < len(words("first", 20, own))
            finish(place, second, FIRST + tail)


def test_a_worker_killed_with_its_copies_continues_them(tmp_path: Path) -> None:
    """Its own tasks and its copies are where they were: nothing is restored whole again."""
    place = EmbeddedPlace(tmp_path)
    place.feed(FIRST)
    disk = {"store.durability": "process"}
    with worker(place, "first", more=disk) as first:
        place.await_counted(len(FIRST))
        with worker(place, "second", more=disk) as second:
            first.await_line(FOLLOWING)
            second.await_line(FOLLOWING)
            kill(second)
            first.await_line(ALONE)
        with worker(place, "second", more=disk) as second:
            first.await_line(FOLLOWING)
            second.await_line(FOLLOWING)
            kill(first)
            second.await_line(ALONE)
            assert restored(second) == []
            finish(place, second, FIRST)


def test_of_several_workers_the_one_with_the_copy_takes_over(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(FIRST)
    directories = dict(zip(("first", "second", "third"), _splitting(), strict=True))
    for name, directory in directories.items():
        folder = tmp_path / f"state-{name}" / "counting"
        folder.mkdir(parents=True)
        (folder / PROCESS_FILE).write_text(json.dumps({"processId": str(directory)}))
    with worker(place, "first") as first:
        place.await_counted(len(FIRST))
        with worker(place, "second") as second:
            first.await_line(FOLLOWING)
            second.await_line(FOLLOWING)
            with worker(place, "third") as third:
                third.await_line(ONE_FOLLOWING)
                second.await_line(ONE_FOLLOWING)
                await_note(place, directories["third"], TopicPartition("words", 0), 19)
                before = [restored(second), restored(third)]
                kill(first)
                second.await_line(TWO)
                third.await_line(TWO)
                assert [restored(second), restored(third)] == before
                assert second.terminate() == 0, second.errors
                third.await_line(ALONE)
                finish(place, third, FIRST)


def await_note(place: Place, directory: UUID, partition: TopicPartition, progress: int) -> None:
    """Wait until the other workers know that the copy in a directory is so far."""
    deadline = time.monotonic() + DEADLINE_S
    while [*partition, progress] not in _noted(place, directory):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _noted(place: Place, directory: UUID) -> list[list[object]]:
    for note in (place.folder / ".log.sqlite.txstores-groups" / "counting" / "copies").iterdir():
        with suppress(FileNotFoundError, ValueError):
            content = json.loads(note.read_text())
            if content["directory"] == str(directory):
                return list(content["progress"])
    return []


def _splitting() -> tuple[UUID, UUID, UUID]:
    """Return IDs of directories: the second has the copy of partition 1, and the third that of partition 0."""
    first, second = UUID(int=1), UUID(int=2)
    mine = [TopicPartition("words", number) for number in (0, 1)]
    for third in map(UUID, (f"{number:032x}" for number in range(3, 1000))):
        peers = [
            Peer("1", str(first), frozenset(mine), False),
            Peer("2", str(second), frozenset(), True),
            Peer("3", str(third), frozenset(), False),
        ]
        if standby_partitions(peers, 1, ()) == {mine[1]}:
            return first, second, third
    raise AssertionError("no such IDs")


def test_without_replicas_there_is_no_thread_and_no_file_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.worker.worker.Standbys", None)
    monkeypatch.setattr("stores.worker.worker.LocalCopies", None)
    place = EmbeddedPlace(tmp_path)
    place.feed(FIRST)
    own = Worker(app, {**place.properties(), "state.dir": str(tmp_path / "state"), "status.interval.ms": "0"})
    running = threading.Thread(target=own.run)
    running.start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while own.status().running < PARTITIONS:
            assert time.monotonic() < deadline
            assert running.is_alive()
            time.sleep(0.02)
        assert not [thread.name for thread in threading.enumerate() if "standby" in thread.name]
        assert own.status().standbys == ()
    finally:
        own.stop()
        running.join(DEADLINE_S)
    assert not running.is_alive()
    assert not list(tmp_path.rglob("copies"))
    assert not list(tmp_path.rglob(PROCESS_FILE))


def test_copies_that_can_not_be_closed_in_time_do_not_fail_the_worker_and_keep_the_changelog_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their thread may be in the middle of a read. They have nothing to commit."""
    closings: list[object] = []
    close, join = SqliteChangelog.close, Standbys.join

    def noted(log: SqliteChangelog) -> None:
        closings.append(log)
        close(log)

    monkeypatch.setattr(SqliteChangelog, "close", noted)
    place = EmbeddedPlace(tmp_path)
    place.feed(FIRST)
    settings = {"state.dir": str(tmp_path / "state"), "status.interval.ms": "0", "num.standby.replicas": "1"}
    for in_time in (True, False):
        closings.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Standbys, "join", lambda copies, timeout_s, ended=in_time: join(copies, 30.0) and ended)
            own = Worker(app, {**place.properties(), **settings})
            threading.Timer(0.3, own.stop).start()
            own.run()
        assert bool(closings) is in_time
