"""The worker's own properties, besides those of tasks and of stores: Kafka's names where Kafka has one."""

from __future__ import annotations

from functools import partial

from stores.changelog.partitioners import PARTITIONERS, partitioner_named
from stores.extras import check_extra
from stores.settings import SAME, Known, Property, one_of
from stores.telemetry.otlp import checked_endpoint
from stores.worker.log_format import LogFormat
from stores.worker.queries.access import CERTIFICATE, KEY, PORT_MAX, TOKEN
from stores.worker.queries.access import PROPERTY as SERVER
from stores.worker.queries.query_request import PARTITIONER
from stores.worker.transaction_scope import TransactionScope

_MILLISECONDS_MAX = 2**31 - 1
"""24 days. Kafka has these times in 32 bits, and no thread can wait for any number of seconds."""
SERVERS, FILE = "bootstrap.servers", "changelog.file"
METRICS_PORT, METRICS_HOST = "metrics.port", "metrics.host"
OTLP, OTLP_INTERVAL = "metrics.otlp.endpoint", "metrics.otlp.interval.ms"
SCOPE, INSTANCE = "transaction.scope", "group.instance.id"
_TIME = f"a whole number from 0 to {_MILLISECONDS_MAX}"
_NOT_SET = "not set"
_OWN_SERVER = "none: Kafka Streams leaves the server to the application"
_REPORTERS = "`metric.reporters`"


def _milliseconds(text: str) -> float:
    number = _at_least(0, text)
    if number > _MILLISECONDS_MAX:
        raise ValueError(text)
    return number / 1000


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= PORT_MAX:
        raise ValueError(text)
    check_extra("prometheus")
    return number


def _interval(text: str) -> float:
    return max(_milliseconds(text), 0.001)


def _name(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _at_least(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise ValueError(text)
    return number


WORKER_PROPERTIES: Known = {
    SERVERS: Property(
        "servers",
        str,
        "addresses HOST:PORT with commas between them",
        "the addresses of Kafka's brokers",
        SAME,
        default=f"required, unless {FILE} is set",
    ),
    FILE: Property(
        "changelog_file",
        str,
        "a file",
        "the file of the embedded changelog, which all workers of the machine share",
        "none: Kafka Streams needs brokers",
        default=f"required, unless {SERVERS} is set",
    ),
    "num.stream.threads": Property(
        "threads", partial(_at_least, 1), "a whole number from 1", "the number of threads that run tasks", SAME
    ),
    "num.standby.replicas": Property(
        "standby_replicas",
        partial(_at_least, 0),
        "a whole number from 0",
        "standby copies of each task, in other state directories than the task's. Give all workers the same",
        SAME,
    ),
    "session.timeout.ms": Property(
        "session_timeout_s",
        _milliseconds,
        _TIME,
        "the time in which a worker leaves after SIGTERM; Kafka detects a killed worker after it",
        "the same name, of its consumers",
        "ms",
    ),
    "status.interval.ms": Property(
        "status_interval_s",
        _milliseconds,
        _TIME,
        "the time between two status lines on the standard error; 0 for none",
        "`log.summary.interval.ms`",
        "ms",
    ),
    SCOPE: Property(
        "scope",
        TransactionScope,
        one_of(TransactionScope),
        "the tasks of one transaction: each its own, or all tasks of a thread",
        "none: `exactly_once_v2` has one for each thread",
    ),
    INSTANCE: Property(
        "instance_id",
        _name,
        "a name",
        "the name of this worker in Kafka's group, by which it gets its tasks back after a restart",
        "the same name, of its consumers",
        default=_NOT_SET,
    ),
    SERVER: Property(
        "server",
        str,
        "HOST:PORT, or PORT on loopback",
        "the address of queries from other processes, and of /livez, /readyz and /metrics (extra http)",
        "the same name; the application serves it",
        default=_NOT_SET,
    ),
    CERTIFICATE: Property(
        "certificate", _name, "a file in PEM", "the certificate of queries over TLS", _OWN_SERVER, default=_NOT_SET
    ),
    KEY: Property("key", _name, "a file in PEM", "the key of that certificate", _OWN_SERVER, default=_NOT_SET),
    TOKEN: Property(
        "token", _name, "a file", "the file with the token that queries must have", _OWN_SERVER, default=_NOT_SET
    ),
    PARTITIONER: Property(
        "query_partitioner",
        partitioner_named,
        one_of(PARTITIONERS),
        "the partitioner of the producers of the inputs, by which a query finds the partition of its key",
        "none: `queryMetadataForKey` takes a partitioner",
        default=_NOT_SET,
    ),
    "log.format": Property(
        "log_format",
        LogFormat,
        one_of(LogFormat),
        "the form of the standard error of the command: text, or one JSON object a line",
        "none: the application configures its logging",
    ),
    METRICS_PORT: Property(
        "metrics_port",
        _port,
        f"a port from 0 to {PORT_MAX}, 0 for a free one",
        "the port of /metrics for Prometheus, and of /livez and /readyz (extra prometheus)",
        _REPORTERS,
        default=_NOT_SET,
    ),
    METRICS_HOST: Property("metrics_host", _name, "an address", "the address of that port", _REPORTERS),
    OTLP: Property(
        "otlp_endpoint",
        checked_endpoint,
        "an address such as http://127.0.0.1:4318",
        "the collector to which the metrics are sent by OTLP over HTTP, in JSON",
        "`enable.metrics.push` (KIP-714)",
        default=_NOT_SET,
    ),
    OTLP_INTERVAL: Property(
        "otlp_interval_s",
        _interval,
        _TIME,
        "the time between two reports to the collector",
        "none: brokers ask for an interval (KIP-714)",
        "ms",
    ),
}
