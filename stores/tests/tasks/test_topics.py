"""Topics with serdes: functions read and write values, topics have bytes. Unreadable records are no failed calls."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stores.changelog import MemoryChangelog, Record
from stores.changelog.partitioners import of_murmur2
from stores.errors import (
    ChangelogError,
    ConfigError,
    DeserializationError,
    StoreError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.records import BYTES, FLOAT64, INT64, JSON, STR, KeyValue
from stores.records.serdes import MsgspecJson, MsgspecMessagePack
from stores.tasks import (
    DeadLetterTopic,
    GlobalStore,
    GlobalStores,
    TaskContext,
    TaskId,
    TaskSettings,
    Topic,
)
from stores.tasks.context import OutputPartitioner
from stores.tests.tasks.setup import DEAD, INPUT, OUTPUT, Crash, header_of, outputs, over_each_changelog, single, state


class Order(msgspec.Struct):
    """A value of a user."""

    cents: int


ORDERS = Topic("input", key=STR, value=MsgspecJson(Order))
TOTALS = Topic("output", key=STR, value=INT64)
POISON = [b"{", b"", b'{"cents": "many"}', b"\xff"]


def send(log: Any, *pairs: tuple[bytes | None, bytes | None], headers: Any = ()) -> None:
    with log.producer() as producer:
        for key, value in pairs:
            producer.send(INPUT, key, value, 7, headers)
        producer.flush()


def add_up(record: Record[str, Order], context: TaskContext) -> None:
    """Add up the cents of each key, and forward the sum."""
    if record.key is None or record.value is None:
        return
    store = context.store("s")
    total = int(store.get(record.key.encode()) or b"0") + record.value.cents
    store.put(record.key.encode(), b"%d" % total)
    context.forward(TOTALS, record.key, total)


@over_each_changelog
def test_a_function_reads_and_writes_what_the_serdes_of_its_topics_do(tmp_path: Path, log: Any) -> None:
    send(log, (b"ann", b'{"cents":5}'), (b"bob", b'{"cents":7}'), (b"ann", b'{"cents":1}'))
    with single(tmp_path, log, add_up, inputs=[ORDERS]) as task:
        assert list(task.input_offsets()) == [INPUT]
        task.run(commit=True)
    written = [(b"ann", INT64.serialize(5)), (b"bob", INT64.serialize(7)), (b"ann", INT64.serialize(6))]
    assert outputs(log) == written
    assert [TOTALS.decoded(record)[1:3] for record in log.read(OUTPUT)] == [("ann", 5), ("bob", 7), ("ann", 6)]


def test_none_is_no_key_and_a_tombstone_and_no_serde_sees_it(tmp_path: Path, log: MemoryChangelog) -> None:
    got: list[Record[str, Order]] = []

    def process(record: Record[str, Order], context: TaskContext) -> None:
        got.append(record)
        context.forward(TOTALS, record.key, None)

    headers = (("own", b"1"),)
    send(log, (None, b'{"cents":5}'), (b"ann", None), (None, None), headers=headers)
    with single(tmp_path, log, process, inputs=[ORDERS]) as task:
        task.run()
    expected = [(0, None, Order(5), 7, headers), (1, "ann", None, 7, headers), (2, None, None, 7, headers)]
    assert [tuple(record) for record in got] == expected
    assert outputs(log) == [(None, None), (b"ann", None), (None, None)]


def test_the_context_has_the_record_as_it_is_in_the_topic(tmp_path: Path, log: MemoryChangelog) -> None:
    got: list[object] = []
    send(log, (b"ann", b'{"cents": 5}'))
    with single(tmp_path, log, lambda record, context: got.append(context.record), inputs=[ORDERS]) as task:
        task.run()
    assert got == [Record(0, b"ann", b'{"cents": 5}', 7)]


def test_a_topic_as_an_input_is_the_partition_of_the_task_and_others_have_bytes(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    log.create_topic("numbers", 3)
    with log.producer() as producer:
        producer.send(TopicPartition("numbers", 2), b"a", INT64.serialize(4))
        producer.flush()
    send(log, (b"a", b"4"))
    got: list[tuple[TopicPartition, Any, Any]] = []
    task = single(
        tmp_path,
        log,
        lambda record, context: got.append((context.partition, record.key, record.value)),
        task_id=TaskId(0, 2),
        inputs=[Topic("numbers", key=BYTES, value=INT64), INPUT],
    )
    with task:
        task.run()
    assert sorted(got) == [(INPUT, b"a", b"4"), (TopicPartition("numbers", 2), b"a", 4)]


def test_an_output_is_in_the_partition_of_its_keys_bytes(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("numbered", 5)
    numbered = Topic("numbered", key=INT64, value=STR)

    def process(record: Record, context: TaskContext) -> None:
        for number in range(30):
            context.forward(numbered, number, "")
            context.forward(numbered, number, "function", partitioner=lambda key, count: key[-1] % count)

    send(log, (b"k", b"v"))
    with single(tmp_path, log, process) as task:
        task.run()
    chosen: dict[str, OutputPartitioner] = {"": of_murmur2, "function": lambda key, count: int(key[-1] % count)}
    for partition in range(5):
        for record in log.read(TopicPartition("numbered", partition)):
            decoded = numbered.decoded(record)
            assert chosen[decoded.value or ""](record.key, 5) == partition


# A value that the serde refuses


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    ("topic", "key", "value", "error"),
    [
        (TOTALS, "k", "5", TypeError),
        (TOTALS, "k", 2**63, ValueError),
        (TOTALS, b"k", 5, TypeError),
        (Topic("output", key=BYTES, value=BYTES), b"k", "5", TypeError),
        (Topic("output", key=BYTES, value=STR), b"k", b"5", TypeError),
        (Topic("output", key=BYTES, value=FLOAT64), b"k", float("nan"), ValueError),
        (Topic("output", key=BYTES, value=JSON), b"k", {1, 2}, TypeError),
        (Topic("output", key=BYTES, value=MsgspecJson(Order)), b"k", {"cents": 5}, TypeError),
        (Topic("output", key=BYTES, value=MsgspecMessagePack(Order)), b"k", 5, TypeError),
    ],
)
def test_a_value_of_another_type_is_refused_and_nothing_is_sent(
    tmp_path: Path, log: MemoryChangelog, topic: Any, key: Any, value: Any, error: type[Exception], on_error: str
) -> None:
    refused: list[Exception] = []

    def process(record: Record, context: TaskContext) -> None:
        with pytest.raises(error) as caught:
            context.forward(topic, key, value)
        refused.append(caught.value)
        assert "'output'" in str(caught.value)  # The topic is named, as a name.
        assert type(value).__name__ in str(caught.value) or error is ValueError or isinstance(key, bytes)
        context.forward("output", b"after", None)

    send(log, (b"k", b"v"))
    with single(tmp_path, log, process, on_error=on_error) as task:
        task.run()
    assert len(refused) == 1
    assert outputs(log) == [(b"after", None)]


def test_a_typed_output_needs_its_topic_and_a_record(tmp_path: Path, log: MemoryChangelog) -> None:
    contexts: list[TaskContext] = []

    def process(record: Record, context: TaskContext) -> None:
        contexts.append(context)
        with pytest.raises(ChangelogError):
            context.forward(Topic("nowhere", key=STR, value=STR), "k", "v")

    send(log, (b"k", b"v"))
    with single(tmp_path, log, process) as task:
        task.run()
        with pytest.raises(StoreError):
            contexts[0].forward(TOTALS, "k", 5)
    assert outputs(log) == []


# A record that can't be read


@pytest.mark.parametrize("settings", [{}, {"on_deserialization_error": "raise", "on_error": "skip"}])
def test_an_unreadable_record_is_raised_and_rolls_back(
    tmp_path: Path, log: MemoryChangelog, settings: dict[str, str]
) -> None:
    send(log, (b"ann", b'{"cents":5}'), (b"ann", b"{"))
    task = single(tmp_path, log, add_up, inputs=[ORDERS], **settings)
    task.open()
    with pytest.raises(DeserializationError) as error:
        task.run()
    assert isinstance(error.value.__cause__, msgspec.DecodeError)
    assert any("offset 1 of input-0" in note for note in error.value.__notes__)
    assert task.input_offsets() == {INPUT: 0}
    assert (state(task, "s"), task.metrics.skipped_total) == ({}, 0)
    task.close(clean=False)
    assert outputs(log) == []


@over_each_changelog
@pytest.mark.parametrize(
    "settings",
    [{"on_error": "skip"}, {"on_deserialization_error": "skip"}, {"on_deserialization_error": DeadLetterTopic("dead")}],
)
def test_unreadable_records_are_left_out_and_the_function_does_not_get_them(
    tmp_path: Path, log: Any, settings: dict[str, Any]
) -> None:
    log.create_topic("dead")
    poisoned = [(b"ann", value) for value in POISON]
    send(log, (b"ann", b'{"cents":5}'), *poisoned, (b"\xff", b'{"cents":1}'), (b"ann", b'{"cents":2}'))
    with single(tmp_path, log, add_up, inputs=[ORDERS], **settings) as task:
        assert task.run(commit=True) == 7
        assert state(task, "s") == {b"ann": b"7"}
        assert task.metrics.skipped_total == 5
    letters = [(record.key, record.value) for record in log.read(DEAD)]
    expected = [*poisoned, (b"\xff", b'{"cents":1}')] if letters else []
    assert letters == expected
    assert bool(letters) == isinstance(settings.get("on_deserialization_error"), DeadLetterTopic)


def test_unreadable_records_and_those_whose_function_fails_have_a_choice_each(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: Kafka Streams, which has two handlers (KIP-161, KIP-1033)."""
    for topic in ("unreadable", "failed"):
        log.create_topic(topic)
    headers = (("own", b"1"),)
    send(log, (b"ann", b"{"), (b"ann", b'{"cents":-1}'), (b"ann", b'{"cents":2}'), headers=headers)

    def process(record: Record[str, Order], context: TaskContext) -> None:
        add_up(record, context)
        assert record.value is not None
        if record.value.cents < 0:
            raise Crash

    task = single(
        tmp_path,
        log,
        process,
        inputs=[ORDERS],
        on_error=DeadLetterTopic("failed"),
        on_deserialization_error=DeadLetterTopic("unreadable"),
    )
    with task:
        task.run()
    assert (task.metrics.skipped_total, task.metrics.dead_letter_total) == (2, 2)
    [unreadable] = log.read(TopicPartition("unreadable", 0))
    [failed] = log.read(TopicPartition("failed", 0))
    for letter, value in ((unreadable, b"{"), (failed, b'{"cents":-1}')):
        assert (letter.key, letter.value, letter.timestamp_ms, letter.headers[0]) == (b"ann", value, 7, headers[0])
    exceptions = [header_of(letter, "__streams.errors.exception") for letter in (unreadable, failed)]
    assert exceptions[0] == b"stores.errors.DeserializationError"
    assert b"offset 0 of input-0" in header_of(unreadable, "__streams.errors.stacktrace")
    assert exceptions[1].endswith(b".Crash")
    assert outputs(log) == [(b"ann", INT64.serialize(2))]


