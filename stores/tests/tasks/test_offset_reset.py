"""An input that no longer has the next record of its task, or of which there is no committed offset.

Source: Kafka, ``auto.offset.reset``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.changelog.kafka import KafkaChangelog
from stores.errors import ConfigError, OffsetOutOfRangeError
from stores.interface import TopicPartition
from stores.tasks import ProcessingGuarantee, StreamTask, TaskConfig
from stores.tasks.offset_reset import OffsetReset
from stores.tests.kafka.fresh import DEADLINE_S, fresh_changelog
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    TASK,
    Crash,
    counting_task,
    expected_state,
    feed,
    over_each_changelog,
    raising_at,
    state,
)

KEYS = list(range(10))
GUARANTEES = (EXACTLY_ONCE, AT_LEAST_ONCE)


def resetting(folder: Path, log: Changelog, reset: str | None, **settings: object) -> StreamTask:
    return counting_task(folder, log, INDEXED, auto_offset_reset=reset, **settings)  # type: ignore[arg-type]


def send(log: Changelog, keys: Iterable[int]) -> None:
    with log.producer() as producer:
        producer.send_all(INPUT, [(b"%d" % key, b"x", key) for key in keys])
        producer.flush()


def truncated_beyond_the_task(folder: Path, log: Changelog, guarantee: ProcessingGuarantee = EXACTLY_ONCE) -> None:
    """Process the records 0 and 1 of ten, and remove the records before 5."""
    feed(log, KEYS)
    with resetting(folder, log, None, guarantee=guarantee) as task:
        task.run(2, commit=True)
    log.truncate(INPUT, 5)


@over_each_changelog
@pytest.mark.parametrize("reset", [None, "none"])
def test_an_offset_that_is_gone_is_an_error_with_the_offsets_and_the_setting(
    tmp_path: Path, log: Changelog, reset: str | None
) -> None:
    truncated_beyond_the_task(tmp_path, log)
    task = resetting(tmp_path, log, reset)
    task.open()
    with pytest.raises(OffsetOutOfRangeError) as error:
        task.run(commit=True)
    text = str(error.value)
    assert all(part in text for part in ("input-0", " 5 ", " 10", "not 2", "3 records", "auto.offset.reset"))
    assert state(task, "left") == expected_state([0, 1])
    task.close(clean=False)


@over_each_changelog
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(("reset", "processed"), [("earliest", KEYS[5:]), ("latest", [])])
def test_a_task_continues_where_the_setting_says_and_commits_that(
    tmp_path: Path,
    log: Changelog,
    reset: str,
    processed: list[int],
    guarantee: ProcessingGuarantee,
    caplog: pytest.LogCaptureFixture,
) -> None:
    truncated_beyond_the_task(tmp_path, log, guarantee)
    with caplog.at_level(logging.WARNING), resetting(tmp_path, log, reset, guarantee=guarantee) as task:
        assert task.run(commit=True) == len(processed)
        assert state(task, "left") == expected_state([0, 1, *processed])
    assert "3 records" in caplog.text
    assert log.committed_offsets("app", [INPUT]) == {INPUT: 10}
    send(log, [7])
    with resetting(tmp_path, log, None, guarantee=guarantee) as task:
        assert task.run(commit=True) == 1
        assert state(task, "left") == expected_state([0, 1, *processed, 7])


@over_each_changelog
def test_input_truncated_while_the_task_runs_is_skipped_to_the_reset_offset(tmp_path: Path, log: Changelog) -> None:
    feed(log, KEYS)
    with resetting(tmp_path, log, "earliest") as task:
        assert task.run(2) == 2
        log.truncate(INPUT, 5)
        assert task.run(commit=True) == 5
        assert state(task, "left") == expected_state([0, 1, *KEYS[5:]])


@over_each_changelog
def test_the_end_that_was_chosen_stays_after_a_rollback_until_it_is_committed(tmp_path: Path, log: Changelog) -> None:
    truncated_beyond_the_task(tmp_path, log)
    task = resetting(tmp_path, log, "latest", process=raising_at({12}))
    task.open()
    task.run()
    send(log, [10, 11, 12])
    with pytest.raises(Crash):
        task.run()
    assert task.input_offsets() == {INPUT: 10}
    assert task.run(2, commit=True) == 2
    assert state(task, "left") == expected_state([0, 1, 10, 11])
    # The second rollback from the same commit must not return to the offset that was chosen before it.
    for _ in range(2):
        with pytest.raises(Crash):
            task.run()
        assert task.input_offsets() == {INPUT: 12}
    task.close(clean=False)


@over_each_changelog
def test_the_end_that_was_chosen_stays_after_a_rollback_also_where_the_task_has_committed_before(
    tmp_path: Path, log: Changelog
) -> None:
    feed(log, KEYS)
    task = resetting(tmp_path, log, "latest", process=raising_at({11}))
    with log.producer("other") as producer:
        producer.begin()
        producer.send_offsets("app", {INPUT: 0})
        producer.commit()
    task.open()
    assert task.run(2, commit=True) == 2
    log.truncate(INPUT, 5)
    task.run()
    send(log, [10, 11])
    with pytest.raises(Crash):
        task.run()
    assert task.input_offsets() == {INPUT: 10}
    task.close(clean=False)


@over_each_changelog
@pytest.mark.parametrize(("reset", "start"), [(None, 5), ("earliest", 5), ("latest", 10)])
def test_an_input_without_a_committed_offset_begins_where_the_setting_says(
    tmp_path: Path, log: Changelog, reset: str | None, start: int
) -> None:
    feed(log, KEYS)
    log.truncate(INPUT, 5)
    with resetting(tmp_path, log, reset) as task:
        assert task.input_offsets() == {INPUT: start}
        send(log, [3])
        assert task.run(commit=True) == 11 - start


@over_each_changelog
def test_a_start_at_the_end_is_committed_although_nothing_was_processed(tmp_path: Path, log: Changelog) -> None:
    feed(log, KEYS)
    with resetting(tmp_path, log, "latest") as task:
        task.run(commit=True)
        assert log.committed_offsets("app", [INPUT]) == {INPUT: 10}


def test_an_input_without_a_committed_offset_is_an_error_by_none(tmp_path: Path, log: Changelog) -> None:
    feed(log, KEYS)
    with pytest.raises(OffsetOutOfRangeError) as error:
        resetting(tmp_path, log, "none").open()
    assert "input-0" in str(error.value)
    with resetting(tmp_path, log, None) as task:
        task.run(2, commit=True)
    with resetting(tmp_path, log, "none") as task:
        assert task.run() == 8


def test_a_topic_that_was_replaced_by_a_shorter_one_follows_the_setting(tmp_path: Path, log: Changelog) -> None:
    feed(log, KEYS[:3])
    with log.producer("other") as producer:
        producer.begin()
        producer.send_offsets("app", {INPUT: 3})
        producer.commit()
    with resetting(tmp_path, log, None) as task:
        task.run(commit=True)
    with log.producer("other") as producer:
        producer.begin()
        producer.send_offsets("app", {INPUT: 8})
        producer.commit()
    with pytest.raises(OffsetOutOfRangeError), resetting(tmp_path / "new", log, None) as task:
        task.run()
    with resetting(tmp_path / "new", log, "earliest") as task:
        assert task.run(commit=True) == 3


def forget_offsets(log: Changelog) -> None:
    """Let the log forget the offsets of the group, as brokers do with those of a group without members."""
    if isinstance(log, MemoryChangelog):
        del log._groups["app"]
    elif isinstance(log, SqliteChangelog):
        with log._file.write() as writer:
            writer.execute("delete from group_offset where consumer_group = 'app'")
    else:
        admin = admin_of(log)
        admin.delete_consumer_groups(["app"])["app"].result(DEADLINE_S)


def admin_of(log: Changelog) -> AdminClient:
    assert isinstance(log, KafkaChangelog)
    return AdminClient({"bootstrap.servers": log._cluster.settings.servers})


@over_each_changelog
@pytest.mark.parametrize("backend", [INDEXED, "rocksdb-dual-store", "lmdb-native", "sqlite-indexed-batch"])
@pytest.mark.parametrize("reset", [None, "none"])
def test_a_task_whose_committed_offset_was_forgotten_does_not_process_its_input_again(
    tmp_path: Path, log: Changelog, backend: str, reset: str | None
) -> None:
    feed(log, KEYS)
    with counting_task(tmp_path, log, backend) as task:
        task.run(4, commit=True)
    forget_offsets(log)
    with pytest.raises(OffsetOutOfRangeError) as error:
        counting_task(tmp_path, log, backend, auto_offset_reset=reset).open()
    assert all(part in str(error.value) for part in ("input-0", "offset 3", "0 to 10", "auto.offset.reset"))
    with counting_task(tmp_path, log, backend, auto_offset_reset="latest") as task:
        assert state(task, "left") == expected_state(KEYS[:4])


@over_each_changelog
@pytest.mark.parametrize(("reset", "processed"), [("earliest", KEYS), ("latest", [])])
def test_a_task_whose_committed_offset_was_forgotten_continues_where_the_setting_says(
    tmp_path: Path, log: Changelog, reset: str, processed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    feed(log, KEYS)
    with resetting(tmp_path, log, None) as task:
        task.run(4, commit=True)
    forget_offsets(log)
    with caplog.at_level(logging.WARNING), resetting(tmp_path, log, reset) as task:
        assert task.run(commit=True) == len(processed)
        assert state(task, "left") == expected_state([*KEYS[:4], *processed])
    assert "offset 3" in caplog.text
    assert log.committed_offsets("app", [INPUT]) == {INPUT: 10}
    with resetting(tmp_path, log, None) as task:
        assert task.run() == 0


@over_each_changelog
def test_the_start_that_was_chosen_is_committed_and_stays_after_a_rollback(tmp_path: Path, log: Changelog) -> None:
    feed(log, KEYS)
    with resetting(tmp_path, log, None) as task:
        task.run(4, commit=True)
    forget_offsets(log)
    log.truncate(INPUT, 2)
    task = resetting(tmp_path, log, "earliest", process=raising_at({5}))
    task.open()
    for _ in range(2):
        with pytest.raises(Crash):
            task.run()
        assert task.input_offsets() == {INPUT: 2}
    task.close()
    with resetting(tmp_path, log, None) as task:
        assert task.input_offsets() == {INPUT: 2}


@over_each_changelog
def test_at_least_once_a_store_may_have_processed_input_without_a_committed_offset(
    tmp_path: Path, log: Changelog
) -> None:
    """As after a kill between the commit of the store and that of the offset: the input comes again."""
    feed(log, KEYS)
    with resetting(tmp_path, log, None, guarantee=AT_LEAST_ONCE) as task:
        task.run(4, commit=True)
    forget_offsets(log)
    with resetting(tmp_path, log, None, guarantee=AT_LEAST_ONCE) as task:
        assert task.run(commit=True) == len(KEYS)


def test_an_input_that_is_new_to_the_task_begins_at_its_first_offset(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, KEYS)
    with resetting(tmp_path, log, None) as task:
        task.run(commit=True)
    new = TopicPartition("new", 0)
    log.create_topic("new")
    with log.producer() as producer:
        producer.send(new, b"1", b"x")
        producer.flush()
    with resetting(tmp_path, log, None, inputs=[INPUT, new]) as task:
        assert task.input_offsets() == {INPUT: 10, new: 0}
        assert task.run(commit=True) == 1


@over_each_changelog
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_task_without_input_commits_its_offsets_again_so_that_brokers_keep_them(
    tmp_path: Path, log: Changelog, guarantee: ProcessingGuarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, KEYS)
    with resetting(tmp_path, log, None, guarantee=guarantee) as task:
        task.run(commit=True)
        forget_offsets(log)
        task.run(commit=True)
        assert log.committed_offsets("app", [INPUT]) == {}
        monkeypatch.setattr(task._transaction, "_renewal_at_s", time.monotonic())
        for _ in range(2):
            task.run(commit=True)
            assert log.committed_offsets("app", [INPUT]) == {INPUT: 10}
        assert 600 < task._transaction._renewal_at_s - time.monotonic() <= 3_600
        assert task.metrics.commit_total == 2
        assert task.metrics.process_total == len(KEYS)


@pytest.mark.kafka
def test_an_input_topic_that_was_deleted_and_created_again_is_not_processed_again(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Brokers drop the committed offsets of a deleted topic, whatever the new one has."""
    with fresh_changelog(request.getfixturevalue("broker")) as log:
        feed(log, KEYS[:4])
        with resetting(tmp_path, log, None) as task:
            task.run(commit=True)
        former = log.topic_id("input")
        admin = admin_of(log)
        admin.delete_topics(["input"])["input"].result(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while "input" in log.topics() or log.committed_offsets("app", [INPUT]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        feed(log, KEYS)
        assert log.topic_id("input") != former
        with pytest.raises(OffsetOutOfRangeError):
            resetting(tmp_path, log, None).open()
        with resetting(tmp_path, log, "earliest") as task:
            assert task.run(commit=True) == len(KEYS)
            assert state(task, "left") == expected_state([*KEYS[:4], *KEYS])


def test_an_input_that_loses_each_record_before_it_is_read_ends_in_an_error_and_no_endless_loop(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, KEYS)
    task = resetting(tmp_path, log, "earliest")
    task.open()
    read = log.read

    def shrinking(partition: TopicPartition, from_offset: int = 0) -> object:
        if partition == INPUT:
            log.truncate(INPUT, from_offset + 1)
        return read(partition, from_offset)

    monkeypatch.setattr(log, "read", shrinking)
    with pytest.raises(OffsetOutOfRangeError):
        task.run()
    monkeypatch.undo()
    task.close(clean=False)


@pytest.mark.parametrize(("wrong", "error"), [("first", ConfigError), ("", ConfigError), (5, TypeError)])
def test_an_unknown_choice_is_refused(tmp_path: Path, log: Changelog, wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        resetting(tmp_path, log, wrong)


def test_the_property_of_kafka_is_that_of_tasks(tmp_path: Path, log: Changelog) -> None:
    properties = {"application.id": "app", "state.dir": str(tmp_path)}
    config = TaskConfig.from_properties({**properties, "auto.offset.reset": "LATEST"})
    assert config.auto_offset_reset is OffsetReset.LATEST
    assert TaskConfig.from_properties(properties).auto_offset_reset is None
    with pytest.raises(ConfigError):
        TaskConfig.from_properties({**properties, "auto.offset.reset": "first"})
    feed(log, KEYS)
    task = config.task(TASK, changelog=log, stores=[], process=lambda *_: None, inputs=[INPUT])
    with task:
        assert task.input_offsets() == {INPUT: 10}
