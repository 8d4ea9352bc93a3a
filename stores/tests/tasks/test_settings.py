"""The names and settings of a task: its ID, its topics, and refusals before anything is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.tasks import StateDirectory, StreamTask, TaskId
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
        {"stores": {"s": StoreConfig(MEMORY), "s.position": StoreConfig(MEMORY)}},
        {"stores": {"s.position": StoreConfig(MEMORY)}},
        {"stores": {"s.Position.new": StoreConfig(MEMORY)}},
        {"stores": {"S": StoreConfig(MEMORY), "s": StoreConfig(MEMORY)}},
        {"stores": {"s.s": StoreConfig(MEMORY), "s_s": StoreConfig(MEMORY)}},
        {"stores": {"s" * 101: StoreConfig(MEMORY)}},
        {"inputs": [TopicPartition("", 0)]},
        {"inputs": [TopicPartition("two words", 0)]},
        {"inputs": [TopicPartition("..", 0)]},
        {"inputs": [TopicPartition("t" * 250, 0)]},
        {"inputs": [TopicPartition("input", -1)]},
        {"inputs": [TopicPartition("input", 2**31)]},
        {"inputs": [TopicPartition("input", 0), TopicPartition("input", 0)]},
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


@pytest.mark.parametrize(
    "settings",
    [
        {"stores": {5: StoreConfig(MEMORY)}},
        {"inputs": [TopicPartition("input", True)]},
        {"inputs": [TopicPartition("input", 0.0)]},  # type: ignore[arg-type]
        {"inputs": [TopicPartition(b"input", 0)]},  # type: ignore[arg-type]
        {"commit_every_records": True},
        {"commit_every_records": 1.5},
    ],
)
def test_settings_of_another_type_are_refused_and_nothing_is_made(
    tmp_path: Path, log: MemoryChangelog, settings: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        single(tmp_path, log, count, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("application", ["", "../x", ".x", "a b", "x" * 101, "ü"])
def test_an_application_s_id_is_part_of_topics_and_groups(
    tmp_path: Path, log: MemoryChangelog, application: str
) -> None:
    with pytest.raises(ConfigError):
        StreamTask(application, TaskId(0, 0), state_dir=tmp_path, changelog=log, stores={}, process=count, inputs=[])


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        (("../../x", 0), TypeError),
        ((0, "1"), TypeError),
        ((True, 0), TypeError),
        ((0, 0.0), TypeError),
        ((-1, 0), ConfigError),
        ((0, -1), ConfigError),
        ((0, 2**31), ConfigError),
        ((10**30, 0), ConfigError),
    ],
)
def test_a_task_id_is_checked_where_it_is_made(
    tmp_path: Path, numbers: tuple[Any, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        TaskId(*numbers)
    pair: Any = numbers
    with pytest.raises(TypeError):
        StateDirectory(tmp_path / "state").lock(pair, "somebody")
    assert list(tmp_path.iterdir()) == []


def test_every_task_id_has_a_folder_that_is_listed(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    ids = [TaskId(0, 0), TaskId(2**31 - 1, 7)]
    for task_id in ids:
        directory.lock(task_id, "somebody").release()
    for foreign in ("0_2147483648", "0_99999999999999999999", "00_1"):
        (tmp_path / foreign).mkdir()
    assert directory.tasks() == ids


def test_opening_an_open_task_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    task = single(tmp_path, log, count)
    task.open()
    with pytest.raises(StoreError):
        task.open()
    task.close()


def test_a_task_id_is_written_and_read_as_two_numbers() -> None:
    assert str(TaskId(0, 12)) == "0_12"
    assert TaskId.parse("0_12") == TaskId(0, 12)
    for text in ("0_2147483648", "9" * 5_000 + "_0", "", "0", "0_", "0_1_2", "a_1", "0_01", "-1_0"):
        with pytest.raises(ValueError):
            TaskId.parse(text)
    with pytest.raises(TypeError, match="task ID"):
        TaskId.parse(None)  # type: ignore[arg-type]


def test_a_store_s_settings_are_a_configuration(tmp_path: Path, log: MemoryChangelog) -> None:
    with pytest.raises(TypeError):
        single(tmp_path, log, count, stores={"s": 1})


def test_a_state_folder_that_can_t_be_made_is_reported(tmp_path: Path, log: MemoryChangelog) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(StoreUnavailableError):
        single(tmp_path, log, count, state_dir=tmp_path / "a file").open()
