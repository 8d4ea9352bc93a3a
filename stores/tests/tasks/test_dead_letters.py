"""Dead letters: a record whose function raises is sent to a topic, with the error, in its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record, SqliteChangelog
from stores.changelog.kafka import KafkaChangelog
from stores.errors import ChangelogError
from stores.tasks import DeadLetterTopic, StreamTask, TaskContext
from stores.tests.forked_call import call_until_killed
from stores.tests.kafka.fresh import DEADLINE_S, remove_all
from stores.tests.tasks.setup import (
    DEAD,
    DEAD_LETTERS,
    INPUT,
    OUTPUT,
    all_raising_at,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    header_of,
    logged,
    outputs,
    raising_at,
    single,
    state,
)


@pytest.mark.parametrize(("wrong", "error"), [(5, TypeError), ("", ValueError)])
def test_a_dead_letter_topic_has_a_name(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        DeadLetterTopic(wrong)


def test_a_task_without_its_dead_letter_topic_does_not_open(tmp_path: Path, log: MemoryChangelog) -> None:
    task = counting_task(tmp_path, log, on_error=DEAD_LETTERS)
    with pytest.raises(ChangelogError):
        task.open()
    log.create_topic("dead")
    task.open()
    task.close()


def test_a_dead_letter_has_the_record_and_the_error_in_headers(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-1034."""
    log.create_topic("dead")
    with log.producer() as producer:
        producer.send(INPUT, b"k", b"v", 42, (("own", b"1"),))
        producer.flush()

    def process(record: Record, context: TaskContext) -> None:
        context.forward("output", b"k", b"never")
        raise ValueError("no number: \udcff")

    task = single(tmp_path, log, process, on_error=DEAD_LETTERS)
    task.open()
    task.run()
    assert list(log.read(DEAD)) == []  # not before the commit
    task.commit()
    task.close()
    [letter] = log.read(DEAD)
    headers = dict(letter.headers)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", b"v", 42)
    assert letter.headers[0] == ("own", b"1")
    stacktrace = (headers.pop("__streams.errors.stacktrace") or b"").decode()
    assert headers == {
        "own": b"1",
        "__streams.errors.exception": b"ValueError",
        "__streams.errors.message": b"no number: ?",
        "__streams.errors.topic": b"input",
        "__streams.errors.partition": b"0",
        "__streams.errors.offset": b"0",
    }
    assert "never" in stacktrace or "process" in stacktrace
    assert outputs(log) == []
    assert (task.metrics.skipped_total, task.metrics.dead_letter_total) == (1, 1)


def test_a_long_stack_trace_in_a_dead_letter_keeps_its_end_with_the_error(tmp_path: Path, log: MemoryChangelog) -> None:
    """The frames of the caller are cut, not the place and the text of the error."""

    def down(left: int) -> None:
        if not left:
            raise ValueError("the innermost error")
        further(left - 1)

    def further(left: int) -> None:  # Two functions by turns: Python shortens a line that repeats.
        down(left)

    def process(record: Record, context: TaskContext) -> None:
        down(150)

    feed(log, [1])
    log.create_topic("dead")
    task = single(tmp_path, log, process, on_error=DEAD_LETTERS)
    task.open()
    task.run(commit=True)
    task.close()
    [letter] = log.read(DEAD)
    stacktrace = header_of(letter, "__streams.errors.stacktrace").decode()
    assert len(stacktrace) == 16_384
    assert "the innermost error" in stacktrace[-300:]
    assert "Traceback" not in stacktrace


