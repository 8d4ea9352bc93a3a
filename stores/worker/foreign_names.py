"""Names of properties that are none of ours: those of the Kafka client, and those of Kafka Streams with an answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from stores.errors import ConfigError, nearest

_ANSWERS = {
    "give each topic and each store its serdes in the application, as in Topic('orders', key=STR, value=JSON) of "
    "stores.worker and KeyValue(key=STR, value=INT64) of stores.records": """
        default.key.serde default.value.serde default.list.key.serde.inner default.list.key.serde.type
        default.list.value.serde.inner default.list.value.serde.type windowed.inner.class.serde
    """,
    "set options of the engine by properties store.option.NAME, such as store.option.block_cache_size_bytes": """
        rocksdb.config.setter
    """,
    "choose the engine with store.backend": "default.dsl.store dsl.store.suppliers.class",
    "describe each store that is to keep headers as TimestampedKeyValueWithHeaders or VersionedWithHeaders, or a "
    "window or session with headers=True, in the application": """
        dsl.store.format
    """,
    "drop it. A task takes the earliest of the next records of its inputs, as with 0, and does not wait for an "
    "input that is empty": """
        max.task.idle.ms buffered.records.per.partition
    """,
    "topics get the brokers' default.replication.factor: set that at the brokers, or create the topics before": """
        replication.factor
    """,
    "drop it. There is no record cache: uncommitted writes are limited by statestore.uncommitted.max.bytes, and "
    "changelog.coalescing logs one record for all updates of a key within a commit": """
        cache.max.bytes.buffering statestore.cache.max.bytes
    """,
    "give a Processor on_error='skip' or a DeadLetterTopic for records that its function can't process": """
        processing.exception.handler
    """,
    "give a Processor or a GlobalStore on_deserialization_error='skip' or a DeadLetterTopic for records that a serde "
    "can't read": """
        default.deserialization.exception.handler deserialization.exception.handler
        processing.exception.handler.global.enabled
    """,
    "give a Processor or a GlobalStore the choice DeadLetterTopic('topic')": """
        errors.dead.letter.queue.topic.name
    """,
    "drop it. An output that the brokers refuse ends the worker, and nothing of its transaction is kept": """
        default.production.exception.handler production.exception.handler
    """,
    "drop it. The time of a record is that in its topic": """
        default.timestamp.extractor
    """,
    "set status.interval.ms, which has the time between two status lines": "log.summary.interval.ms",
    "set metrics.port for Prometheus, or metrics.otlp.endpoint for a collector": """
        metric.reporters built.in.metrics.version metrics.num.samples metrics.sample.window.ms
    """,
    "drop it. Kafka's group assigns the tasks, and each worker finds out which copies it keeps": """
        acceptable.recovery.lag max.warmup.replicas probing.rebalance.interval.ms task.assignor.class
        rack.aware.assignment.non_overlap_cost rack.aware.assignment.strategy rack.aware.assignment.tags
        rack.aware.assignment.traffic_cost
    """,
    "give the window or session store its retention in the application": """
        window.size.ms windowstore.changelog.additional.retention.ms
    """,
    "drop it. There is no DSL whose topology could be optimized, and all topics and stores have the names that the "
    "application gives them": """
        topology.optimization ensure.explicit.internal.resource.naming processor.wrapper.class
        repartition.purge.interval.ms
    """,
    "restart the workers one after the other with the new release": "upgrade.from",
    "drop it. A function gets one record at a time; give a Processor with process_batch its batch_max_records": """
        max.poll.records
    """,
    "drop it. The client has no counterpart": "poll.ms default.client.supplier config.providers",
    "its name in this client is socket.receive.buffer.bytes": "receive.buffer.bytes",
    "its name in this client is socket.send.buffer.bytes": "send.buffer.bytes",
}
STREAMS_ANSWERS: Mapping[str, str] = {name: answer for answer, names in _ANSWERS.items() for name in names.split()}
"""By a name of Kafka Streams without counterpart: what to do instead. Source: Kafka 4.1, ``StreamsConfig``
and the defaults that it gives to its consumers; KIP-1285."""
_PREFIXES = ("consumer.", "main.consumer.", "restore.consumer.", "global.consumer.", "producer.", "admin.")


def check_foreign(name: str, ours: Collection[str], *, servers: str, over_kafka: bool) -> None:
    """Refuse a name that is none of ``ours``, unless it may be one of the client's. Raises: ConfigError."""
    if name in STREAMS_ANSWERS:
        raise ConfigError(f"Kafka Streams has the property {name!r}, and a worker has not: {STREAMS_ANSWERS[name]}")
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            raise ConfigError(
                f"no property {name!r}: all clients of a worker have the same settings, so leave {prefix!r} out"
            )
    if not over_kafka:
        raise ConfigError(f"no property {name!r}{nearest(name, ours)}. Settings of the Kafka client need {servers}")
    from stores.changelog.kafka.client import KNOWN

    near = get_close_matches(name, {*ours, *KNOWN}, n=1, cutoff=0.8)
    if name not in KNOWN and near and near[0] in ours:
        raise ConfigError(f"no property {name!r}{nearest(name, near)}")
