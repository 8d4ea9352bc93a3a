"""Kafka Streams and our task take turns on one application: with its state directory, or with the changelog alone.

The program is ``WordCount.java``, which Java compiles as it starts it.
"""

from __future__ import annotations

import shutil
import struct
import time
from collections import Counter
from pathlib import Path

import pytest

from stores.changelog.interface import Record
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.kafka.testing.jars import STREAMS, STREAMS_44
from stores.errors import StoreLockedError
from stores.interface import TopicPartition
from stores.records import STR, TimestampedKeyValue, ValueAndTimestamp
from stores.tasks import StoreConfig, StreamTask, TaskContext, TaskId
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.java_programs import DEADLINE_S, running_streams_program, streams_program

pytestmark = pytest.mark.kafka

APPLICATION = "streams-word-count"
"""No other test has an application of this name: workers refuse a group in which Kafka Streams has a member."""
WORDS, COUNTED = TopicPartition("words", 0), TopicPartition("counted", 0)
COUNTS = TopicPartition(f"{APPLICATION}-counts-changelog", 0)
TEXT = ["to", "be", "or", "not", "to", "be", "überall", "to"]
Contents = dict[str, ValueAndTimestamp[int]]
each_release = pytest.mark.parametrize("jars", [STREAMS, STREAMS_44])


class KafkaLong:
    """Integers as Kafka's ``LongSerializer`` writes them: eight bytes, big-endian, two's complement."""

    name = "kafka-long"
    keeps_order = keeps_prefixes = False

    @staticmethod
    def serialize(value: int, /) -> bytes:
        return struct.pack(">q", value)

    @staticmethod
    def deserialize(data: bytes, /) -> int:
        number: int
        (number,) = struct.unpack(">q", data)
        return number


def count(record: Record, context: TaskContext) -> None:
    """Count the word as ``count()`` of Kafka Streams does: with the highest timestamp of its records."""
    assert record.key is not None
    counts, word = context.store("counts"), record.key.decode()
    count = counts.get(word)
    number = 1 if count is None else count.value + 1
    counts.put(word, number, record.timestamp_ms if count is None else max(count.timestamp_ms, record.timestamp_ms))
    context.forward("counted", record.key, KafkaLong.serialize(number))


def say(log: KafkaChangelog, words: list[str], first_ms: int) -> None:
    with log.producer() as producer:
        producer.send_all(WORDS, [(word.encode(), b"x", first_ms + place) for place, word in enumerate(words)])
        producer.flush()


def counted_by_streams(broker: Broker, state: Path, end: int, jars: str = STREAMS) -> Contents:
    """Let Kafka Streams work until its committed input offset is ``end``; return the contents of its store."""
    output = streams_program("WordCount", broker.address, APPLICATION, str(state), str(end), jars=jars)
    entries = (line.split() for line in output.splitlines())
    return {word: ValueAndTimestamp(int(number), int(time_ms)) for word, number, time_ms in entries}


def counted_by_us(log: KafkaChangelog, state: Path, end: int) -> tuple[Contents, Contents]:
    """Let our task work until ``end``; return the contents of its store after its restore, and at the end."""
    with counting(log, state) as task:
        restored_contents = contents(task)
        task.run(commit=True)
        assert task.input_offsets() == {WORDS: end}
        return restored_contents, contents(task)


def counting(log: KafkaChangelog, state: Path, backend: str = "rocksdb-indexed-batch") -> StreamTask:
    stores = {"counts": StoreConfig(backend, records=TimestampedKeyValue(key=STR, value=KafkaLong()))}
    return StreamTask(
        APPLICATION, TaskId(0, 0), state_dir=state, changelog=log, stores=stores, process=count, inputs=[WORDS]
    )


def contents(task: StreamTask) -> Contents:
    with task.store("counts").all() as pairs:
        return dict(pairs)


def expected(words: list[str]) -> Contents:
    """Return the model: word ``n`` has the timestamp ``1_000 + n``."""
    last_ms = {word: 1_000 + place for place, word in enumerate(words)}
    return {word: ValueAndTimestamp(number, last_ms[word]) for word, number in Counter(words).items()}


def test_streams_and_a_task_restore_from_each_others_changelog_and_count_on(tmp_path: Path, broker: Broker) -> None:
    """Each turn begins with an empty state directory. Source: KIP-258 (timestamps), KIP-447 (the group's offsets)."""
    parts = [TEXT, ["be", "new"], ["to", "new", "end"]]
    text = [word for part in parts for word in part]
    ends = [8, 10, 13]
    with fresh_changelog(broker) as log:
        log.create_topic("words")
        log.create_topic("counted")
        place = 0
        offsets = []
        for part in parts:
            say(log, part, 1_000 + place)
            place += len(part)
            offsets.append(log.end_offset(WORDS))
            if len(offsets) == 1:
                theirs = counted_by_streams(broker, tmp_path / "streams-1", offsets[0])
                assert theirs == expected(text[:8])
            elif len(offsets) == 2:
                restored, ours = counted_by_us(log, tmp_path / "ours", offsets[1])
                assert restored == expected(text[:8])
                assert ours == expected(text[:10])
            else:
                theirs = counted_by_streams(broker, tmp_path / "streams-2", offsets[2])
                assert theirs == expected(text)
        assert offsets == ends
        numbers: Counter[str] = Counter()
        outputs = []
        for word in text:
            numbers[word] += 1
            outputs.append((word.encode(), KafkaLong.serialize(numbers[word])))
        assert [(record.key, record.value) for record in log.read(COUNTED)] == outputs


