"""How a task is named and set up: its id, its topics, and what is refused before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.tasks import StreamTask, TaskId
from stores.tests.tasks.setup import (
    MEMORY,
    count,
    single,
)


def test_the_changelogs_have_as_many_partitions_as_the_inputs(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("wide", 5)
    tasks = [single(tmp_path, log, count, inputs=[TopicPartition("wide", 3)])]
    tasks += [
        StreamTask(
            "app",
            TaskId(0, 4),
            state_dir=tmp_path,
            changelog=log,
            stores={"s": StoreConfig(MEMORY)},
            process=count,
            inputs=[TopicPartition("wide", 4)],
        )
    ]
    for task in tasks:
        task.open()
    assert log.topics()["app-s-changelog"] == 5
    for task in tasks:
        task.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"stores": {"../s": StoreConfig(MEMORY)}},
        {"stores": {"": StoreConfig(MEMORY)}},
        {"stores": {".checkpoint": StoreConfig(MEMORY)}},
        {"commit_every_records": 0},
        {"state_dir": "nul\0"},
        {"guarantee": "at_most_once"},
    ],
)
def test_settings_that_do_not_fit_are_refused_and_nothing_is_made(
    tmp_path: Path, log: MemoryChangelog, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        single(tmp_path, log, count, **settings)
    assert list(tmp_path.iterdir()) == []


def test_opening_an_open_task_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    task = single(tmp_path, log, count)
    task.open()
    with pytest.raises(StoreError):
        task.open()
    task.close()


def test_a_task_id_is_written_and_read_as_two_numbers() -> None:
    assert str(TaskId(0, 12)) == "0_12"
    assert TaskId.parse("0_12") == TaskId(0, 12)
    for text in ("", "0", "0_", "0_1_2", "a_1", "0_01", "-1_0"):
        with pytest.raises(ValueError):
            TaskId.parse(text)


def test_a_store_s_settings_are_a_configuration(tmp_path: Path, log: MemoryChangelog) -> None:
    with pytest.raises(TypeError):
        single(tmp_path, log, count, stores={"s": "memory-indexed-batch"})


def test_a_state_folder_that_can_t_be_made_is_told(tmp_path: Path, log: MemoryChangelog) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(StoreUnavailableError):
        single(tmp_path, log, count, state_dir=tmp_path / "a file").open()