class Unreachable:
    """A serde that asks somewhere else, and gets no answer."""

    name, keeps_order, keeps_prefixes = "unreachable", False, False

    def serialize(self, value: str, /) -> bytes:
        raise StoreUnavailableError("nobody answers")

    def deserialize(self, data: bytes, /) -> str:
        raise StoreUnavailableError("nobody answers")


@pytest.mark.parametrize("asked", [Topic("input", key=BYTES, value=Unreachable()), INPUT])
def test_a_serde_that_cannot_work_now_leaves_no_record_out(tmp_path: Path, log: MemoryChangelog, asked: Any) -> None:
    def process(record: Record[Any, Any], context: TaskContext) -> None:
        context.forward(Topic("output", key=BYTES, value=Unreachable()), b"k", "v")

    send(log, (b"ann", b"{"))
    task = single(tmp_path, log, process, inputs=[asked], on_error="skip")
    task.open()
    with pytest.raises(StoreUnavailableError):
        task.run()
    assert (task.input_offsets(), task.metrics.skipped_total) == ({INPUT: 0}, 0)
    task.close(clean=False)


def test_a_dead_letter_topic_for_unreadable_records_must_exist_and_be_no_input(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    with pytest.raises(ChangelogError):
        single(tmp_path, log, add_up, inputs=[ORDERS], on_deserialization_error=DeadLetterTopic("dead")).open()
    with pytest.raises(ConfigError):
        single(tmp_path, log, add_up, inputs=[ORDERS], on_deserialization_error=DeadLetterTopic("input"))
    assert DeadLetterTopic(ORDERS) == DeadLetterTopic("input")


@pytest.mark.parametrize(("wrong", "error"), [("ignore", ConfigError), (5, TypeError)])
def test_a_choice_that_there_is_not_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        TaskSettings(on_deserialization_error=wrong)


# The topic itself


@pytest.mark.parametrize(
    "make",
    [
        lambda: Topic(5, key=STR, value=STR),  # type: ignore[arg-type]
        lambda: Topic("t", key=str, value=STR),  # type: ignore[arg-type]
        lambda: Topic("t", key=STR, value="str"),  # type: ignore[arg-type]
        lambda: Topic("t", key=STR, value=Unreachable),  # type: ignore[arg-type]
        lambda: Topic("t", STR, STR),  # type: ignore[call-arg]
    ],
)
def test_a_topic_has_a_name_and_two_serdes(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


def test_a_topic_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(ORDERS))
    assert copy.encoded("a", Order(3)) == ORDERS.encoded("a", Order(3)) == (b"a", b'{"cents":3}')
    assert copy.decoded(Record(0, b"a", None)) == Record(0, "a", None)


def test_a_topic_is_an_input_once(tmp_path: Path, log: MemoryChangelog) -> None:
    with pytest.raises(ConfigError):
        single(tmp_path, log, add_up, inputs=[ORDERS, INPUT])


# Global stores


def test_the_global_store_of_a_topic_has_its_serdes(tmp_path: Path, log: MemoryChangelog) -> None:
    named = KeyValue(key=STR, value=INT64, name="named")
    prices = Topic("output", key=STR, value=INT64)
    with log.producer() as producer:
        producer.send(OUTPUT, *prices.encoded("tea", 3))
        producer.send(OUTPUT, *prices.encoded("ink", None))
        producer.flush()
    with GlobalStores(tmp_path, log, {"plain": GlobalStore(prices), "named": GlobalStore(prices, named)}) as stores:
        for view in (stores.view("plain"), stores.view(named)):
            assert (view.get("tea"), view.get("ink")) == (3, None)
    for other in (KeyValue(key=STR, value=STR), "lmdb"):
        with pytest.raises(ConfigError):
            GlobalStore(prices, other)
