"""A task that verifies its stores restores what nobody has come upon yet; one that does not, when its function does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.errors import StoreCorruptedError
from stores.registry import backend_named, backends
from stores.tasks import TaskContext
from stores.tests.tasks.setup import (
    DIRECT,
    checkpoint,
    count,
    counting_task,
    expected_state,
    feed,
    state,
    store_folder,
)

PERSISTENT = [name for name, backend in backends().items() if backend.persistent]
CHECKED = [name for name in PERSISTENT if "checksums" in backend_named(name).options]
KEYS = list(range(40))


def closed(folder: Path, log: MemoryChangelog, backend: str) -> None:
    feed(log, KEYS)
    task = counting_task(folder, log, backend)
    task.open()
    task.run()
    task.close()


def damage(folder: Path, backend: str) -> None:
    """Change the record of key 7 in the file that has it."""
    files = [file for file in (store_folder(folder, backend) / "data").iterdir() if file.is_file()]
    changed = 0
    for file in files:
        content = file.read_bytes()
        # Behind the key is the count, 1, and then whatever the engine keeps with it.
        for form in (b"71", b"7\x011"):
            at = content.find(form)
            while at >= 0:
                changed += 1
                content = content[: at + len(form) - 1] + b"2" + content[at + len(form) :]
                at = content.find(form)
        file.write_bytes(content)
    assert changed


def verified(folder: Path, log: MemoryChangelog, backend: str) -> list[bool]:
    task = counting_task(folder, log, backend, verify_stores=True)
    wipes = [report.wiped for report in task.open()]
    assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    task.close()
    return wipes


@pytest.mark.parametrize("backend", PERSISTENT)
def test_sound_stores_are_verified_and_kept(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    closed(tmp_path, log, backend)
    assert verified(tmp_path, log, backend) == [False, False]


@pytest.mark.parametrize("backend", CHECKED)
def test_a_damaged_store_is_restored_where_the_task_verifies_it(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    closed(tmp_path, log, backend)
    damage(tmp_path, backend)
    assert verified(tmp_path, log, backend) == [True, False]
    assert verified(tmp_path, log, backend) == [False, False]


def look_up(record: Record, context: TaskContext) -> None:
    context.store("left").get(b"7")
    count(record, context)


def verify(record: Record, context: TaskContext) -> None:
    context.store("left").verify()
    count(record, context)


@pytest.mark.parametrize("function", [look_up, verify])
@pytest.mark.parametrize("backend", CHECKED)
def test_else_it_is_restored_when_the_function_comes_upon_it(
    tmp_path: Path, log: MemoryChangelog, backend: str, function: Callable[[Record, TaskContext], None]
) -> None:
    closed(tmp_path, log, backend)
    damage(tmp_path, backend)
    task = counting_task(tmp_path, log, backend, process=function)
    assert [report.wiped for report in task.open()] == [False, False]
    feed(log, [7])
    with pytest.raises(StoreCorruptedError):
        task.run()
    assert sum(report.wiped for report in task.restore_reports()) == 1
    task.run()
    assert state(task, "left") == state(task, "right") == expected_state([*KEYS, 7])
    task.close()


def test_a_checkpoint_with_a_flipped_bit_counts_for_nothing(tmp_path: Path, log: MemoryChangelog) -> None:
    """It would have the store skip records, or take some twice."""
    closed(tmp_path, log, DIRECT)
    file = checkpoint(tmp_path).path
    content = file.read_text()
    assert " 0 39" in content
    file.write_text(content.replace(" 0 39", " 0 37", 1))
    task = counting_task(tmp_path, log, DIRECT)
    assert [report.wiped for report in task.open()] == [True, True]
    assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    task.close()
