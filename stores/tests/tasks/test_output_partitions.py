"""The partition of an output: by its key as Kafka chooses it, or as the function or the configuration says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record, SqliteChangelog
from stores.changelog.partitioners import PARTITIONERS
from stores.errors import ChangelogError, ConfigError
from stores.interface import TopicPartition
from stores.tasks import DeadLetterTopic, PunctuationType, TaskConfig, TaskContext, TaskId
from stores.tests.tasks.hand_clock import HandClock
from stores.tests.tasks.setup import MEMORY, logging_all, stream_task

KEYS = [b"%d" % number for number in range(40)] + [b"", b"a key of more than four bytes", b"k" * 200]
PARTITIONS = 7
Forward = Callable[[Record, TaskContext], None]


@pytest.fixture
def log() -> MemoryChangelog:
    """Return a changelog without topics."""
    return MemoryChangelog()


def run_task(folder: Path, log: Changelog, process: Forward, number: int = 2, **settings: Any) -> None:
    """Process all records of partition ``number`` of the input, and commit."""
    task = stream_task(
        TaskId(0, number),
        state_dir=folder / "state",
        changelog=log,
        stores={"s": logging_all(MEMORY)},
        process=process,
        inputs=[TopicPartition("input", number)],
        **settings,
    )
    with task:
        task.run()


def filled(log: Changelog, keys: list[Any], partitions: int = PARTITIONS, number: int = 2) -> None:
    """Make the topics: ``input`` with a record for each key, and ``output``, of so many partitions."""
    log.create_topic("input", 10)
    log.create_topic("output", partitions)
    with log.producer() as producer:
        producer.send_all(TopicPartition("input", number), [(key, b"v", 1) for key in keys])
        producer.flush()


def partitions_of(log: Changelog, topic: str = "output") -> dict[bytes | None, set[int]]:
    """Return the partitions in which the records of each key are."""
    partitions: dict[bytes | None, set[int]] = {}
    for number in range(log.topics()[topic]):
        for record in log.read(TopicPartition(topic, number)):
            partitions.setdefault(record.key, set()).add(number)
    return partitions


def by_key(name: str = "murmur2", count: int = PARTITIONS) -> dict[bytes | None, set[int]]:
    return {key: {PARTITIONERS[name](key, count)} for key in KEYS}


def forward(record: Record, context: TaskContext) -> None:
    context.forward("output", record.key, record.value)


@pytest.mark.parametrize("kind", [MemoryChangelog, SqliteChangelog])
@pytest.mark.parametrize("number", [0, 9])
def test_an_output_is_in_the_partition_of_its_key_whatever_the_task(
    tmp_path: Path, kind: Callable[..., Changelog], number: int
) -> None:
    with kind(*([tmp_path / "log"] if kind is SqliteChangelog else [])) as log:
        filled(log, KEYS * 2, number=number)
        run_task(tmp_path, log, forward, number)
        assert partitions_of(log) == by_key()
        assert len(set.union(*by_key().values())) == PARTITIONS  # The keys are in all of them.


@pytest.mark.parametrize(("partitions", "expected"), [(10, 8), (9, 8), (8, 0), (3, 2), (1, 0)])
def test_an_output_without_a_key_is_in_the_tasks_partition_modulo_those_of_the_topic(
    tmp_path: Path, log: MemoryChangelog, partitions: int, expected: int
) -> None:
    """The topic may have fewer partitions than the task's number."""
    filled(log, [None] * 3, partitions, number=8)
    run_task(tmp_path, log, forward, 8)
    assert partitions_of(log) == {None: {expected}}


def test_a_dead_letter_is_in_the_partition_of_its_key(tmp_path: Path, log: MemoryChangelog) -> None:
    def fail(record: Record, context: TaskContext) -> None:
        raise ValueError("poison")

    filled(log, [*KEYS, None])
    log.create_topic("dead", PARTITIONS)
    run_task(tmp_path, log, fail, on_error=DeadLetterTopic("dead"))
    assert partitions_of(log, "dead") == {**by_key(), None: {2}}


