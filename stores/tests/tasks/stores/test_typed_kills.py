"""The typed store of a task after the one before it was killed: all writes of every segment, or none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, SqliteChangelog
from stores.registry import backend_named
from stores.tasks import ProcessingGuarantee
from stores.tests.tasks.setup import AT_LEAST_ONCE, DIRECT, EXACTLY_ONCE, INDEXED
from stores.tests.tasks.typed import (
    BETWEEN_SEGMENTS,
    KINDS,
    broken_task,
    feed_times,
    kept,
    run_typed_until_killed,
    typed_task,
    values,
)

COUNT = 12
FAILPOINTS = [
    "task.before_log_commit",
    "task.after_log_commit",
    "task.after_store_commit",
    "task.after_checkpoint",
]
BACKENDS = [INDEXED, DIRECT, "rocksdb-dual-store", "lmdb-native", "sqlite-indexed-batch"]


def _cases() -> list[Any]:
    """Every failpoint and kind on one backend, every backend for windows and timestamps.

    ``make test`` has two of the failpoints of each kind on the one backend, in turn.
    """
    every = {
        (failpoint, kind, "lmdb-indexed-batch"): at % 2 != number % 2
        for at, failpoint in enumerate(FAILPOINTS)
        for number, kind in enumerate(KINDS)
    }
    for failpoint in FAILPOINTS[1:3]:
        every |= {(failpoint, kind, backend): False for kind in ("window", "timestamped") for backend in BACKENDS}
    return [pytest.param(*case, marks=pytest.mark.long if every[case] else []) for case in sorted(every)]


def _without_kill(folder: Path, kind: str, count: int) -> list[int]:
    with MemoryChangelog() as log:
        feed_times(log, range(count))
        with closing(typed_task(folder, log, kind)) as task:
            task.open()
            task.run(commit=True)
            return values(task, kind)


def _fed(folder: Path) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        feed_times(log, range(COUNT))


@pytest.mark.parametrize(("failpoint", "kind", "backend"), _cases())
def test_no_record_is_lost_by_a_kill_nor_there_twice(tmp_path: Path, failpoint: str, kind: str, backend: str) -> None:
    """Source: KIP-892; Kafka's windows lose late records of older segments, whose offsets the newest one's hides."""
    _fed(tmp_path)
    assert run_typed_until_killed(tmp_path, failpoint, 3, kind, backend, EXACTLY_ONCE)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with closing(typed_task(tmp_path, log, kind, backend)) as task:
            [report] = task.open()
            assert report.wiped == (backend == DIRECT)
            record_count = sum(task.input_offsets().values())
            assert record_count == (6 if failpoint == "task.before_log_commit" else 9)
            assert values(task, kind) == _without_kill(tmp_path / "other", kind, record_count)
            task.run(commit=True)
            assert values(task, kind) == _without_kill(tmp_path / "another", kind, COUNT)
        with closing(typed_task(tmp_path / "restored", log, kind, backend)) as task:
            task.open()
    assert kept(tmp_path / "restored", backend) == kept(tmp_path, backend)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_kill_between_the_commits_of_two_typed_stores(tmp_path: Path, guarantee: ProcessingGuarantee) -> None:
    _fed(tmp_path)
    kinds = "window+timestamped"
    assert run_typed_until_killed(tmp_path, "task.between_stores", 3, kinds, INDEXED, guarantee)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with closing(typed_task(tmp_path, log, kinds, INDEXED, guarantee=guarantee)) as task:
            task.open()
            task.run(commit=True)
            for name, kind in zip("st", kinds.split("+"), strict=True):
                assert values(task, kind, name=name) == _without_kill(tmp_path / name, kind, COUNT)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        # One of them in ``make test``, in turn.
        pytest.param(backend, kind, marks=[] if at == number % 2 else pytest.mark.long)
        for at, backend in enumerate((INDEXED, DIRECT))
        for number, kind in enumerate(KINDS)
    ],
)
def test_at_least_once_no_record_is_lost_by_a_kill(tmp_path: Path, kind: str, backend: str) -> None:
    _fed(tmp_path)
    assert run_typed_until_killed(tmp_path, "task.after_log_commit", 3, kind, backend, AT_LEAST_ONCE)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with closing(typed_task(tmp_path, log, kind, backend, guarantee=AT_LEAST_ONCE)) as task:
            task.open()
            task.run(commit=True)
            # With duplicates a record that is processed again is there again.
            assert set(values(task, kind)) == set(_without_kill(tmp_path / "other", kind, COUNT))


@pytest.mark.parametrize("failpoint", ["task.restore.before_write", "task.restore.after_write"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_while_a_typed_store_is_restored_is_made_good(tmp_path: Path, failpoint: str, kind: str) -> None:
    _fed(tmp_path)
    assert run_typed_until_killed(tmp_path, "task.after_log_commit", 3, kind, INDEXED, EXACTLY_ONCE)
    assert run_typed_until_killed(tmp_path, failpoint, 1, kind, INDEXED, EXACTLY_ONCE)
    with SqliteChangelog(tmp_path / "log.sqlite") as log, closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        task.open()
        assert values(task, kind) == _without_kill(tmp_path / "other", kind, 9)


@pytest.mark.parametrize("kind", ["window", "timestamped-session"])
def test_segments_that_commit_one_by_one_are_seen_to_lose_late_records(tmp_path: Path, kind: str) -> None:
    """The tests above detect a store with Kafka's defect: the newest segment's offset hides missing writes."""
    _fed(tmp_path)
    backend = "lmdb-indexed-batch"
    assert run_typed_until_killed(tmp_path, BETWEEN_SEGMENTS, 3, kind, backend, make=broken_task)
    with SqliteChangelog(tmp_path / "log.sqlite") as log, closing(typed_task(tmp_path, log, kind, backend)) as task:
        task.open()
        record_count = sum(task.input_offsets().values())
        expected = _without_kill(tmp_path / "other", kind, record_count)
        contents = values(task, kind)
        assert set(contents) < set(expected)
        assert max(contents) == max(expected)


@pytest.mark.parametrize("backend", ["rocksdb-dual-store", "lmdb-indexed-batch", "sqlite-native"])
def test_a_kill_at_each_step_of_the_stores_own_commit_keeps_all_segments_together(tmp_path: Path, backend: str) -> None:
    reached = 0
    for number, failpoint in enumerate(backend_named(backend).failpoints):
        folder = tmp_path / str(number)
        folder.mkdir()
        _fed(folder)
        if not run_typed_until_killed(folder, failpoint, 2, "window", backend, EXACTLY_ONCE):
            continue
        reached += 1
        with SqliteChangelog(folder / "log.sqlite") as log, closing(typed_task(folder, log, "window", backend)) as task:
            task.open()
            record_count = sum(task.input_offsets().values())
            assert values(task, "window") == _without_kill(folder / "other", "window", record_count), failpoint
    assert reached
