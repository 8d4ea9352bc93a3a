"""Damage that only a reader finds is noted beside the store, and the next opening of the task restores it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import StoreCorruptedError
from stores.files.creation import DAMAGE_FILE
from stores.tests.tasks.setup import counting_task, expected_state, state, store_folder
from stores.tests.tasks.stores.test_verification import CHECKED, KEYS, closed, damage

Read = Callable[[Any], object]


def scan(view: Any) -> object:
    with view.all() as pairs:
        return list(pairs)


def scan_snapshot(view: Any) -> object:
    with view.snapshot() as snapshot:
        return scan(snapshot)


def get_from_snapshot(view: Any) -> object:
    with view.snapshot() as snapshot:
        return snapshot.get(b"7")


READS: dict[str, Read] = {
    "get": lambda view: view.get(b"7"),
    "get_many": lambda view: view.get_many([b"7"]),
    "scan": scan,
    "snapshot": get_from_snapshot,
    "scan of a snapshot": scan_snapshot,
}


def note(folder: Path, backend: str) -> Path:
    return store_folder(folder, backend) / DAMAGE_FILE


def reopened(folder: Path, log: MemoryChangelog, backend: str) -> list[bool]:
    """Open the task; return which of its stores were wiped."""
    task = counting_task(folder, log, backend)
    wiped = [report.wiped for report in task.open()]
    assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    task.close()
    return wiped


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize("backend", CHECKED)
def test_damage_that_a_view_finds_is_restored_by_the_next_opening(
    tmp_path: Path, log: MemoryChangelog, backend: str, read: Read
) -> None:
    closed(tmp_path, log, backend)
    damage(tmp_path, backend)
    task = counting_task(tmp_path, log, backend)
    assert [report.wiped for report in task.open()] == [False, False]
    with pytest.raises(StoreCorruptedError):
        read(task.store("left"))
    assert note(tmp_path, backend).exists()
    task.close(clean=False)
    assert reopened(tmp_path, log, backend) == [True, False]
    assert not note(tmp_path, backend).exists()
    assert reopened(tmp_path, log, backend) == [False, False]


@pytest.mark.parametrize("backend", CHECKED)
def test_a_note_beside_a_sound_store_is_removed_and_the_store_is_kept(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    closed(tmp_path, log, backend)
    note(tmp_path, backend).write_text("a reader was wrong\n")
    assert reopened(tmp_path, log, backend) == [False, False]
    assert not note(tmp_path, backend).exists()