class Mute(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_becomes_a_dead_letter_too(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("dead")
    feed(log, [7, 8])

    def process(record: Record, context: TaskContext) -> None:
        if record.offset == 0:
            raise Mute
        if record.offset == 1:
            raise ValueError("b" + "x" * 100_000)

    task = single(tmp_path, log, process, on_error=DEAD_LETTERS)
    task.open()
    task.run()
    task.commit()
    task.close()
    mute, long = (header_of(letter, "__streams.errors.message") for letter in log.read(DEAD))
    assert b"RuntimeError" in mute
    assert long[:2] == b"bx"
    assert len(long) < 20_000


KEYS = [number % 4 for number in range(12)]


POISONED = {1, 7, 8}


def changelog_of(folder: Path) -> Changelog:
    """Open the changelog that is prepared in ``folder``."""
    address = folder / "address"
    if address.exists():
        return KafkaChangelog({"bootstrap.servers": address.read_text()}, timeout_s=DEADLINE_S)
    return SqliteChangelog(folder / "log.sqlite")


def dead_letter_task(folder: Path, log: Changelog, backend: str, batches: bool) -> StreamTask:
    settings: dict[str, Any] = {"on_error": DEAD_LETTERS, "commit_every_records": 3}
    function = {"process_batch": all_raising_at(POISONED)} if batches else {"process": raising_at(POISONED)}
    return counting_task(folder, log, backend, **function, **settings)


def work_on(folder: Path, backend: str, batches: bool) -> None:
    with changelog_of(folder) as log:
        task = dead_letter_task(folder, log, backend, batches)
        task.open()
        task.run()
        task.close()


STEPS = [
    ("task.before_log_commit", False),
    ("changelog.before_commit", False),
    ("changelog.after_commit", True),
    ("task.after_log_commit", True),
    ("task.between_stores", True),
    ("task.after_store_commit", True),
]
SUBJECTS = [
    ("rocksdb-indexed-batch", False),
    ("rocksdb-direct", False),
    ("lmdb-native", False),
    ("sqlite-indexed-batch", False),
    ("rocksdb-indexed-batch", True),
    ("lmdb-native", True),
]


def kills() -> Iterator[Any]:
    """Each step with each subject. ``make test`` has every other one over a file, ``make test-long`` the rest."""
    for at, step in enumerate(STEPS):
        for number, subject in enumerate(SUBJECTS):
            yield pytest.param(*step, *subject, "a file", marks=[] if at % 2 == number % 2 else pytest.mark.long)
            yield pytest.param(*step, *subject, "kafka", marks=pytest.mark.kafka)


@pytest.mark.parametrize(("failpoint", "in_log", "backend", "batches", "over"), list(kills()))
def test_a_kill_around_a_dead_letter_loses_and_repeats_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, over: str, backend: str, batches: bool, failpoint: str, in_log: bool
) -> None:
    """The third commit has offsets 6 to 8, of which 7 and 8 are dead letters: all of it is there, or nothing.

    They are one batch, which is halved.
    """
    if over == "kafka":
        broker = request.getfixturevalue("broker")
        remove_all(broker)
        (tmp_path / "address").write_text(broker.address)
    with changelog_of(tmp_path) as log:
        feed(log, KEYS)
        log.create_topic("dead")
    assert call_until_killed(work_on, tmp_path, failpoint, 3, backend, batches)

    def letters(log: Changelog) -> list[bytes]:
        return [header_of(record, "__streams.errors.offset") for record in log.read(DEAD)]

    end = 9 if in_log else 6
    good_keys = [key for offset, key in enumerate(KEYS) if offset not in POISONED]
    with changelog_of(tmp_path) as log:
        task = dead_letter_task(tmp_path, log, backend, batches)
        task.open()
        assert task.input_offsets() == {INPUT: end}
        assert letters(log) == ([b"1", b"7", b"8"] if in_log else [b"1"])
        state_at_end = expected_state(key for offset, key in enumerate(KEYS[:end]) if offset not in POISONED)
        assert state(task, "left") == state(task, "right") == state_at_end
        task.run(commit=True)
        # The rest of the input has no poisoned record, whether or not the third commit is done again.
        assert task.metrics.dead_letter_total == task.metrics.skipped_total == (0 if in_log else 2)
        task.close()
        assert letters(log) == [b"1", b"7", b"8"]
        assert outputs(log) == expected_outputs(good_keys)
        assert logged(log, "left") == logged(log, "right") == expected_state(good_keys)
        assert [record.offset for record in log.read(OUTPUT)] == sorted(record.offset for record in log.read(OUTPUT))
