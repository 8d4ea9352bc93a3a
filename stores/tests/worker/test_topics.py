"""A worker over topics with serdes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Record
from stores.errors import ConfigError, DeserializationError
from stores.interface import TopicPartition
from stores.records import INT64, JSON, STR, KeyValue
from stores.tasks import DeadLetterTopic, GlobalStore, TaskContext
from stores.telemetry import INSTRUMENTS, STORE
from stores.tests.worker.counting_app import NAME, PARTITIONS, count
from stores.tests.worker.places import EmbeddedPlace, Place, expected_counts
from stores.tests.worker.worker_thread import await_counted, await_true, running
from stores.worker import Application, Processor, Topic, Worker

WORDS, COUNTED = Topic("words", key=STR, value=STR), Topic("counted", key=STR, value=JSON)
WEIGHTS = Topic("weights", key=STR, value=INT64)
SKIPPED = next(each for each in INSTRUMENTS if (each.scope, each.name) == (STORE, "skipped_total"))
COUNTS = KeyValue(key=STR, value=INT64, name="counts")


def count_typed(record: Record[str, str], context: TaskContext) -> None:
    """Count the record's word by its weight, and forward the count."""
    if record.value is not None:
        weight = context.global_store("weights").get(record.value) or 1
        context.forward(COUNTED, record.value, context.store(COUNTS).update(record.value, lambda n: n + weight, 0))


def typed(**processor: Any) -> Application:
    return Application(
        os.environ.get("APPLICATION_NAME", NAME),
        Processor([WORDS], count_typed, [COUNTS], **processor),
        topics={WORDS: PARTITIONS, COUNTED: PARTITIONS, WEIGHTS: 1, "unreadable": 1},
        global_stores={"weights": GlobalStore(WEIGHTS, on_deserialization_error="skip")},
    )


def test_a_worker_reads_and_writes_by_the_serdes_and_sets_unreadable_records_aside(place: Place) -> None:
    words = ["to", "be", "or", "not", "to", "be"]
    place.feed(words)
    with place.open() as log, log.producer() as producer:
        log.create_topic(WEIGHTS.name)
        producer.send(TopicPartition(WEIGHTS.name, 0), b"be", b"heavy")
        producer.send(TopicPartition("words", 2), b"\xff", b"to", headers=(("own", b"1"),))
        producer.send(TopicPartition("words", 1), None, None)
        producer.flush()
    application = typed(on_deserialization_error=DeadLetterTopic("unreadable"))
    with running(place, {}, application=application) as worker:
        await_counted(place, len(words))
        await_true(lambda: sum(status.process_total for status in worker.status().tasks) == len(words) + 2)
        metrics = worker._metrics.collect_all()
    assert sorted(place.counted()) == sorted(expected_counts(words).elements())
    skipped = {labels["store"]: number for labels, number in metrics[SKIPPED] if "path" in labels}
    assert skipped == {"weights": 1}
    with place.open() as log:
        [letter] = log.read(TopicPartition("unreadable", 0))
    assert (letter.key, letter.value, letter.headers[0]) == (b"\xff", b"to", ("own", b"1"))


def test_an_unreadable_record_ends_the_worker_as_an_error_of_its_function_does(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(["to"])
    with place.open() as log, log.producer() as producer:
        producer.send(TopicPartition("words", 0), b"\xff", b"to")
        producer.flush()
    worker = Worker(typed(), {**place.properties(), "state.dir": str(tmp_path / "state"), "status.interval.ms": "0"})
    with pytest.raises(DeserializationError):
        worker.run()


def test_a_processor_checks_its_topics() -> None:
    mixed: Any = [WORDS, "others"]
    assert Processor(mixed, count).subtopology.inputs == ("words", "others")
    for wrong, error in (([WORDS, "words"], ConfigError), (WORDS, TypeError), ([5], TypeError), ([], ConfigError)):
        inputs: Any = wrong
        with pytest.raises(error):
            Processor(inputs, count)
    with pytest.raises(ConfigError):
        Application("a", [Processor([WORDS], count_typed), Processor(["words"], count)])
