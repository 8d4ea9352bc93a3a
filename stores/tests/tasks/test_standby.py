"""A standby copy of a task: it follows committed records alone, and the task restores no more than the copy lacks.

Source: KIP-441; KIP-892, "Offsets for Consumer Rebalances".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record
from stores.errors import ChangelogLostError, StoreError, StoreLockedError
from stores.interface import IsolationLevel, TopicPartition
from stores.registry import open_store
from stores.tasks import StreamTask
from stores.tasks.stores import task_store
from stores.tasks.stores.log_follower import AFTER_WRITE, BEFORE_WRITE, Restored, restore
from stores.tasks.task_resources import StandbyTask
from stores.tests.changelog.records import MANY
from stores.tests.tasks import upgrading
from stores.tests.tasks.followed import follow, kept
from stores.tests.tasks.setup import (
    DIRECT,
    INDEXED,
    INPUT,
    LEFT,
    MEMORY,
    RIGHT,
    Crash,
    counting_task,
    crashing_at,
    expected_state,
    feed,
    raising_at,
    state,
    store_folder,
)
from stores.tests.tasks.typed import KINDS, feed_times, typed_task, values

KEYS = [number % 6 for number in range(20)]
MORE = [1, 7, 1]
BACKENDS = [INDEXED, "lmdb", "sqlite", DIRECT]


class Dirty(MemoryChangelog):
    """A broken changelog: its readers see uncommitted and aborted records, too."""

    def __init__(self, log: MemoryChangelog) -> None:
        self.__dict__ = log.__dict__

    def end_offset(self, partition: TopicPartition) -> int:
        return self._log(partition).next_offset

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        return iter([record for record, _ in self._log(partition).records if record.offset >= from_offset])


def count_ahead(*arguments: Any, **settings: Any) -> Restored:
    """A broken restore: after a part of the changelog it counts all of it as written."""
    result = restore(*arguments, **settings)
    if result.cut:
        store, _, partition = arguments[:3]
        result.last_offset = result.to_offset - 1
        store.restore([], {partition: result.last_offset})
    return result


@contextmanager
def active(folder: Path, log: Changelog, keys: Iterable[int] = (), **settings: Any) -> Iterator[StreamTask]:
    """The task in ``folder/active``, which has processed its input with ``keys``."""
    feed(log, keys)
    with counting_task(folder / "active", log, **{"commit_every_records": 3, **settings}) as task:
        task.run(commit=True)
        yield task


def standby(folder: Path, log: Changelog, backend: str = INDEXED, **settings: Any) -> StandbyTask:
    """An open copy of the task in ``folder/other``."""
    copy = counting_task(folder / "other", log, backend, **settings).standby()
    copy.open()
    return copy


def take_over(folder: Path, log: Changelog, backend: str, keys: Iterable[int]) -> list[tuple[bool, int]]:
    """Open the task in the folder of the copy, and check its state; return for each store: wiped, records restored."""
    with counting_task(folder / "other", log, backend) as task:
        for store in ("left", "right"):
            assert state(task, store) == expected_state(keys)
        assert task.input_offsets() == {INPUT: len(list(keys))}
        return [(report.wiped, report.records) for report in task.restore_reports()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_task_restores_no_more_than_its_standby_copy_lacks(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    with active(tmp_path, log, KEYS) as task:
        copy = standby(tmp_path, log, backend)
        assert copy.follow(7) == 2 * (len(KEYS) - 7)
        assert copy.offsets() == {LEFT: 6, RIGHT: 6}
        follow(copy)
        assert kept(copy, 0) == kept(copy, 1) == expected_state(KEYS)
        feed(log, MORE[:1])
        task.run(commit=True)
        assert copy.follow(7) == 0
        assert copy.offsets() == task.changelog_offsets() == {LEFT: len(KEYS), RIGHT: len(KEYS)}
        copy.close()
        copy.close()
        feed(log, MORE[1:])
        task.run(commit=True)
    assert take_over(tmp_path, log, backend, KEYS + MORE) == [(False, len(MORE) - 1)] * 2


@pytest.mark.parametrize("failpoint", [BEFORE_WRITE, AFTER_WRITE])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_standby_that_is_killed_while_it_writes_loses_and_repeats_nothing(
    tmp_path: Path, log: MemoryChangelog, backend: str, failpoint: str
) -> None:
    """A store that does not isolate uncommitted writes can't know that it has none, and is wiped."""
    with active(tmp_path, log, KEYS):
        copy = standby(tmp_path, log, backend)
        copy.follow(4)
        with crashing_at(failpoint):
            copy.follow(4)
        copy.close(clean=False)
    is_wiped = backend == DIRECT
    first, second = (0, 0) if is_wiped else (4, 4) if failpoint == BEFORE_WRITE else (8, 4)
    expected = [(is_wiped, len(KEYS) - first), (is_wiped, len(KEYS) - second)]
    assert take_over(tmp_path, log, backend, KEYS) == expected


