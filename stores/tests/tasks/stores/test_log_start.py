"""The changelog of a window or session store drops what has expired by stream time, and a restore knows what it lacks.

The changelog here is one that compacts itself, as Kafka's. The tests over a broker are in ``tests/kafka``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from stores.changelog import Changelog, MemoryChangelog
from stores.contract.levels import AT_ONCE
from stores.engines.rocksdb.flushes import Flushes
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.settings import Upgrade
from stores.tasks.stores import log_start
from stores.tasks.stores.log_follower import restore
from stores.tasks.stores.log_format import Conversion
from stores.tasks.stores.replay_bound import ReplayBound
from stores.tests.changelog.records import MANY
from stores.tests.tasks.setup import DIRECT, INDEXED, INPUT, MEMORY, Crash, raising_at
from stores.tests.tasks.typed import KINDS, RETENTION_MS, STORE, typed_task, values, write

EXPIRING = [kind for kind in KINDS if "window" in kind or "session" in kind or kind == "duplicates"]
LMDB = "lmdb-indexed-batch"
"""Its commits survive a kill at once: what has expired may go with the next commit."""
DAYS_MS = 86_400_000 * 18_000
"""A time years ago, and long before the clock of the machine."""


class SelfCompacting(MemoryChangelog):
    """A changelog that drops what the task names, and nothing else."""

    compacts_itself: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.drops: list[int] = []

    def drop_before(self, partition: TopicPartition, before_offset: int) -> None:
        self.drops.append(before_offset)
        self.truncate(partition, before_offset)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_start, "INTERVAL_S", 0.0)


@pytest.fixture
def log() -> Iterator[SelfCompacting]:
    with SelfCompacting() as changelog:
        changelog.create_topic("input")
        changelog.create_topic("output")
        yield changelog


def feed(log: Changelog, times_ms: list[int]) -> None:
    with log.producer() as producer:
        producer.send_all(INPUT, [(b"%d" % (number % 4), b"x", time_ms) for number, time_ms in enumerate(times_ms)])
        producer.flush()


def wandering(random: Random, count: int) -> list[int]:
    """Return times that rise by a hundredth of the retention, some of them late, a few by much."""
    at, times = DAYS_MS, []
    for _ in range(count):
        at += random.choice((0, 5, 10, 20, 20)) if random.random() > 0.02 else 3 * RETENTION_MS
        times.append(at - random.choice((0, 0, 0, 30, 600, 1_500)))
    return times


def shown_elsewhere(log: Changelog, kind: str) -> list[int]:
    """Return the values of a store that is restored whole, beside the task; nothing may be missing."""
    with TemporaryDirectory() as folder, open_store(MEMORY, Path(folder) / "store", name="s") as store:
        KINDS[kind].prepare(store)
        conversion = Conversion(store, KINDS[kind], None)
        assert restore(store, log, STORE, None, {}, None, ReplayBound(-1), conversion).missing is None
        viewed: Any = SimpleNamespace(store=lambda name, level: KINDS[kind].view(store.read_only(level)))
        return values(viewed, kind)


@pytest.mark.parametrize(("guarantee", "coalescing"), [("exactly_once", True), ("at_least_once", False)])
@pytest.mark.parametrize("kind", EXPIRING)
def test_a_changelog_drops_what_has_expired_and_nothing_that_lives(
    tmp_path: Path, log: SelfCompacting, kind: str, guarantee: str, coalescing: bool
) -> None:
    seed = 20 + EXPIRING.index(kind)
    feed(log, wandering(Random(seed), 300))
    settings = {"guarantee": guarantee, "store_changelog_coalescing": coalescing}
    with closing(typed_task(tmp_path, log, kind, LMDB, **settings)) as task:
        task.open()
        steps = Random(seed)
        while task.run(steps.randrange(3, 16), commit=True):
            assert shown_elsewhere(log, kind) == values(task, kind)
        records_in_log = log.end_offset(STORE) - log.start_offset(STORE)
        assert log.drops == sorted(set(log.drops))
        assert len(log.drops) > 3
        assert records_in_log < 150


@pytest.mark.parametrize(
    ("backend", "commits"), [(INDEXED, 1), (INDEXED, 5), (MEMORY, 1), ("lmdb-native", 1), (DIRECT, 1)]
)
def test_a_changelog_stays_bounded_over_restarts_that_come_more_often_than_segments_expire(
    tmp_path: Path, log: SelfCompacting, backend: str, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process makes so many commits."""
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_RECORDS_MAX", 10)
    feed(log, [DAYS_MS + number * 10 for number in range(600)])
    lengths = []
    for _ in range(30 // commits):
        with closing(typed_task(tmp_path, log, "window", backend)) as task:
            task.open()
            for _ in range(commits):
                task.run(20, commit=True)
                lengths.append(log.end_offset(STORE) - log.start_offset(STORE))
    # 100 records live, and an eighth more is remembered late.
    assert max(lengths) < 160
    assert len(log.drops) > 15


def test_a_standby_copy_remembers_the_times_for_when_its_task_begins(tmp_path: Path, log: SelfCompacting) -> None:
    feed(log, [DAYS_MS + number * 10 for number in range(400)])
    for turn in range(20):
        with closing(typed_task(tmp_path / "active", log, "window")) as task:
            task.open()
            task.run(10, commit=True)
        with closing(typed_task(tmp_path / "standby", log, "window", INDEXED).standby()) as standby:
            standby.open()
            while standby.follow(100):
                pass
        if turn == 19:
            log.drops.clear()
    with closing(typed_task(tmp_path / "standby", log, "window", INDEXED)) as task:
        task.open()
        task.run(10, commit=True)
    assert log.drops


def test_a_task_drops_nothing_that_a_kill_would_need_of_the_copy_that_it_continues_with(
    tmp_path: Path, log: SelfCompacting
) -> None:
    """The copy's writes are not persistent yet."""
    feed(log, [DAYS_MS + number * 10 for number in range(400)])
    standby = typed_task(tmp_path / "standby", log, "window", INDEXED).standby()
    standby.open()
    for _ in range(20):
        with closing(typed_task(tmp_path / "active", log, "window")) as task:
            task.open()
            task.run(10, commit=True)
        while standby.follow(100):
            pass
    log.drops.clear()
    with closing(typed_task(tmp_path / "standby", log, "window", INDEXED)) as task:
        task.open(standby.hand_over())
        task.run(10, commit=True)
        assert not log.drops


def test_a_rolled_back_transaction_drops_nothing(tmp_path: Path, log: SelfCompacting) -> None:
    feed(log, [DAYS_MS + number * 10 for number in range(200)] + [DAYS_MS + 50 * RETENTION_MS])

    def process(record: Any, context: Any) -> None:
        write("window", record, context)

    failing = raising_at({200}, process)
    with closing(typed_task(tmp_path, log, "window", LMDB, process=failing)) as task:
        task.open()
        task.run(200, commit=True)
        drops = list(log.drops)
        with pytest.raises(Crash):
            task.run(commit=True)
        assert log.drops == drops
    assert len(shown_elsewhere(log, "window")) == 100


def test_a_store_that_a_kill_would_take_back_keeps_its_changelog(
    tmp_path: Path, log: SelfCompacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a WAL, the last commits are in memory: what they need may not go before they are flushed."""
    flushes: list[Flushes] = []
    monkeypatch.setattr(Flushes, "persisted", lambda self: 0)
    monkeypatch.setattr(Flushes, "begin", lambda self: bool(flushes.append(self)))  # type: ignore[func-returns-value]
    feed(log, [DAYS_MS + number * 50 for number in range(100)])
    with closing(typed_task(tmp_path, log, "window", INDEXED)) as task:
        task.open()
        while task.run(10, commit=True):
            pass
        assert task._stores._stores[0].store.persistence is not AT_ONCE
        assert not log.drops
        assert flushes
        monkeypatch.setattr(Flushes, "persisted", lambda self: self.entries)
        feed(log, [DAYS_MS + 6_000])
        task.run(commit=True)
        assert log.drops


def test_between_two_requests_some_time_passes(
    tmp_path: Path, log: SelfCompacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_start, "INTERVAL_S", 1_000.0)
    feed(log, [DAYS_MS + number * 100 for number in range(100)])
    with closing(typed_task(tmp_path, log, "window", LMDB)) as task:
        task.open()
        while task.run(5, commit=True):
            pass
    assert len(log.drops) == 1


def test_a_record_goes_when_it_has_expired_and_not_a_millisecond_earlier(tmp_path: Path, log: SelfCompacting) -> None:
    feed(log, [DAYS_MS, DAYS_MS + RETENTION_MS - 1, DAYS_MS + RETENTION_MS])
    with closing(typed_task(tmp_path, log, "window", LMDB)) as task:
        task.open()
        for count in (1, 2):
            task.run(1, commit=True)
            assert log.drops == []
            assert len(shown_elsewhere(log, "window")) == count
        task.run(1, commit=True)
        assert len(log.drops) == 1
        assert shown_elsewhere(log, "window") == [1, 2]


def test_few_times_are_remembered_however_often_a_task_commits(tmp_path: Path, log: SelfCompacting) -> None:
    feed(log, [DAYS_MS + number for number in range(2_000)])
    with closing(typed_task(tmp_path, log, "window", LMDB)) as task:
        task.open()
        while task.run(10, commit=True):
            mark = task._stores._stores[0].store.mark(log_start.LOG_TIMES)
            assert len(mark or b"") <= 16 * (log_start.STEPS + 2)
    assert log.drops


def test_an_online_upgrade_finds_all_that_its_own_retention_needs(tmp_path: Path, log: SelfCompacting) -> None:
    feed(log, [DAYS_MS + number * 50 for number in range(100)])
    upgrade = Upgrade(
        1, lambda record, version: [(record.key or b"", record.value)], online=True, records=KINDS["window"]
    )
    settings = {"store_upgrade": upgrade, "store_upgrade_mode": "in_place"}
    with closing(typed_task(tmp_path, log, "window", LMDB, **settings)) as task:
        task.open()
        while task.run(10, commit=True):
            pass
    assert not log.drops


def test_an_offset_that_the_brokers_forget_in_time_is_committed_again(
    tmp_path: Path, log: SelfCompacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, [DAYS_MS + number * 50 for number in range(40)])
    with closing(typed_task(tmp_path, log, "window", LMDB)) as task:
        task.open()
        while task.run(10, commit=True):
            pass
        needed = log_start.needed_from(log, STORE)
        assert needed == log.start_offset(STORE) > 0
        for renewal_s, expected in ((86_400.0, 0), (0.0, needed)):
            with log.producer() as producer:
                log_start.send_needed_from(producer, STORE, 0)
                producer.flush()
            # The offset that was committed last is to be renewed only after its time.
            start = task._stores._stores[0]._log_start
            monkeypatch.setattr(start, "_renewal_at_s", time.monotonic() + renewal_s)
            feed(log, [DAYS_MS + 39 * 50])
            task.run(commit=True)
            assert log_start.needed_from(log, STORE) == expected
        assert start._renewal_at_s > time.monotonic() + 80_000


def test_a_rewritten_changelog_is_not_needed_from_an_earlier_offset_again(
    tmp_path: Path, log: SelfCompacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_RECORDS_MAX", 5)
    feed(log, [DAYS_MS + number * 50 for number in range(15)])
    with closing(typed_task(tmp_path, log, "window", LMDB)) as task:
        task.open()
        task.run(commit=True)
    upgrade = Upgrade(1, lambda record, version: [(record.key or b"", record.value)], rewrite_changelog=True)
    for number in range(2):
        # So late that the first five of the old records have expired.
        feed(log, [DAYS_MS + 5 * 50 + RETENTION_MS + number])
        with closing(typed_task(tmp_path / "new", log, "window", LMDB, store_upgrade=upgrade)) as task:
            task.open()
            assert log_start.needed_from(log, STORE) == log.start_offset(STORE) == 15
            task.run(commit=True)
            assert log_start.needed_from(log, STORE) == 15


def test_a_needed_offset_behind_an_open_transaction_counts(log: SelfCompacting) -> None:
    log.create_topic(STORE.topic)
    with log.producer("open") as still_open, log.producer() as producer:
        still_open.begin()
        for _ in range(MANY):
            still_open.send(STORE, b"open", b"")
        producer.send(STORE, b"k", b"v")
        producer.flush()
        needed = log.written_end(STORE)
        for offset, expected in ((needed, needed), (needed + 1, 0)):
            log_start.send_needed_from(producer, STORE, offset)
            producer.flush()
            assert log.end_offset(STORE) == 0
            assert log_start.needed_from(log, STORE) == expected
        still_open.abort()


@pytest.mark.parametrize("damaged", [b"", b"x" * 15, b"x" * 17])
def test_a_damaged_list_of_times_counts_as_none(tmp_path: Path, log: SelfCompacting, damaged: bytes) -> None:
    feed(log, [DAYS_MS + number * 50 for number in range(40)])
    with closing(typed_task(tmp_path, log, "window", INDEXED)) as task:
        task.open()
        task.run(20, commit=True)
        task._stores._stores[0].store.restore([], {}, marks={log_start.LOG_TIMES: damaged})
    with closing(typed_task(tmp_path, log, "window", INDEXED)) as task:
        task.open()
        task.run(commit=True)
        assert len(values(task, "window")) == 20


# What is missing


@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_says_which_offsets_are_missing_that_the_task_has_not_dropped(
    tmp_path: Path, log: SelfCompacting, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    feed(log, [DAYS_MS + number for number in range(20)])
    with closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        task.open()
        task.run(commit=True)
    log.truncate(STORE, 7)
    with caplog.at_level(logging.WARNING), closing(typed_task(tmp_path / "elsewhere", log, kind, INDEXED)) as task:
        [report] = task.open()
        assert (report.wiped, report.from_offset, report.records) == (False, 7, 13)
        assert report.reason is not None
        assert f"from offset 0 to before 7 of {STORE.topic}-{STORE.partition}" in report.reason
        assert any(report.reason in record.getMessage() for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.WARNING), closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        [report] = task.open()
        assert (report.wiped, report.reason, caplog.records) == (False, None, [])


def test_beyond_what_the_task_has_dropped_a_restore_names_the_rest(tmp_path: Path, log: SelfCompacting) -> None:
    feed(log, [DAYS_MS + number * 50 for number in range(100)])
    with closing(typed_task(tmp_path, log, "window", LMDB)) as task:
        task.open()
        while task.run(10, commit=True):
            pass
    last_drop = log.drops[-1]
    log.truncate(STORE, last_drop + 3)
    with closing(typed_task(tmp_path / "elsewhere", log, "window", LMDB)) as task:
        [report] = task.open()
        assert report.reason is not None
        assert f"from offset {last_drop} to before {last_drop + 3}" in report.reason


def test_the_offset_of_an_earlier_changelog_of_this_name_does_not_count(tmp_path: Path, log: SelfCompacting) -> None:
    feed(log, [DAYS_MS + number for number in range(5)])
    with log.producer() as producer:
        log_start.send_needed_from(producer, STORE, 1_000)
        producer.flush()
    with closing(typed_task(tmp_path, log, "window", INDEXED)) as task:
        task.open()
        task.run(commit=True)
    assert len(shown_elsewhere(log, "window")) == 5
