"""Tasks in one transaction over the embedded logs: they commit together, and roll back together. Source: KIP-447."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog import Changelog, MemoryChangelog, Record, SqliteChangelog
from stores.changelog.producer import EmbeddedSharedProducer
from stores.errors import (
    ChangelogTimeoutError,
    CommitInDoubtError,
    ConfigError,
    ProducerFencedError,
    StoreError,
    TransactionAbortedError,
)
from stores.interface import Durability, TopicPartition
from stores.tasks import StreamTask, TaskContext, ThreadTransaction
from stores.tasks.context import ProcessFunction
from stores.tests.tasks import sharing
from stores.tests.tasks.setup import AT_LEAST_ONCE, Crash, crash, crashing_at
from stores.tests.tasks.sharing import (
    INPUTS,
    KEYS,
    check_exactly_once,
    feed_both,
    offsets,
    read_outputs,
    sharing_task,
    sharing_tasks,
    state,
    work_on,
)


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Changelog]:
    producer = (
        MemoryChangelog() if request.param == "memory" else SqliteChangelog(tmp_path / "log.sqlite", Durability.PROCESS)
    )
    with producer as changelog:
        feed_both(changelog)
        yield changelog
    failpoints.disarm()


def close_all(tasks: list[StreamTask], *, clean: bool = True) -> None:
    for task in tasks:
        task.close(clean)


def test_a_commit_of_one_task_commits_all_in_one_transaction(tmp_path: Path, log: Changelog) -> None:
    first, second = tasks = sharing_tasks(tmp_path, log)
    first.run(2)
    second.run(3)
    assert read_outputs(log) == [[], []]
    commits: list[str] = []
    failpoints.arm("changelog.after_commit", lambda: commits.append("log"))
    first.commit()
    assert commits == ["log"]
    assert log.committed_offsets("app") == {INPUTS[0]: 2, INPUTS[1]: 3}
    assert [len(outputs) for outputs in read_outputs(log)] == [2, 3]
    assert [state(task) for task in tasks] == [sharing.expected(KEYS[0][:2])[1], sharing.expected(KEYS[1][:3])[1]]
    assert [task.metrics.process_total for task in tasks] == [2, 3]
    assert [task.metrics.commit_total for task in tasks] == [1, 1]
    second.commit()
    assert commits == ["log"]  # There was nothing left.
    close_all(tasks)
    check_exactly_once(tmp_path, log)


def test_a_task_without_records_takes_no_part_in_a_commit(tmp_path: Path, log: Changelog) -> None:
    first, second = tasks = sharing_tasks(tmp_path, log)
    first.run(2)
    first.commit()
    assert log.committed_offsets("app") == {INPUTS[0]: 2}
    assert second.metrics.commit_total == 0
    close_all(tasks)


def failing_at(poisoned: set[tuple[TopicPartition, int]]) -> ProcessFunction:
    def process(record: Record, context: TaskContext) -> None:
        sharing.count(record, context)
        if (context.partition, record.offset) in poisoned:
            raise Crash

    return process


def test_an_exception_in_one_task_rolls_back_the_others_and_all_records_come_out_once(
    tmp_path: Path, log: Changelog
) -> None:
    poisoned = {(INPUTS[1], 2)}
    first, second = tasks = sharing_tasks(tmp_path, log, process=failing_at(poisoned))
    first.run(1)
    second.run(1)
    first.commit()
    first.run(3)
    with pytest.raises(Crash):
        second.run()
    poisoned.clear()
    assert read_outputs(log) == [sharing.expected(KEYS[0][:1])[0], sharing.expected(KEYS[1][:1])[0]]
    assert first.metrics.rollback_records_total == 3
    first.run(0)  # It continues by itself.
    assert offsets(tasks) == [1, 1]
    assert [state(task) for task in tasks] == [sharing.expected(KEYS[0][:1])[1], sharing.expected(KEYS[1][:1])[1]]
    work_on(tasks)
    check_exactly_once(tmp_path, log)


def test_a_caller_that_passes_records_gets_one_error_after_the_failure_of_another_task(
    tmp_path: Path, log: Changelog
) -> None:
    first, second = tasks = sharing_tasks(tmp_path, log, process=failing_at({(INPUTS[1], 0)}))
    [given, following] = list(log.read(INPUTS[0]))[:2]
    first.process(INPUTS[0], given)
    with pytest.raises(Crash):
        second.run()
    with pytest.raises(TransactionAbortedError):
        first.process(INPUTS[0], following)
    assert first.input_offsets() == {INPUTS[0]: 0}
    first.process(INPUTS[0], given)
    first.commit()
    close_all(tasks)
    assert log.committed_offsets("app") == {INPUTS[0]: 1}


@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [("task.before_log_commit", 0), ("changelog.before_commit", 0), ("changelog.after_commit", 2)],
)
def test_an_error_in_the_changelogs_commit_leaves_all_tasks_at_what_the_changelog_has(
    tmp_path: Path, log: Changelog, failpoint: str, committed: int
) -> None:
    first, second = tasks = sharing_tasks(tmp_path, log)
    first.run(2)
    second.run(2)
    with crashing_at(failpoint):
        second.commit()
    first.run(0)
    assert offsets(tasks) == [committed, committed]
    assert [len(outputs) for outputs in read_outputs(log)] == [committed, committed]
    assert [task.metrics.process_total for task in tasks] == [committed, committed]
    work_on(tasks)
    check_exactly_once(tmp_path, log)


def test_a_task_whose_stores_fail_after_the_changelogs_commit_replays_it_and_the_others_go_on(
    tmp_path: Path, log: Changelog
) -> None:
    first, second = sharing_tasks(tmp_path, log)
    first.run(2)
    second.run(2)
    failpoints.arm("task.between_tasks", crash)
    first.commit()
    failpoints.disarm()
    with pytest.raises(StoreError):
        second.run()
    first.run()
    first.commit()
    second.close()
    assert [report.records for report in second.open()] == [2]
    work_on([first, second])
    check_exactly_once(tmp_path, log)


def test_a_task_that_another_instance_owns_closes_and_the_others_go_on(tmp_path: Path, log: Changelog) -> None:
    """The zombie's other task loses nothing but time. Source: KIP-98, zombie fencing."""
    first, second = sharing_tasks(tmp_path / "zombie", log)
    first.run(2)
    second.run(3)
    successor = sharing_task(tmp_path / "successor", log, 1, ThreadTransaction(log, "app/two/1"))
    successor.open()
    successor.run()
    successor.commit()
    with pytest.raises(TransactionAbortedError):
        first.commit()
    assert log.committed_offsets("app") == {INPUTS[1]: len(KEYS[1])}
    with pytest.raises(ProducerFencedError):
        second.run()
    successor.close()
    first.run()
    first.close()
    assert read_outputs(log) == [sharing.expected(keys)[0] for keys in KEYS]