def check_isolation(folder: Path, log: MemoryChangelog, seen: Changelog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a copy, to which the changelog looks like ``seen``, never has what is not committed."""
    monkeypatch.setattr("stores.changelog.producer.PENDING_RECORDS_MAX", 1)
    settings = {"commit_every_records": None, "process": raising_at({len(KEYS) + 2})}
    with active(folder, log, KEYS, **settings) as task, closing(standby(folder, seen)) as copy:
        follow(copy)
        feed(log, MORE)
        assert task.run(2) == 2
        follow(copy)
        # The changelog has the records, which is why a reader could see them.
        assert len(log._log(LEFT).records) > len(KEYS)
        assert kept(copy) == expected_state(KEYS)
        with suppress(Crash):
            task.run()
        follow(copy)
        assert kept(copy) == expected_state(KEYS)
        assert task.run(2, commit=True) == 2
        follow(copy)
        assert kept(copy) == expected_state(KEYS + MORE[:2])


def test_a_standby_never_has_uncommitted_or_aborted_records(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_isolation(tmp_path, log, log, monkeypatch)


def test_a_standby_that_applies_uncommitted_records_is_noticed(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant: the check finds it."""
    with pytest.raises(AssertionError):
        check_isolation(tmp_path, log, Dirty(log), monkeypatch)


@pytest.mark.parametrize("visible", [0, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_is_kept_whose_commit_is_not_visible_yet(
    tmp_path: Path, log: MemoryChangelog, backend: str, visible: int
) -> None:
    """An open transaction hides what was committed after it. Kafka makes each commit visible a moment later."""
    still_open = log.producer("open")
    with counting_task(tmp_path / "other", log, backend) as task:
        feed(log, KEYS[:visible])
        task.run(commit=True)
        still_open.begin()
        for partition in (LEFT, RIGHT):
            for _ in range(MANY):
                still_open.send(partition, b"open", b"")
        feed(log, KEYS[visible:])
        task.run(commit=True)
        task.close()
        assert [log.end_offset(LEFT), log.end_offset(RIGHT)] == [visible, visible]
        with closing(standby(tmp_path, log, backend)) as copy:
            follow(copy)
            assert kept(copy) == kept(copy, 1) == expected_state(KEYS)
        assert take_over(tmp_path, log, backend, KEYS) == [(False, 0)] * 2


@pytest.mark.parametrize("hidden", [LEFT, RIGHT])
def test_a_position_is_told_once_the_changelogs_of_all_stores_show_its_records(
    tmp_path: Path, log: MemoryChangelog, hidden: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = MemoryChangelog.committed_offsets
    with active(tmp_path, log, KEYS[:4]) as task, closing(standby(tmp_path, log)) as copy:
        still_open = log.producer("open")
        still_open.begin()
        for _ in range(MANY):
            still_open.send(hidden, b"open", b"")

        def commit_first(*arguments: Any) -> Any:
            """The owner commits once more just before the answer."""
            monkeypatch.setattr(MemoryChangelog, "committed_offsets", asked)
            feed(log, KEYS[4:6])
            task.run(commit=True)
            return asked(*arguments)

        monkeypatch.setattr(MemoryChangelog, "committed_offsets", commit_first)
        assert [copy.committed_position() for _ in range(2)] == [None, None]
        assert log.written_end(hidden) > log.end_offset(hidden)
        feed(log, KEYS[6:])
        task.run(commit=True)
        assert copy.committed_position() is None
        still_open.abort()
        assert copy.committed_position() == {INPUT: 5}
        assert copy.committed_position() == {INPUT: len(KEYS) - 1}


def test_a_store_that_is_rolled_over_gets_its_position_from_its_task(tmp_path: Path, log: MemoryChangelog) -> None:
    """The owner may have a commit whose records cannot be read yet."""
    with active(tmp_path, log, KEYS):
        counting_task(tmp_path / "other", log, "lmdb").rebuild()
        with open_store("lmdb", store_folder(tmp_path / "other", "lmdb")) as store:
            assert store.position(IsolationLevel.READ_COMMITTED) == {}
    with counting_task(tmp_path / "other", log, "lmdb") as task:
        assert task.store("left").position() == {INPUT: len(KEYS) - 1}


def check_interrupted(folder: Path, log: MemoryChangelog) -> None:
    """Check the state of a task that takes over from a copy which was closed on its way."""
    with active(folder, log, KEYS), closing(standby(folder, log)) as copy:
        copy.follow(5)
    assert take_over(folder, log, INDEXED, KEYS) == [(False, len(KEYS) - 5)] * 2


def test_a_standby_that_is_closed_on_its_way_counts_what_it_has_written(tmp_path: Path, log: MemoryChangelog) -> None:
    check_interrupted(tmp_path, log)


def test_a_standby_that_counts_ahead_of_what_it_has_written_is_noticed(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant: the check finds it."""
    monkeypatch.setattr(task_store, "restore", count_ahead)
    with pytest.raises(AssertionError):
        check_interrupted(tmp_path, log)


def test_a_standby_whose_files_are_damaged_is_wiped_and_follows_from_the_start(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    with active(tmp_path, log, KEYS):
        copy = standby(tmp_path, log)
        follow(copy)
        copy.close()
        (store_folder(tmp_path / "other", INDEXED) / "data" / "CURRENT").write_bytes(b"")
        task = counting_task(tmp_path / "other", log)
        copy = task.standby()
        copy.open()
        assert {name: store.wipe_total for name, store in task.metrics.stores.items()} == {"left": 1, "right": 0}
        assert copy.follow(5) == len(KEYS) - 5
        follow(copy)
        assert kept(copy) == expected_state(KEYS)
        copy.close()
    assert take_over(tmp_path, log, INDEXED, KEYS) == [(False, 0)] * 2


def test_a_standby_whose_next_record_was_truncated_is_wiped(tmp_path: Path, log: MemoryChangelog) -> None:
    with active(tmp_path, log, KEYS):
        task = counting_task(tmp_path / "other", log)
        with closing(task.standby()) as copy:
            copy.open()
            copy.follow(5)
            log.compact(LEFT)
            log.truncate(LEFT, 14)
            follow(copy)
            assert task.metrics.stores["left"].wipe_total == 1
            assert kept(copy) == expected_state(KEYS)


def test_a_standby_keeps_its_files_if_the_changelog_is_lost(tmp_path: Path, log: MemoryChangelog) -> None:
    with active(tmp_path, log, KEYS):
        copy = standby(tmp_path, log)
        follow(copy)
        copy.close()
    with MemoryChangelog() as empty:
        feed(empty, [])
        copy = standby(tmp_path, empty)
        with pytest.raises(ChangelogLostError):
            copy.follow(5)
        copy.close(clean=False)
    assert take_over(tmp_path, log, INDEXED, KEYS) == [(False, 0)] * 2


def test_a_standby_writes_nothing_to_the_changelog_and_fences_no_producer(tmp_path: Path, log: MemoryChangelog) -> None:
    with active(tmp_path, log, KEYS) as task:
        before = {topic: len(log._log(TopicPartition(topic, 0)).records) for topic in log.topics()}
        epochs = dict(log._epochs)
        with closing(standby(tmp_path, log)) as copy:
            follow(copy)
        assert {topic: len(log._log(TopicPartition(topic, 0)).records) for topic in log.topics()} == before
        assert log._epochs == epochs
        feed(log, MORE)
        assert task.run(commit=True) == len(MORE)


def test_a_folder_has_one_owner_task_or_standby(tmp_path: Path, log: MemoryChangelog) -> None:
    with active(tmp_path, log, KEYS):
        here = counting_task(tmp_path / "active", log).standby()
        with pytest.raises(StoreLockedError):
            here.open()
        task = counting_task(tmp_path / "other", log)
        copy = task.standby()
        copy.open()
        with pytest.raises(StoreLockedError):
            counting_task(tmp_path / "other", log).standby().open()
        with pytest.raises(StoreLockedError):
            counting_task(tmp_path / "other", log).open()
        with pytest.raises(StoreError):
            task.open()
        assert copy.follow(100) == 0
        copy.close()


def test_the_lag_of_a_standby_is_among_the_metrics_of_its_task(tmp_path: Path, log: MemoryChangelog) -> None:
    with active(tmp_path, log, KEYS) as owner:
        task = counting_task(tmp_path / "other", log)
        with closing(task.standby()) as copy:
            copy.open()
            assert task.metrics.standby_lag is None
            copy.follow(7)
            assert task.metrics.standby_lag == 2 * (len(KEYS) - 7)
            follow(copy)
            assert task.metrics.standby_lag == 0
        assert task.metrics.standby_lag is None
        assert owner.metrics.standby_lag is None


def test_a_store_in_memory_does_not_follow(tmp_path: Path, log: MemoryChangelog) -> None:
    with active(tmp_path, log, KEYS), closing(standby(tmp_path, log, MEMORY)) as copy:
        assert copy.follow(5) == 0
        assert kept(copy) == {}


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "window" in kind or "session" in kind or kind in ("versioned", "headers")]
)
def test_the_standby_of_a_typed_store_has_what_the_store_has_and_drops_what_has_expired(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    feed_times(log, range(600))
    with typed_task(tmp_path / "active", log, kind, INDEXED, commit_every_records=20) as task:
        task.run(commit=True)
        contents = values(task, kind)
        with closing(typed_task(tmp_path / "other", log, kind, INDEXED).standby()) as copy:
            copy.open()
            follow(copy, 50)
            with task._stores._stores[0].store.all() as pairs:
                assert kept(copy) == dict(pairs)
    with typed_task(tmp_path / "other", log, kind, INDEXED) as task:
        assert values(task, kind) == contents
        assert [report.records for report in task.restore_reports()] == [0]


def test_a_standby_of_a_newer_format_upgrades_its_files_and_follows_records_of_the_old_one(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-258, rolling upgrades."""
    feed_times(log, range(40))
    with closing(upgrading.old_task(tmp_path / "active", log)) as old:
        old.open()
        old.run(8, commit=True)
        with closing(upgrading.old_task(tmp_path / "other", log).standby()) as copy:
            copy.open()
            follow(copy)
        task = upgrading.new_task(tmp_path / "other", log)
        with closing(task.standby()) as copy:
            copy.open()
            assert task.metrics.stores["s"].upgrade_total == 1
            old.run(8, commit=True)
            follow(copy)
    with closing(upgrading.new_task(tmp_path / "other", log)) as new:
        [report] = new.open()
        assert report.records == 0
        assert upgrading.shown(new) == upgrading.expected(16)
        new.run(commit=True)
        assert upgrading.shown(new) == upgrading.expected(40)
