"""A store that was used without offsets of its own is taken over with those of its checkpoint and position files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from stores import failpoints
from stores.changelog import Changelog, MemoryChangelog
from stores.config import StoreConfig
from stores.errors import StoreCorruptedError
from stores.files.creation import wipe
from stores.files.identity import STEPS, read_identity
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.registry import Backend, backend_named, backends, open_store
from stores.tasks import StreamTask
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.stores.earlier_store import IMPORTED, import_offsets
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    LEFT,
    RIGHT,
    checkpoint,
    counting_task,
    crashing_at,
    expected_state,
    feed,
    outputs,
    state,
    store_folder,
)

DUAL = "rocksdb-dual-store"
ELSEWHERE = TopicPartition("elsewhere", 3)


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


def used_directly(folder: Path, log: Changelog, **settings: Any) -> Path:
    """The task's folder after three records with stores that keep no offsets."""
    feed(log, [1, 2, 1])
    task = counting_task(folder, log, DIRECT, **settings)
    task.open()
    task.run()
    task.close()
    return checkpoint(folder).path.parent


def position_of(task: StreamTask, name: str) -> dict[TopicPartition, int]:
    return dict(task._context.store(name).position(IsolationLevel.READ_COMMITTED))


@pytest.mark.parametrize("backend", [INDEXED, DUAL])
def test_offsets_and_positions_are_taken_over_and_nothing_is_restored(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-892, "Upgrading"; "Interactive Query .position Offsets"."""
    folder = used_directly(tmp_path, log)
    CheckpointFile(folder / "left.position").write({INPUT: 2, ELSEWHERE: 5})
    CheckpointFile(folder / "rocksdb" / "right" / ".position").write({INPUT: 1, ELSEWHERE: 3})
    for _ in range(2):
        task = counting_task(tmp_path, log, backend)
        assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
        assert task.changelog_offsets() == {LEFT: 2, RIGHT: 2}
        assert position_of(task, "left") == {INPUT: 2, ELSEWHERE: 5}
        # What it was restored with, by maximum: the group has committed more of the input.
        assert position_of(task, "right") == {INPUT: 2, ELSEWHERE: 3}
        assert state(task, "left") == state(task, "right") == expected_state([1, 2, 1])
        task.close()
        assert list(folder.rglob("*.position*")) == []
        assert read_identity(folder / "rocksdb" / "left").backend == backend


def leave_to_import(folder: Path, log: Changelog, durability: Durability) -> None:
    """Leave stores that keep no offsets, and a position file, as Kafka Streams does."""
    task_folder = used_directly(folder, log, durability=durability)
    CheckpointFile(task_folder / "left.position").write({ELSEWHERE: 5})


def check_imported(folder: Path, log: Changelog, backend: str, durability: Durability) -> None:
    """The offsets are imported durably at each level, and what is committed later is kept as the level says."""
    task = counting_task(folder, log, backend, durability=durability)
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    assert position_of(task, "left") == {INPUT: 2, ELSEWHERE: 5}
    assert list(folder.rglob("*.position")) == []
    feed(log, [1, 3])
    task.run(1, commit=True)
    task.run()
    task.close(clean=False)
    assert [report.wiped for report in task.open()] == [False] * 2
    assert state(task, "left") == state(task, "right") == expected_state([1, 2, 1, 1])
    task.close()


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("backend", [INDEXED, DUAL])
def test_offsets_are_imported_at_every_level(
    tmp_path: Path, log: MemoryChangelog, backend: str, durability: Durability
) -> None:
    leave_to_import(tmp_path, log, durability)
    check_imported(tmp_path, log, backend, durability)


def test_offsets_that_a_store_has_are_never_overwritten(tmp_path: Path, log: MemoryChangelog) -> None:
    folder = used_directly(tmp_path, log)
    for left, right in ((INDEXED, DIRECT), (INDEXED, INDEXED)):
        checkpoint(tmp_path).write({LEFT: 1, RIGHT: 2})
        CheckpointFile(folder / "left.position").write({ELSEWHERE: 9})
        task = counting_task(tmp_path, log, left, right)
        offsets = [report.from_offset for report in task.open()]
        # Taken over at 1 the first time, and at the end ever after, whatever the files say.
        assert offsets == ([2, 3] if right == DIRECT else [3, 3])
        assert position_of(task, "left")[ELSEWHERE] == 9
        assert state(task, "left") == expected_state([1, 2, 1])
        task.close()
        assert not (folder / "left.position").exists()


def test_an_import_that_was_cut_short_keeps_the_offset_that_it_has_written(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    used_directly(tmp_path, log)
    checkpoint(tmp_path).write({LEFT: 1, RIGHT: 2})
    task = counting_task(tmp_path, log, INDEXED)
    with crashing_at(IMPORTED):
        task.open()
    checkpoint(tmp_path).write({LEFT: 2, RIGHT: 2})
    assert [report.from_offset for report in task.open()] == [2, 3]
    task.close()


def test_a_checkpoint_says_nothing_of_a_store_that_has_lost_its_first_commits(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Its store is back at its beginning after a crash, with no offset: that of the file is not its."""
    feed(log, [1, 2, 1])
    task = counting_task(tmp_path, log, INDEXED)
    task.open()
    checkpoint(tmp_path).write({LEFT: 2, RIGHT: 2})
    task.run()
    task.commit()
    task.close(clean=False)
    left = store_folder(tmp_path, DIRECT)
    wipe(left)
    open_store(INDEXED, left).close()
    checkpoint(tmp_path).write({LEFT: 2, RIGHT: 2})
    assert [report.records for report in task.open()] == [3, 0]
    assert state(task, "left") == state(task, "right") == expected_state([1, 2, 1])
    task.close()


def test_exactly_once_a_store_that_was_not_closed_cleanly_is_wiped_instead(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    folder = used_directly(tmp_path, log)
    # As of a process that opened it, and was killed before it could write that the checkpoint is gone.
    (folder / "rocksdb" / "left" / "open").write_text('{"boot": "", "tearable": false}')
    task = counting_task(tmp_path, log, INDEXED)
    assert [(report.wiped, report.records) for report in task.open()] == [(True, 3), (False, 0)]
    assert state(task, "left") == state(task, "right") == expected_state([1, 2, 1])
    task.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_without_an_offset_the_store_is_wiped_and_restored(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    used_directly(tmp_path, log, guarantee=guarantee)
    checkpoint(tmp_path).write({})
    task = counting_task(tmp_path, log, INDEXED, guarantee=guarantee)
    reports = task.open()
    assert [(report.wiped, report.records) for report in reports] == [(True, 3)] * 2
    assert all(isinstance(report.reason, str) for report in reports)
    assert state(task, "left") == expected_state([1, 2, 1])
    task.close()


def test_a_store_of_a_newer_format_is_wiped_and_restored_by_its_task(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, "Downgrading"."""
    feed(log, [1, 2, 1])
    task = counting_task(tmp_path, log, INDEXED)
    STEPS.append(lambda folder, open_engine: None)
    try:
        task.open()
        task.run()
        task.close()
    finally:
        STEPS.pop()
    reports = task.open()
    assert [(report.wiped, report.records) for report in reports] == [(True, 3)] * 2
    assert all(isinstance(report.reason, str) for report in reports)
    assert state(task, "left") == expected_state([1, 2, 1])
    task.close()
    assert len(outputs(log)) == 3


@pytest.mark.parametrize("backend", [DIRECT, INDEXED])
def test_a_wipe_takes_the_files_that_tell_of_the_store_s_position(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """They would describe data that is gone, and the next offset import would take them."""
    folder = used_directly(tmp_path, log)
    for file in (folder / "left.position", folder / "rocksdb" / "left" / ".position"):
        CheckpointFile(file).write({ELSEWHERE: 7})
    checkpoint(tmp_path).write({RIGHT: 2})
    task = counting_task(tmp_path, log, backend)
    assert [(report.wiped, report.records) for report in task.open()] == [(True, 3), (False, 0)]
    assert list(folder.rglob("*.position")) == []
    assert position_of(task, "left") == {INPUT: 2}
    task.close()


def test_a_checkpoint_does_not_count_for_a_store_that_was_removed(tmp_path: Path, log: MemoryChangelog) -> None:
    folder = used_directly(tmp_path, log)
    wipe(folder / "rocksdb" / "left")
    task = counting_task(tmp_path, log, DIRECT)
    assert [report.records for report in task.open()] == [3, 0]
    assert state(task, "left") == expected_state([1, 2, 1])
    task.close()


def test_an_import_that_was_stopped_in_its_own_commit_is_repeated_and_damage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB's older meta page has a part of what the import was writing; only the newer one counts."""
    direct = Backend("lmdb-direct", backend_named("lmdb").load_engine, backend_named(DIRECT).load_strategy)
    monkeypatch.setitem(cast(dict[str, Backend], backends()), direct.name, direct)
    path, partition = tmp_path / "store", TopicPartition("log", 0)
    with open_store(direct.name, path) as store:
        store.put(b"key", b"value")
        store.commit()
    file = path / "data" / "data.mdb"
    content = bytearray(file.read_bytes())
    older, newer = sorted((0, 4096), key=lambda at: content[at + 144 : at + 152])
    for page, is_sound in ((newer, False), (older, True)):
        torn = bytearray(content)
        torn[page + 48] ^= 1
        file.write_bytes(torn)
        with nullcontext() if is_sound else pytest.raises(StoreCorruptedError):
            import_offsets(path, StoreConfig("lmdb"), {partition: 7}, {}, must_be_clean=True)
    with open_store("lmdb", path) as imported:
        assert imported.committed_offset(partition) == 7
        assert imported.get(b"key") == b"value"