def test_an_instance_with_a_transaction_of_its_own_is_fenced_as_well(tmp_path: Path, log: Changelog) -> None:
    """As after a change of the configuration."""
    old = sharing_task(tmp_path / "old", log, 0, None)
    old.open()
    old.run(2)
    tasks = sharing_tasks(tmp_path / "new", log)
    work_on(tasks)
    with pytest.raises(ProducerFencedError):
        old.commit()
    check_exactly_once(tmp_path / "new", log)


def test_a_task_that_is_closed_commits_the_others_with_it(tmp_path: Path, log: Changelog) -> None:
    first, second = sharing_tasks(tmp_path, log)
    first.run(2)
    second.run(2)
    first.close()
    assert log.committed_offsets("app") == {INPUTS[0]: 2, INPUTS[1]: 2}
    second.run()
    second.close()
    check_exactly_once(tmp_path, log)


@pytest.mark.usefixtures("_spilling")
def test_a_task_that_is_closed_without_a_commit_rolls_back_the_others(tmp_path: Path, log: Changelog) -> None:
    """Its records are in the same transaction, and must not be committed with theirs."""
    first, second = sharing_tasks(tmp_path, log)
    first.run(4)
    second.run(4)
    first.close(clean=False)
    second.run()
    second.close()
    assert [len(outputs) for outputs in read_outputs(log)] == [0, len(KEYS[1])]
    check_exactly_once(tmp_path, log)


