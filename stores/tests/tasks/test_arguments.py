"""The arguments of a task: a wrong one is refused when the task is created, by its name and with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores import TopicPartition
from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.tasks import MemoryBudget, StreamTask, TaskContext, TaskId
from stores.tests.tasks.setup import INPUT, feed, stream_task


def process(record: Record, context: TaskContext) -> None:
    context.store("s").put(record.key, record.value)


def task_of(tmp_path: Path, log: Any, **changes: Any) -> StreamTask:
    arguments: dict[str, Any] = {
        "state_dir": tmp_path / "state",
        "changelog": log,
        "stores": {"s": StoreConfig("memory")},
        "process": process,
        "inputs": [INPUT],
    }
    task_id = changes.pop("task_id", TaskId(0, 0))
    return stream_task(task_id, **{**arguments, **changes})


class Counted:
    """A process function as a method, and a callable object."""

    def method(self, record: Record, context: TaskContext, unused: int = 0) -> None: ...

    def __call__(self, record: Record, context: TaskContext) -> None: ...


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("task_id", (0, 0), "TaskId(0, 3)"),
        ("task_id", "0_0", "TaskId.parse('0_3')"),
        ("inputs", "topic", "[TopicPartition('topic', 0)]"),
        ("inputs", INPUT, "[TopicPartition('topic', 0)]"),
        ("inputs", ["topic"], "TopicPartition('topic', 0)"),
        ("inputs", [("topic", 0, 1)], "TopicPartition('topic', 0)"),
        ("inputs", [("topic", "0")], "a partition is an int"),
        ("changelog", "log.db", "SqliteChangelog(path)"),
        ("changelog", None, "not NoneType"),
        ("process", None, "process is a function of the record and the context, not NoneType"),
        ("process", lambda record: None, "process is a function of the record and the context"),
        ("process", lambda record, context, more: None, "process is a function of the record and the context"),
        ("init", lambda: None, "init is a function of the context"),
        ("init", 5, "init is a function of the context, not int"),
        ("on_restore", lambda: None, "on_restore is a function of the progress"),
        ("commit_interval_ms", "10", "commit_interval_ms is an int"),
        ("commit_every_records", "10", "commit_every_records is an int"),
        ("memory", MemoryBudget(1_000_000), "MemoryBudget.share()"),
        ("clock", 3, "clock is an object with the methods of Clock; int lacks monotonic_ns()"),
        ("verify_stores", "no", "verify_stores is True or False"),
        ("state_dir", None, "a path is a str or an os.PathLike of one, not NoneType"),
        ("stores", "s", "a mapping of names to declarations"),
        (
            "stores",
            {"s": 3},
            "a StoreConfig, the name of a backend, or None for bytes, not by int",
        ),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_made(
    tmp_path: Path, name: str, wrong: object, said: str
) -> None:
    with pytest.raises(TypeError) as error:
        task_of(tmp_path, MemoryChangelog(), **{name: wrong})
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", [process, Counted(), Counted().method, lambda *arguments: None, print])
def test_any_callable_that_takes_a_record_and_a_context_is_a_function(tmp_path: Path, function: Any) -> None:
    task_of(tmp_path, MemoryChangelog(), process=function)


def test_a_with_block_opens_the_task_and_closes_it_with_a_commit(tmp_path: Path) -> None:
    log = MemoryChangelog()
    feed(log, [1, 2])
    with task_of(tmp_path, log) as task:
        assert "app 0_0, running, changelogs: app-s-changelog" in repr(task)
        assert task.run() == 2
        assert [report.store for report in task.restore_reports()] == ["s"]
    assert log.committed_offsets("app") == {INPUT: 2}
    assert "closed" in repr(task)


def test_a_with_block_that_an_exception_leaves_commits_nothing_more(tmp_path: Path) -> None:
    log = MemoryChangelog()
    feed(log, [1, 2])
    with pytest.raises(KeyError), task_of(tmp_path, log) as task:
        task.run(1, commit=True)
        task.run()
        raise KeyError
    assert log.committed_offsets("app") == {INPUT: 1}


def test_an_input_may_be_a_plain_tuple_of_topic_and_partition(tmp_path: Path) -> None:
    log = MemoryChangelog()
    feed(log, [1])
    with task_of(tmp_path, log, inputs=(("input", 0),)) as task:
        assert set(task.input_offsets()) == {TopicPartition("input", 0)}
