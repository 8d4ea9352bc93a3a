"""The checks of two tasks over brokers find each thing that these may leave wrong. No broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import ProducerFencedError
from stores.interface import TopicPartition
from stores.tests.kafka import two_tasks as checks
from stores.tests.kafka.two_tasks import CHANGELOG, EXPECTED, NUMBER, STATES, TASK
from stores.tests.tasks.sharing import INPUTS, OUTPUTS, ROUND, feed_both, read_outputs


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryChangelog]:
    """The input in a changelog in memory, which takes the place of the brokers."""
    with MemoryChangelog() as log:
        feed_both(log)
        monkeypatch.setattr(checks, "KafkaChangelog", lambda settings: nullcontext(log))
        monkeypatch.setattr(checks, "committed_outputs", lambda address, at_least: read_outputs(log))
        yield log


def work(folder: Path) -> None:
    with checks.two_tasks(folder, "none", TASK) as tasks:
        assert checks.work(tasks) == []


def test_tasks_that_have_counted_each_input_once_differ_in_nothing(tmp_path: Path, log: MemoryChangelog) -> None:
    work(tmp_path)
    assert checks.differences(tmp_path, "none") == {}


def test_input_offsets_that_were_lost_are_found(tmp_path: Path, log: MemoryChangelog) -> None:
    work(tmp_path)
    with log.producer() as producer:
        producer.send_offsets("app", {INPUTS[1]: 4})
        producer.flush()
    assert checks.differences(tmp_path, "none") == {"inputs": [6, 4]}


def test_a_record_that_a_changelog_has_lost_is_found(tmp_path: Path, log: MemoryChangelog) -> None:
    work(tmp_path)
    log.compact(TopicPartition(CHANGELOG, 1), is_expired=lambda key: key == b"7")
    assert checks.differences(tmp_path, "none") == {"changelogs": [STATES[0], {b"5": b"3", b"6": b"1"}]}


def test_an_output_that_is_there_twice_is_found(tmp_path: Path, log: MemoryChangelog) -> None:
    work(tmp_path)
    with log.producer() as producer:
        producer.send(OUTPUTS[0], b"2", b"2")
        producer.flush()
    assert checks.differences(tmp_path, "none") == {"outputs": [[*EXPECTED[0], (b"2", b"2")], EXPECTED[1]]}


def test_inputs_that_were_not_counted_are_found(tmp_path: Path, log: MemoryChangelog) -> None:
    with checks.two_tasks(tmp_path, "none", TASK) as tasks:
        checks.finish(tasks, ROUND)
    assert [*checks.differences(tmp_path, "none")] == ["inputs", "changelogs", "outputs"]


def test_a_committed_store_that_is_not_the_model_s_is_found(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic(CHANGELOG, len(INPUTS))
    with log.producer() as producer:
        producer.send(TopicPartition(CHANGELOG, 0), b"9", b"1")
        producer.flush()
    with pytest.raises(AssertionError):
        work(tmp_path)


def test_a_fault_that_never_strikes_fails_the_trial(tmp_path: Path, log: MemoryChangelog) -> None:
    with pytest.raises(AssertionError), checks.striking({NUMBER + 1: lambda: None}):
        work(tmp_path)


def test_an_error_that_ends_a_task_is_no_passing_one(tmp_path: Path, log: MemoryChangelog) -> None:
    def fence() -> None:
        raise ProducerFencedError("another instance has the task")

    with checks.two_tasks(tmp_path, "none", TASK) as tasks, checks.striking({3: fence}):
        with pytest.raises(ProducerFencedError):
            checks.work(tasks)


def test_without_transactions_the_control_of_a_fault_finds_outputs_twice(tmp_path: Path, log: MemoryChangelog) -> None:
    checks.check_that_repeated_outputs_are_found(tmp_path, "none", lambda: None)
    assert sum(map(len, read_outputs(log))) == NUMBER + ROUND


def test_outputs_that_were_lost_are_no_control_of_a_fault(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "committed_outputs", lambda address, at_least: [[], []])
    with pytest.raises(AssertionError):
        checks.check_that_repeated_outputs_are_found(tmp_path, "none", lambda: None)