@each_release
def test_a_task_takes_over_the_state_directory_of_kafka_streams_and_counts_on(
    tmp_path: Path, broker: Broker, jars: str
) -> None:
    """Nothing is restored. A copy of the directory then needs the tail that was logged meanwhile. Source: KIP-892."""
    text, more = TEXT, ["be", "new", "to"]
    with fresh_changelog(broker) as log:
        log.create_topic("words")
        log.create_topic("counted")
        say(log, text, 1_000)
        assert counted_by_streams(broker, tmp_path / "streams", len(text), jars) == expected(text)
        state = tmp_path / "streams" / APPLICATION
        folder = state / "0_0" / "rocksdb" / "counts"
        assert (folder / "CURRENT").exists()
        in_file = {COUNTS} if jars == STREAMS else set()
        assert CheckpointFile(state / "0_0" / ".checkpoint").read().keys() == in_file
        shutil.copytree(state, tmp_path / "copy")

        with counting(log, state) as task:
            [report] = task.restore_reports()
            assert (report.wiped, report.reason, report.records) == (False, None, 0)
            assert contents(task) == expected(text)
            say(log, more, 1_000 + len(text))
            task.run(commit=True)
            assert contents(task) == expected(text + more)
        with counting(log, tmp_path / "copy", "lmdb-native") as task:
            [report] = task.restore_reports()
            assert (report.wiped, report.records) == (False, len(more))
            assert contents(task) == expected(text + more)
        assert not (folder / "CURRENT").exists()
        assert len(list(log.read(COUNTED))) == len(text + more)
        assert counted_by_streams(broker, tmp_path / "later", len(text + more)) == expected(text + more)


@each_release
def test_a_store_that_kafka_streams_has_open_is_refused_and_after_a_kill_restored_whole(
    tmp_path: Path, broker: Broker, jars: str
) -> None:
    """Under exactly once a killed Kafka Streams leaves no checkpoint file. Source: ``ProcessorStateManager``."""
    state = tmp_path / "streams" / APPLICATION
    with fresh_changelog(broker) as log:
        log.create_topic("words")
        log.create_topic("counted")
        say(log, TEXT, 1_000)
        arguments = (broker.address, APPLICATION, str(tmp_path / "streams"), "99")
        with running_streams_program("WordCount", *arguments, jars=jars) as java:
            deadline = time.monotonic() + DEADLINE_S
            while log.committed_offsets(APPLICATION, [WORDS]).get(WORDS) != len(TEXT):
                assert java.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert (state / "0_0" / "rocksdb" / "counts" / "CURRENT").exists()
            with pytest.raises(StoreLockedError):
                counting(log, state).open()
            assert java.poll() is None
        with counting(log, state) as task:
            [report] = task.restore_reports()
            assert (report.wiped, report.records) == (True, len(TEXT))
            assert "Kafka Streams" in str(report.reason)
            assert contents(task) == expected(TEXT)


def test_a_checkpoint_of_ours_is_read_by_the_class_of_kafka_streams(tmp_path: Path) -> None:
    """The checksum of ours is whitespace after the last offset. Source: Kafka, ``OffsetCheckpoint``."""
    offsets = {TopicPartition("app-left-changelog", 0): 41, TopicPartition("app-right-changelog", 7): 1 << 40}
    unknown = TopicPartition("app-unknown-changelog", 1)
    CheckpointFile(tmp_path / ".checkpoint").write({**offsets, unknown: None})
    output = streams_program("Checkpoint", "read", str(tmp_path / ".checkpoint"))
    lines = {f"{topic} {number} {offset}" for (topic, number), offset in offsets.items()}
    assert set(output.splitlines()) == lines | {"app-unknown-changelog 1 -4"}


def test_a_checkpoint_of_kafka_streams_is_read_by_us(tmp_path: Path) -> None:
    path = tmp_path / ".checkpoint"
    streams_program(
        "Checkpoint", "write", str(path), "app-left-changelog", "0", "41", "app-unknown-changelog", "1", "-4"
    )
    assert path.read_text().startswith("0\n2\n")
    assert CheckpointFile(path).read() == {TopicPartition("app-left-changelog", 0): 41}