def test_outputs_of_an_undoable_record_are_in_the_partitions_of_their_keys(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    filled(log, [*KEYS, None])
    run_task(tmp_path, log, forward, on_error="skip")
    assert partitions_of(log) == {**by_key(), None: {2}}


@pytest.mark.parametrize("partitioner", [None, "murmur2", "consistent", lambda key, count: len(key) % count])
@pytest.mark.parametrize("no_key", [[], [None]])
def test_many_outputs_are_in_the_partitions_in_which_each_alone_is(
    tmp_path: Path, log: MemoryChangelog, partitioner: Any, no_key: list[None]
) -> None:
    if callable(partitioner) and no_key:
        partitioner = lambda key, count: len(key or b"") % count  # noqa: E731
    keys = [*KEYS, *(b"key %03d" % number for number in range(50)), *no_key]

    def at_once(record: Record, context: TaskContext) -> None:
        context.forward_many("output", keys, [b"%d" % place for place in range(len(keys))], partitioner=partitioner)
        for place, key in enumerate(keys):
            context.forward("each", key, b"%d" % place, partitioner=partitioner)

    filled(log, [b"one"])
    log.create_topic("each", PARTITIONS)
    run_task(tmp_path, log, at_once)
    for number in range(PARTITIONS):
        many, each = (log.read(TopicPartition(topic, number)) for topic in ("output", "each"))
        assert [record[1:] for record in many] == [record[1:] for record in each]


def test_an_output_of_a_punctuator_is_in_the_partition_of_its_key(tmp_path: Path, log: MemoryChangelog) -> None:
    def init(context: TaskContext) -> None:
        def punctuate(timestamp_ms: int) -> None:
            for key in KEYS:
                context.forward("output", key, b"")

        context.schedule(1_000, PunctuationType.STREAM_TIME, punctuate)

    filled(log, [b"x"])
    run_task(tmp_path, log, lambda record, context: None, init=init, clock=HandClock())
    assert partitions_of(log) == by_key()


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("place", ["call", "task", "properties"])
def test_a_named_partitioner_is_taken_from_the_call_the_task_and_the_properties(
    tmp_path: Path, log: MemoryChangelog, name: str, place: str
) -> None:
    def choose(record: Record, context: TaskContext) -> None:
        context.forward("output", record.key, b"", partitioner=name)

    filled(log, [*KEYS, None])
    if place == "call":
        run_task(tmp_path, log, choose)
    elif place == "task":
        run_task(tmp_path, log, forward, partitioner=name)
    else:
        config = TaskConfig.from_properties({"application.id": "b", "state.dir": str(tmp_path), "partitioner": name})
        inputs = [TopicPartition("input", 2)]
        with config.task(TaskId(0, 2), changelog=log, stores={}, process=forward, inputs=inputs) as task:
            task.run()
    assert partitions_of(log) == {**by_key(name), None: {2}}


def test_the_call_overrides_the_tasks_partitioner(tmp_path: Path, log: MemoryChangelog) -> None:
    def choose(record: Record, context: TaskContext) -> None:
        context.forward("output", b"named", b"", partitioner="murmur2")
        context.forward("output", b"numbered", b"", partition=6)

    filled(log, [b"k"])
    run_task(tmp_path, log, choose, partitioner=lambda key, count: 1)
    assert partitions_of(log) == {b"named": {PARTITIONERS["murmur2"](b"named", PARTITIONS)}, b"numbered": {6}}
    assert PARTITIONERS["murmur2"](b"named", PARTITIONS) != 1


def test_a_function_as_partitioner_is_asked_about_each_key_and_about_none(tmp_path: Path, log: MemoryChangelog) -> None:
    asked = []

    def last(key: bytes | None, count: int) -> int:
        asked.append((key, count))
        return count - 1

    filled(log, [b"a", None])
    run_task(tmp_path, log, forward, partitioner=last)
    assert asked == [(b"a", PARTITIONS), (None, PARTITIONS)]
    assert partitions_of(log) == {b"a": {6}, None: {6}}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"partitioner": lambda key, count: count}, ChangelogError),
        ({"partitioner": lambda key, count: -1}, ChangelogError),
        ({"partitioner": lambda key, count: 0.0}, ChangelogError),
        ({"partitioner": lambda key, count: None}, ChangelogError),
        ({"partitioner": "murmur"}, ConfigError),
        ({"partitioner": "murmur2", "partition": 1}, TypeError),
        ({"partition": PARTITIONS}, ChangelogError),
        ({"partition": -1}, ChangelogError),
    ],
)
@pytest.mark.parametrize("key", [b"k", None])
def test_a_partition_that_does_not_exist_is_refused_and_nothing_is_sent(
    tmp_path: Path, log: MemoryChangelog, given: dict[str, Any], error: type[Exception], key: bytes | None
) -> None:
    def refused(record: Record, context: TaskContext) -> None:
        with pytest.raises(error):
            context.forward("output", key, b"", **given)

    filled(log, [b"x"])
    run_task(tmp_path, log, refused)
    assert partitions_of(log) == {}


@pytest.mark.parametrize(
    ("given", "error"), [("murmur", ConfigError), (7, TypeError), (lambda key: 0, TypeError), (None, TypeError)]
)
def test_a_partitioner_that_a_task_cannot_use_is_refused_when_it_is_made(
    tmp_path: Path, log: MemoryChangelog, given: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        run_task(tmp_path, log, forward, partitioner=given)
    with pytest.raises(error):
        TaskConfig("app", tmp_path, partitioner=given)
