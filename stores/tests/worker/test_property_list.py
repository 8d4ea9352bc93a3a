"""The reference of properties: the page and the command have each property that a worker takes, as the code has it."""

from __future__ import annotations

from pathlib import Path

import pytest

import stores
from stores.changelog.kafka.client import KNOWN
from stores.config import STORE_PROPERTIES, StoreConfig
from stores.registry import backends
from stores.tasks.config import TASK_PROPERTIES
from stores.worker.__main__ import main
from stores.worker.foreign_names import STREAMS_ANSWERS
from stores.worker.property_list import as_markdown, sections
from stores.worker.worker_properties import WORKER_PROPERTIES

PAGE = Path(stores.__file__).parents[1] / "docs" / "properties.md"
OURS = {*WORKER_PROPERTIES, *TASK_PROPERTIES, *STORE_PROPERTIES}
OF_KAFKA_STREAMS = """
    acceptable.recovery.lag application.id application.server bootstrap.servers buffered.records.per.partition
    built.in.metrics.version cache.max.bytes.buffering client.id commit.interval.ms default.client.supplier
    default.deserialization.exception.handler default.dsl.store default.key.serde default.list.key.serde.inner
    default.list.key.serde.type default.list.value.serde.inner default.list.value.serde.type
    default.production.exception.handler default.timestamp.extractor default.value.serde
    deserialization.exception.handler dsl.store.suppliers.class ensure.explicit.internal.resource.naming
    log.summary.interval.ms max.task.idle.ms max.warmup.replicas metadata.max.age.ms metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms num.standby.replicas num.stream.threads
    poll.ms probing.rebalance.interval.ms processing.exception.handler processing.guarantee processor.wrapper.class
    production.exception.handler rack.aware.assignment.non_overlap_cost rack.aware.assignment.strategy
    rack.aware.assignment.tags rack.aware.assignment.traffic_cost receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms repartition.purge.interval.ms replication.factor request.timeout.ms retry.backoff.ms
    rocksdb.config.setter security.protocol send.buffer.bytes state.cleanup.delay.ms state.dir
    statestore.cache.max.bytes task.assignor.class task.timeout.ms topology.optimization upgrade.from window.size.ms
    windowed.inner.class.serde windowstore.changelog.additional.retention.ms
"""
"""Source: Kafka 4.1, ``StreamsConfig``, without settings that only Java's clients have by the same name."""


def test_the_page_is_what_the_code_has() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(), "txstores worker --list-properties markdown writes it"


def test_the_list_has_each_property_once_and_says_what_it_takes() -> None:
    rows = [row for _, some in sections() for row in some]
    names = [row.name for row in rows if not row.name.startswith(StoreConfig.OPTION)]
    assert sorted(names) == sorted(OURS)
    options = {name for backend in backends().values() for name in backend.options}
    assert {row.name for row in rows} - {*names} == {StoreConfig.OPTION + name for name in options}
    assert [row.name for row in rows if not all((row.values, row.default, row.meaning, row.kafka))] == []


def test_a_default_has_the_unit_of_its_property() -> None:
    rows = {row.name: row for _, some in sections() for row in some}
    assert rows["session.timeout.ms"][2:4] == ("45,000", "ms")
    assert rows["task.timeout.ms"][2:4] == ("300,000", "ms")
    assert rows["restore.max.bytes"][2:4] == ("33,554,432", "bytes")
    assert rows["changelog.coalescing"].default == "true"


def test_each_property_of_kafka_streams_is_ours_or_the_clients_or_has_an_answer() -> None:
    assert {*OF_KAFKA_STREAMS.split()} <= OURS | {*KNOWN} | STREAMS_ANSWERS.keys()
    assert not STREAMS_ANSWERS.keys() & OURS


def test_the_command_lists_them_without_an_application(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--list-properties"])
    assert error.value.code == 0
    output = capsys.readouterr().out
    assert [name for name in sorted(OURS) if f"  {name}\n" not in output] == []
