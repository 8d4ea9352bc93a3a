"""The replay after a killed process is bounded at every level. Source: KIP-892, restoring."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.changelog.producer import AFTER_COMMIT
from stores.config import StoreConfig
from stores.contract.levels import Persistence
from stores.engines.rocksdb.flushes import Flushes as RocksDBFlushes
from stores.interface import Durability
from stores.tasks import TaskContext
from stores.tasks.stores.replay_bound import ReplayBound
from stores.tests.tasks.setup import INDEXED, changelog_of, feed, single, state

BOUND = 40_000
VALUE_BYTES = 94
"""A record of the changelog is 100 bytes."""
RECORDS, PER_COMMIT = 1_600, 50
"""The last commits are fewer than begin a flush: a killed process leaves some to replay, however fast flushes are."""


class Flushes(Persistence):
    """Notes what is asked of it; ``wait`` lets the flush that was begun succeed."""

    def __init__(self) -> None:
        self.at = self.kept = self.begun_at = 0
        self.asked: list[str] = []

    def mark(self) -> int:
        return self.at

    def persisted(self) -> int:
        return self.kept

    def begin(self) -> bool:
        self.asked.append("begin")
        begins, self.begun_at = self.begun_at == self.kept, self.at
        return begins

    def wait(self) -> None:
        self.asked.append("wait")
        self.kept = self.begun_at


def commit(bound: ReplayBound, flushes: Flushes, num_bytes: int) -> None:
    flushes.at += 1
    bound.committed(num_bytes)


def test_a_flush_begins_at_half_of_the_bound_and_is_waited_for_where_a_commit_would_pass_it() -> None:
    flushes, bound = Flushes(), ReplayBound(1_000)
    bound.follow(flushes)
    for _ in range(5):
        bound.make_room(100)
        commit(bound, flushes, 100)
    assert (flushes.asked, bound.num_bytes) == ([], 500)
    commit(bound, flushes, 100)
    assert (flushes.asked, bound.num_bytes, bound.persist_total) == (["begin"], 600, 1)
    bound.make_room(400)
    assert flushes.asked == ["begin"]
    bound.make_room(401)
    assert (flushes.asked, bound.num_bytes) == (["begin", "wait"], 0)
    flushes.kept = flushes.at = 100
    commit(bound, flushes, 1)
    commit(bound, flushes, 600)
    assert (flushes.asked[2:], bound.num_bytes) == (["begin"], 601)
    # The flush that is going on has none of the next commits.
    flushes.begun_at = 100
    bound.make_room(600)
    assert (flushes.asked[3:], bound.num_bytes) == (["wait", "begin", "wait"], 0)


def test_a_commit_that_is_larger_than_the_bound_waits_only_for_those_before_it() -> None:
    flushes, bound = Flushes(), ReplayBound(1_000)
    bound.follow(flushes)
    bound.make_room(5_000)
    assert flushes.asked == []
    commit(bound, flushes, 5_000)
    assert flushes.asked == ["begin"]
    bound.make_room(1)
    assert (flushes.asked, bound.num_bytes) == (["begin", "wait"], 0)


def test_without_a_bound_nothing_is_flushed_and_small_commits_are_counted_together() -> None:
    flushes, bound = Flushes(), ReplayBound(-1)
    bound.follow(flushes)
    for _ in range(10_000):
        bound.make_room(1_000)
        commit(bound, flushes, 1_000)
    assert (flushes.asked, bound.num_bytes, bound.persist_total) == ([], 10_000_000, 0)
    assert len(bound._groups) < 20


def test_a_store_that_is_opened_again_has_all_of_its_bound_again() -> None:
    flushes, bound = Flushes(), ReplayBound(1_000)
    bound.follow(flushes)
    commit(bound, flushes, 500)
    bound.follow(flushes)
    assert bound.num_bytes == 0
    commit(bound, flushes, 500)
    bound.make_room(500)
    assert (flushes.asked, bound.num_bytes) == ([], 500)


def test_a_task_without_input_flushes_once_an_eighth_of_the_bound_is_not_persistent() -> None:
    flushes, bound = Flushes(), ReplayBound(1_000)
    bound.follow(flushes)
    commit(bound, flushes, 125)
    bound.idle()
    assert flushes.asked == []
    commit(bound, flushes, 1)
    for _ in range(3):
        bound.idle()
    assert (flushes.asked, bound.num_bytes, bound.persist_total) == (["begin"], 126, 1)
    commit(bound, flushes, 200)
    # The flush in progress does not have the last commit: another one follows it.
    for _ in range(2):
        bound.idle()
    assert (flushes.asked, bound.persist_total) == (["begin"] * 3, 1)
    bound._persistence.wait()
    bound.idle()
    assert (flushes.asked[4:], bound.num_bytes) == ([], 0)


def test_without_a_bound_a_task_without_input_flushes_nothing() -> None:
    flushes, bound = Flushes(), ReplayBound(-1)
    bound.follow(flushes)
    commit(bound, flushes, 10_000_000)
    bound.idle()
    assert flushes.asked == []


@pytest.fixture
def flushes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(flushes: RocksDBFlushes) -> bool:
        flushes._flush()
        return True

    monkeypatch.setattr(RocksDBFlushes, "begin", begin)


@pytest.mark.usefixtures("flushes_at_once")
def test_a_task_that_has_seen_the_end_of_its_input_leaves_no_replay_to_a_kill(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        feed(log, range(150))
        config = StoreConfig(INDEXED, restore_max_bytes=BOUND)
        with single(tmp_path, log, put, stores={"s": config}, commit_every_records=PER_COMMIT) as task:
            task.run(150)
            assert task.metrics.stores["s"].unpersisted_bytes == 15_000
            task.run()
            assert task.metrics.stores["s"].unpersisted_bytes == 0


@pytest.mark.usefixtures("flushes_at_once")
def test_a_standby_copy_at_the_end_of_its_changelog_leaves_no_replay_to_a_kill(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        feed(log, range(150))
        config = StoreConfig(INDEXED, restore_max_bytes=BOUND)
        with single(tmp_path / "owner", log, put, stores={"s": config}) as task:
            task.run(commit=True)
            other = single(tmp_path / "other", log, put, stores={"s": config})
            with closing(other.standby()) as copy:
                copy.open()
                copy.follow(100)
                assert other.metrics.stores["s"].unpersisted_bytes == 10_000
                while copy.follow(100):
                    pass
                assert other.metrics.stores["s"].unpersisted_bytes == 0


@pytest.mark.usefixtures("flushes_at_once")
def test_a_task_counts_what_a_kill_would_replay_of_the_copy_that_it_continues_with(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        feed(log, range(150))
        config = StoreConfig(INDEXED, restore_max_bytes=BOUND)
        with single(tmp_path / "owner", log, put, stores={"s": config}) as task:
            task.run(commit=True)
        copy = single(tmp_path / "other", log, put, stores={"s": config}).standby()
        copy.open()
        copy.follow(100)
        other = single(tmp_path / "other", log, put, stores={"s": config})
        other.open(copy.hand_over())
        assert other.metrics.stores["s"].unpersisted_bytes == 15_000
        other.close()


KILLS_MAX = 5


def killed_after(folder: Path, bound: int, backend: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [str(folder), str(bound), backend]
    process = subprocess.run([sys.executable, "-m", __name__, *arguments], env=environment, timeout=600, check=False)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("backend", "at_least", "at_most"),
    [
        (f"{INDEXED} {BOUND}", 1, BOUND),
        (f"{INDEXED} -1", 100 * RECORDS, 100 * RECORDS),
        (f"lmdb-indexed-batch {BOUND}", 0, 0),
        (f"sqlite-native {BOUND}", 0, 0),
    ],
)
def test_a_successor_of_a_killed_process_replays_no_more_than_the_bound(
    tmp_path: Path, backend: str, at_least: int, at_most: int
) -> None:
    """Some kill leaves a part to replay; by chance the engine may have persisted all before one."""
    name, bound = backend.split()
    for attempt in range(KILLS_MAX):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        killed_after(folder, int(bound), name)
        with SqliteChangelog(folder / "log.sqlite") as log:
            task = single(folder, log, put, stores={"s": StoreConfig(name)})
            [report] = task.open()
            assert (report.wiped, report.bytes <= at_most) == (False, True)
            assert state(task, "s") == {b"%06d" % number: bytes(VALUE_BYTES) for number in range(RECORDS)}
            task.close()
        if report.bytes >= at_least:
            return
    pytest.fail(f"none of {KILLS_MAX} kills left {at_least} bytes or more to replay")


def test_a_commit_waits_for_a_flush_that_is_slow_before_the_changelog_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any moment, also between the changelog's commit and the store's, it replays no more."""
    in_doubt: list[int] = []
    with MemoryChangelog() as log:
        feed(log, range(RECORDS))
        config = StoreConfig(INDEXED, restore_max_bytes=BOUND)
        task = single(tmp_path, log, put, stores={"s": config}, commit_every_records=PER_COMMIT)

        def note() -> None:
            in_doubt.append(task.metrics.stores["s"].unpersisted_bytes + 100 * PER_COMMIT)

        # As slow as can be: it ends when somebody waits for it.
        monkeypatch.setattr(RocksDBFlushes, "begin", lambda flushes: False)
        monkeypatch.setattr(RocksDBFlushes, "wait", RocksDBFlushes._flush)
        failpoints.arm(AFTER_COMMIT, note)
        try:
            task.open()
            task.run()
        finally:
            failpoints.disarm(AFTER_COMMIT)
        task.close()
    assert (len(in_doubt), max(in_doubt)) == (RECORDS // PER_COMMIT, BOUND)


@pytest.mark.parametrize("coalescing", [True, False])
@pytest.mark.parametrize("keys", [RECORDS, 10])
@pytest.mark.parametrize("backend", [INDEXED, "lmdb-indexed-batch", "sqlite-native"])
def test_a_task_commits_before_its_commit_is_larger_than_the_bound(
    tmp_path: Path, backend: str, keys: int, coalescing: bool
) -> None:
    """This holds for any limit on uncommitted writes, and for any number of writes to a key."""
    sizes: list[int] = []

    def put_some(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"%06d" % (record.offset % keys), bytes(VALUE_BYTES))

    with MemoryChangelog() as log:
        feed(log, range(RECORDS))
        config = StoreConfig(
            backend, restore_max_bytes=BOUND, uncommitted_max_bytes=-1, changelog_coalescing=coalescing
        )
        task = single(tmp_path, log, put_some, stores={"s": config})
        failpoints.arm(AFTER_COMMIT, lambda: sizes.append(sum(1 for _ in log.read(changelog_of("s")))))
        try:
            task.open()
            task.run(commit=True)
        finally:
            failpoints.disarm(AFTER_COMMIT)
        early = task.metrics.early_commit_total
        task.close()
    commits = [100 * (after - before) for before, after in pairwise([0, *sizes])]
    assert max(commits) <= BOUND
    if coalescing and keys == 10:
        # They are ten records, however often they were written.
        assert commits == [1_000]
    else:
        assert (min(commits[:-1]) > 0.9 * BOUND, early["REPLAY"]) == (True, len(commits) - 1)


def test_a_record_that_writes_more_than_the_bound_is_one_commit_and_soon_forgotten(tmp_path: Path) -> None:
    steps = [1, 600, *[1] * 1_200]

    def put_many(record: Record, context: TaskContext) -> None:
        for number in range(steps[record.offset]):
            context.store("s").put(b"%d-%04d" % (record.offset % 10, number), bytes(VALUE_BYTES))

    with MemoryChangelog() as log:
        feed(log, range(len(steps)))
        config = StoreConfig(INDEXED, restore_max_bytes=BOUND, changelog_coalescing=False)
        task = single(tmp_path, log, put_many, stores={"s": config})
        task.open()
        task.run(commit=True)
        commits, early = task.metrics.commit_total, task.metrics.early_commit_total["REPLAY"]
        task.close()
    # 1,800 records of which 600 are one commit; each early commit halves what the next step is expected to write.
    assert (5 <= commits <= 14, early) == (True, commits - 1)


def test_a_replay_bound_of_minus_one_forces_no_commit(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        feed(log, range(RECORDS))
        stores = {"s": StoreConfig(INDEXED, restore_max_bytes=-1)}
        task = single(tmp_path, log, put, stores=stores)
        task.open()
        task.run(commit=True)
        assert (task.metrics.commit_total, sum(task.metrics.early_commit_total.values())) == (1, 0)
        task.close()


def test_a_large_restore_is_persisted_as_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_BYTES_MAX", 5_000)
    log = MemoryChangelog()
    feed(log, range(RECORDS))
    task = single(tmp_path, log, put, stores={"s": StoreConfig("memory-indexed-batch")})
    task.open()
    task.run(commit=True)
    task.close()
    task = single(tmp_path, log, put, stores={"s": StoreConfig(INDEXED, restore_max_bytes=BOUND)})
    [report] = task.open()
    metrics = task.metrics.stores["s"]
    assert report.bytes == 100 * RECORDS
    assert (metrics.unpersisted_bytes <= BOUND, metrics.persist_total > 3) == (True, True)
    task.close()


def put(record: Record, context: TaskContext) -> None:
    context.store("s").put(b"%06d" % record.offset, bytes(VALUE_BYTES))


def main() -> None:
    folder, bound, backend = sys.argv[1:]
    log = SqliteChangelog(Path(folder) / "log.sqlite", Durability.PROCESS)
    feed(log, range(RECORDS))
    config = StoreConfig(backend, restore_max_bytes=int(bound))
    task = single(Path(folder), log, put, stores={"s": config}, commit_every_records=PER_COMMIT)
    task.open()
    task.run(RECORDS)  # It does not see the end of its input, where it would flush.
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