@pytest.fixture
def _spilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions reach the log long before they are committed."""
    monkeypatch.setattr("stores.changelog.producer.PENDING_RECORDS_MAX", 2)


def test_opening_a_task_commits_those_that_are_open(tmp_path: Path, log: Changelog) -> None:
    """A restore may take longer than a transaction may."""
    transaction = ThreadTransaction(log, "app/one/1")
    first, second = (sharing_task(tmp_path, log, number, transaction) for number in (0, 1))
    first.open()
    first.run(2)
    second.open()
    assert log.committed_offsets("app") == {INPUTS[0]: 2}
    close_all([first, second])


def test_an_automatic_commit_of_one_task_commits_all(tmp_path: Path, log: Changelog) -> None:
    first, second = tasks = sharing_tasks(tmp_path, log, commit_every_records=4)
    first.run(3)
    second.run(4)
    assert log.committed_offsets("app") == {INPUTS[0]: 3, INPUTS[1]: 4}
    close_all(tasks)


@pytest.mark.usefixtures("_spilling")
def test_a_changelog_that_does_not_answer_to_the_rollback_is_asked_again(tmp_path: Path, log: Changelog) -> None:
    tasks = sharing_tasks(tmp_path, log, task_timeout_s=0)
    for task in tasks:
        task.run(4)

    def silent(*_: object) -> Mapping[TopicPartition, int]:
        raise ChangelogTimeoutError("silent")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedSharedProducer, "commit", silent)
        patch.setattr(EmbeddedSharedProducer, "abort", silent)
        for call in (tasks[0].commit, tasks[0].run, tasks[1].run, tasks[1].input_offsets):
            with pytest.raises(ChangelogTimeoutError):
                call()
    work_on(tasks)
    check_exactly_once(tmp_path, log)


@pytest.mark.parametrize("took", [False, True])
def test_a_commit_in_doubt_is_decided_by_the_log(tmp_path: Path, log: Changelog, took: bool) -> None:
    tasks = sharing_tasks(tmp_path, log)
    for task in tasks:
        task.run(2)
    commit = EmbeddedSharedProducer.commit

    def doubtful(producer: EmbeddedSharedProducer) -> Mapping[TopicPartition, int]:
        if took:
            commit(producer)
        raise CommitInDoubtError("the connection broke")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedSharedProducer, "commit", doubtful)
        with pytest.raises(CommitInDoubtError):
            tasks[0].commit()
    tasks[1].run(0)
    assert offsets(tasks) == [2 * took, 2 * took]
    work_on(tasks)
    check_exactly_once(tmp_path, log)


def test_a_commit_inside_of_another_tasks_function_is_refused(tmp_path: Path, log: Changelog) -> None:
    """It would separate the writes of the record from its input offset."""
    tasks: list[StreamTask] = []

    def process(record: Record, context: TaskContext) -> None:
        sharing.count(record, context)
        if context.partition == INPUTS[0] and record.offset == 1:
            tasks[1].commit()

    tasks += sharing_tasks(tmp_path, log, process=process)
    tasks[1].run(1)
    with pytest.raises(StoreError):
        tasks[0].run()
    assert log.committed_offsets("app") == {}
    close_all(tasks, clean=False)


def test_without_exactly_once_there_is_no_transaction_to_share(tmp_path: Path, log: Changelog) -> None:
    transaction = ThreadTransaction(log, "app/one/1")
    with pytest.raises(ConfigError):
        sharing_task(tmp_path, log, 0, transaction, guarantee=AT_LEAST_ONCE)
    with pytest.raises(TypeError):
        sharing_task(tmp_path, log, 0, "transaction")  # type: ignore[arg-type]
