"""A changelog whose records are all logged again in the present format, so that none is of an earlier one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.interface import ProcessingGuarantee
from stores.settings.upgrade import Upgrade
from stores.tasks import StreamTask
from stores.tasks.stores import log_rewriting
from stores.tasks.stores.conversion import VERSION_HEADER
from stores.tasks.stores.store_group import AFTER_STORE_COMMIT
from stores.tasks.task_transaction import BEFORE_LOG_COMMIT
from stores.tests.tasks.setup import DIRECT, INDEXED, MEMORY, Crash, checkpoint
from stores.tests.tasks.typed import STORE, feed_times
from stores.tests.tasks.upgrading import (
    BACKENDS,
    expected,
    new_task,
    old_task,
    rewriting_task,
    run_upgrade_until_killed,
    shown,
    to_new,
    work,
)

NEW_HEADERS = ((VERSION_HEADER, b"1"),)


def never(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
    """Shows that there is nothing left to convert."""
    raise AssertionError(f"record {record.offset} has format {version}")


def restored(folder: Path, log: Any, backend: str = INDEXED) -> StreamTask:
    """A task whose new store is restored from a changelog that has the present format alone."""
    return new_task(folder, log, backend, store_upgrade=Upgrade(1, never))


@pytest.mark.parametrize("guarantee", ProcessingGuarantee)
@pytest.mark.parametrize("backend", [*BACKENDS, DIRECT, MEMORY])
def test_after_the_upgrade_the_changelog_has_the_present_format_alone_and_restores(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: ProcessingGuarantee
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log, backend, guarantee=guarantee), 8)
    work(new_task(tmp_path, log, backend, guarantee=guarantee), 4)
    with closing(rewriting_task(tmp_path, log, backend, guarantee=guarantee)) as task:
        task.open()
        assert {record.headers for record in log.read(STORE, log.start_offset(STORE))} == {NEW_HEADERS}
        assert shown(task) == expected(12)
        task.run(4, commit=True)
    with closing(rewriting_task(tmp_path, log, backend, guarantee=guarantee)) as task:
        start = log.start_offset(STORE)
        [report] = task.open()
        assert log.start_offset(STORE) == start
        if backend != MEMORY:
            assert (report.wiped, report.records) == (False, 0)
        assert shown(task) == expected(16)
    with closing(restored(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(16)


@pytest.mark.parametrize("backend", [*BACKENDS, DIRECT])
def test_a_store_whose_changelog_was_rewritten_is_at_its_end(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    settings: dict[str, Any] = {"guarantee": ProcessingGuarantee.AT_LEAST_ONCE}
    feed_times(log, range(20))
    work(old_task(tmp_path, log, backend, **settings), 8)
    with closing(rewriting_task(tmp_path, log, backend, **settings)) as task:
        task.open()
        last = log.end_offset(STORE) - 1
        assert task.changelog_offsets() == {STORE: last}
        if backend == DIRECT:
            assert checkpoint(tmp_path).read() == {STORE: last}
    with closing(rewriting_task(tmp_path, log, backend, **settings)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)


def test_times_and_the_order_of_records_stay(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(10))
    work(old_task(tmp_path, log), 10)
    before = [(pair[0], pair[1], record.timestamp_ms) for record in log.read(STORE) for pair in to_new(record, 0)]
    work(rewriting_task(tmp_path, log), 0)
    after = [(record.key, record.value, record.timestamp_ms) for record in log.read(STORE, log.start_offset(STORE))]
    assert after == before


def test_a_compacted_changelog_of_several_formats_restores_and_can_be_rewritten(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 9)
    work(new_task(tmp_path, log), 6)
    assert log.compact(STORE)
    with closing(new_task(tmp_path / "mixed", log)) as task:
        task.open()
        assert shown(task) == expected(15)
    work(rewriting_task(tmp_path, log), 0)
    log.compact(STORE)
    with closing(restored(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(15)


def test_an_error_of_the_converter_leaves_the_changelog_as_it_was(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(10))
    work(old_task(tmp_path, log), 4)
    work(new_task(tmp_path, log), 2)
    before = list(log.read(STORE))

    def broken(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        raise Crash

    with pytest.raises(Crash):
        new_task(tmp_path, log, store_upgrade=Upgrade(1, broken, rewrite_changelog=True)).open()
    assert list(log.read(STORE)) == before
    work(new_task(tmp_path, log))


def test_a_new_instance_that_rebuilds_leaves_the_changelog_to_the_one_that_works(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(10))
    work(old_task(tmp_path / "old", log), 4)
    before = list(log.read(STORE))
    task = rewriting_task(tmp_path / "new", log, mode="roll_over")
    task.rebuild()
    assert list(log.read(STORE)) == before


@pytest.mark.parametrize("backend", [INDEXED, DIRECT])
@pytest.mark.parametrize("failpoint", log_rewriting.FAILPOINTS)
def test_a_kill_while_a_changelog_is_rewritten_loses_nothing(tmp_path: Path, failpoint: str, backend: str) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed_times(log, range(20))
        work(old_task(tmp_path, log, backend), 12)
    assert run_upgrade_until_killed(tmp_path, failpoint, 1, "rewriting", backend)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with closing(new_task(tmp_path / "other", log, backend)) as task:
            task.open()
            assert shown(task) == expected(12)
        with closing(rewriting_task(tmp_path, log, backend)) as task:
            [report] = task.open()
            if backend != DIRECT:
                assert not report.wiped
            assert shown(task) == expected(12)
            assert {record.headers for record in log.read(STORE, log.start_offset(STORE))} == {NEW_HEADERS}
            task.run(commit=True)
            assert shown(task) == expected(20)
        with closing(restored(tmp_path / "third", log)) as task:
            task.open()
            assert shown(task) == expected(20)


def test_a_kill_after_a_changelog_is_rewritten_takes_no_store_back_to_an_offset_that_is_gone(tmp_path: Path) -> None:
    """Without a WAL, what the first kill left to be restored is nowhere but in the changelog."""
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed_times(log, range(20))
        work(old_task(tmp_path, log), 4)
        work(new_task(tmp_path, log), 2)
    assert run_upgrade_until_killed(tmp_path, AFTER_STORE_COMMIT, 2, "offline", INDEXED)
    assert run_upgrade_until_killed(tmp_path, BEFORE_LOG_COMMIT, 1, "rewriting", INDEXED)
    with SqliteChangelog(tmp_path / "log.sqlite") as log, closing(rewriting_task(tmp_path, log)) as task:
        [report] = task.open()
        assert not report.wiped
        assert shown(task) == expected(10)
