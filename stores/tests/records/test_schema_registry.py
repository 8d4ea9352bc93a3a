"""Serdes of a schema registry: over a registry on loopback, with the serializers of confluent-kafka themselves."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bottle import HTTPResponse
from google.rpc.http_pb2 import HttpHeader, HttpRequest

from stores import open_store
from stores.changelog import MemoryChangelog, Record
from stores.errors import ConfigError, DeserializationError, SchemaRegistryTimeoutError
from stores.interface import TopicPartition
from stores.records import STR, KeyValue
from stores.records.schema_registry import SchemaRegistry, avro, json_schema, protobuf
from stores.tasks import DeadLetterTopic, TaskContext, Topic
from stores.tests.records.loopback_registry import LoopbackRegistry, loopback_registry
from stores.tests.tasks.setup import INPUT, OUTPUT, single

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "cents", "type": "long"}]}
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "currency", "type": "string", "default": "EUR"}]}
INCOMPATIBLE = {**AVRO, "fields": [*AVRO["fields"], {"name": "currency", "type": "string"}]}
JSON_SCHEMA = {"title": "Order", "type": "object", "properties": {"cents": {"type": "integer"}}}


@pytest.fixture
def log() -> Iterator[MemoryChangelog]:
    """Return a changelog with the topics of a task."""
    with MemoryChangelog() as log:
        log.create_topic("input")
        log.create_topic("output")
        yield log


@pytest.fixture
def loopback() -> Iterator[LoopbackRegistry]:
    with loopback_registry() as registry:
        yield registry


def client(url: str, **properties: Any) -> SchemaRegistry:
    """Return a registry that is asked once."""
    return SchemaRegistry({"url": url, "max.retries": 0, **properties})


def orders(url: str, schema: Mapping[str, Any] = AVRO, **options: Any) -> Topic[str, Any]:
    return Topic("input", key=STR, value=avro(client(url), json.dumps(schema), **options))


def record_of(topic: Topic[str, Any], value: Any) -> Record:
    return Record(0, *topic.encoded("ann", value))


KINDS: Mapping[str, Any] = {
    "avro": (lambda registry: avro(registry, json.dumps(AVRO)), {"cents": 5}, {"cents": "many"}),
    "json_schema": (lambda registry: json_schema(registry, json.dumps(JSON_SCHEMA)), {"cents": 5}, {"cents": "many"}),
    "protobuf": (lambda registry: protobuf(registry, HttpHeader), HttpHeader(key="a"), HttpRequest(uri="b")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_written_with_the_id_of_their_schema_and_read_again(loopback: LoopbackRegistry, kind: str) -> None:
    make, value, other = KINDS[kind]
    topic: Topic[str, Any] = Topic("input", key=STR, value=make(client(loopback.url)))
    assert loopback.requests == []  # Nothing is asked before the first record.
    record = record_of(topic, value)
    assert record.value is not None
    assert record.value[:5] == b"\0\0\0\0\1"
    assert topic.decoded(record) == (0, "ann", value, -1, ())
    assert list(loopback.subjects) == ["input-value"]
    # The registry is asked once for a schema, and others read what this one has written.
    asked = len(loopback.requests)
    assert record_of(topic, value) == record
    assert len(loopback.requests) == asked
    reader: Topic[str, Any] = Topic("input", key=STR, value=make(client(loopback.url)))
    assert reader.decoded(record).value == value
    assert pickle.loads(pickle.dumps(topic)).decoded(record).value == value
    with pytest.raises((TypeError, ValueError)) as error:
        topic.encoded("ann", other)
    assert not isinstance(error.value, ConfigError)
    assert "'input'" in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_was_not_written_with_the_registry_is_unreadable(loopback: LoopbackRegistry, kind: str) -> None:
    make, value, _ = KINDS[kind]
    topic: Topic[str, Any] = Topic("input", key=STR, value=make(client(loopback.url)))
    topic.encoded("ann", value)
    unknown_id, damaged = b"\0\0\0\0\7\2", b"\0\0\0\0\1\xff"
    for data in (b"", b"{}", b'{"cents": 5}', unknown_id, damaged):
        with pytest.raises(DeserializationError):
            topic.decoded(Record(0, b"ann", data))


def test_a_newer_schema_reads_what_an_older_one_has_written(loopback: LoopbackRegistry) -> None:
    old, new = orders(loopback.url), orders(loopback.url, NEWER)
    assert new.decoded(record_of(old, {"cents": 5})).value == {"cents": 5, "currency": "EUR"}
    written = record_of(new, {"cents": 6, "currency": "USD"})
    assert old.decoded(written).value == {"cents": 6}
    assert loopback.subjects == {"input-value": [1, 2]}


def test_an_incompatible_schema_is_a_mistake_in_the_configuration(loopback: LoopbackRegistry) -> None:
    orders(loopback.url).encoded("ann", {"cents": 5})
    with pytest.raises(ConfigError):
        orders(loopback.url, INCOMPATIBLE).encoded("ann", {"cents": 5, "currency": "USD"})
    assert loopback.subjects == {"input-value": [1]}


def test_each_refusal_of_the_registry_is_an_error_of_the_library(loopback: LoopbackRegistry) -> None:
    written = record_of(orders(loopback.url), {"cents": 5})
    topic = orders(loopback.url)
    for status in (401, 403, 422, 429, 500, 503):
        error = SchemaRegistryTimeoutError if status == 429 or status >= 500 else ConfigError
        loopback.answers = iter([status, status])
        for call in (lambda: topic.encoded("ann", {"cents": 5}), lambda: topic.decoded(written)):
            with pytest.raises(error):
                call()
    assert topic.decoded(written).value == {"cents": 5}


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (404, b"<html>Not found</html>"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
        (200, b"<html>Log in</html>"),
        (200, b""),
        (200, b"[]"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_registry_leaves_no_record_out(
    loopback: LoopbackRegistry, kind: str, status: int, content: bytes
) -> None:
    make, value, _ = KINDS[kind]
    written: Topic[str, Any] = Topic("input", key=STR, value=make(client(loopback.url)))
    record = record_of(written, value)
    loopback.answers = repeat(HTTPResponse(content, status))
    topic: Topic[str, Any] = Topic("input", key=STR, value=make(client(loopback.url)))
    with pytest.raises(ConfigError):
        topic.encoded("ann", value)
    with pytest.raises(ConfigError):
        topic.decoded(record)


def test_a_schema_that_nobody_may_register_is_not_written_with(loopback: LoopbackRegistry) -> None:
    topic = orders(loopback.url, serializer={"auto.register.schemas": False})
    with pytest.raises(ConfigError):
        topic.encoded("ann", {"cents": 5})
    assert loopback.subjects == {}


def free_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_registry_that_is_away_is_asked_again_and_leaves_no_record_out(
    tmp_path: Path, log: MemoryChangelog, loopback: LoopbackRegistry
) -> None:
    with log.producer() as producer:
        for cents in range(3):
            producer.send(INPUT, *orders(loopback.url).encoded("ann", {"cents": cents}))
        producer.flush()
    away = orders(free_url())
    with pytest.raises(SchemaRegistryTimeoutError):
        away.encoded("ann", {"cents": 5})
    task = single(tmp_path, log, lambda record, context: None, inputs=[away], on_error="skip", task_timeout_s=0)
    task.open()
    with pytest.raises(SchemaRegistryTimeoutError):
        task.run()
    assert (task.input_offsets(), task.metrics.skipped_total) == ({INPUT: 0}, 0)
    task.close(clean=False)
    # A task that has time asks again.
    seen: list[Any] = []

    def process(record: Record[str, Any], context: TaskContext) -> None:
        seen.append(record.value)

    loopback.answers = iter([503, 503])
    with single(tmp_path / "again", log, process, inputs=[orders(loopback.url)], task_timeout_s=60) as task:
        task.run()
    assert seen == [{"cents": cents} for cents in range(3)]


def test_a_registry_that_never_answers_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        value = avro(client(url, timeout=0.05), json.dumps(AVRO))
        with pytest.raises(SchemaRegistryTimeoutError):
            Topic("input", key=STR, value=value).encoded("ann", {"cents": 5})
    assert client(url).client.config()["timeout"] > 0  # The client alone has none.


def test_a_task_reads_and_writes_values_of_a_type_through_the_registry(
    tmp_path: Path, log: MemoryChangelog, loopback: LoopbackRegistry
) -> None:
    class Order(msgspec.Struct):
        cents: int

    registry = client(loopback.url)
    typed = avro(registry, json.dumps(AVRO)).converted(msgspec.to_builtins, lambda data: msgspec.convert(data, Order))
    incoming, outgoing = Topic("input", key=STR, value=typed), Topic("output", key=STR, value=typed)

    def double(record: Record[str, Order], context: TaskContext) -> None:
        if record.value is not None:
            context.forward(outgoing, record.key, Order(2 * record.value.cents))

    log.create_topic("dead")
    with log.producer() as producer:
        producer.send(INPUT, *incoming.encoded("ann", Order(5)))
        producer.send(INPUT, b"ann", b'{"cents": 5}')
        producer.send(INPUT, *incoming.encoded("ann", None))
        producer.flush()
    with single(tmp_path, log, double, inputs=[incoming], on_deserialization_error=DeadLetterTopic("dead")) as task:
        task.run()
    assert [outgoing.decoded(record).value for record in log.read(OUTPUT)] == [Order(10)]
    assert [letter.value for letter in log.read(TopicPartition("dead", 0))] == [b'{"cents": 5}']
    assert sorted(loopback.subjects) == ["input-value", "output-value"]


def test_a_serde_without_a_topic_asks_for_one(loopback: LoopbackRegistry) -> None:
    serde = avro(client(loopback.url), json.dumps(AVRO))
    with KeyValue(key=STR, value=serde).over(open_store("memory", "a")) as store, pytest.raises(ConfigError):
        store.put("a", {"cents": 5})
    of_orders = serde.of_topic("orders", "value")
    in_cents = of_orders.converted(lambda cents: {"cents": cents}, lambda order: order["cents"])
    for each, value in ((of_orders, {"cents": 5}), (in_cents, 5)):
        with KeyValue(key=STR, value=each).over(open_store("memory", "b")) as store:
            store.put("a", value)
            assert store.get("a") == value
    assert list(loopback.subjects) == ["orders-value"]


def test_keys_and_values_of_a_topic_have_a_subject_each(loopback: LoopbackRegistry) -> None:
    serde = avro(client(loopback.url), json.dumps(AVRO))
    topic = Topic("orders", key=serde, value=serde)
    record = Record(0, *topic.encoded({"cents": 1}, {"cents": 2}))
    assert sorted(loopback.subjects) == ["orders-key", "orders-value"]
    assert topic.decoded(record)[1:3] == ({"cents": 1}, {"cents": 2})


@pytest.mark.parametrize(
    "make",
    [
        lambda url: SchemaRegistry("loopback:1"),
        lambda url: SchemaRegistry({}),
        lambda url: SchemaRegistry({"url": url, "nope": 1}),
        lambda url: avro(client(url), "{"),
        lambda url: avro(client(url), '{"type": "nope"}'),
        lambda url: avro(client(url), json.dumps(AVRO), serializer={"nope": 1}),
        lambda url: json_schema(client(url), json.dumps(JSON_SCHEMA), deserializer={"nope": 1}),
    ],
)
def test_a_mistake_is_refused_before_anything_is_asked(loopback: LoopbackRegistry, make: Any) -> None:
    with pytest.raises(ConfigError):
        make(loopback.url)
    assert loopback.requests == []


def test_the_extra_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigError, match="schema-registry"):
        SchemaRegistry("http://127.0.0.1:1")
