"""The configuration of a worker: Kafka's names where Kafka has one. It decides which changelog there is.

In a file of properties a line is ``name=value``. Lines that are empty or begin with # are comments.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from os import PathLike
from typing import Any, Self

from stores.changelog.interface import Changelog
from stores.changelog.partitioners import Partitioner, partitioner_named
from stores.changelog.sqlite import SqliteChangelog
from stores.config import STORE_PROPERTIES, StoreConfig
from stores.contract.levels import Level
from stores.errors import ConfigError, StoreUnavailableError, nearest
from stores.extras import check_extra
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import ProcessingGuarantee
from stores.records.record_kind import RecordKind
from stores.registry import backend_named
from stores.settings import Known, Properties, parsed_as
from stores.tasks.config import TASK_PROPERTIES, TaskConfig
from stores.tasks.global_stores import GlobalStore
from stores.tasks.task_transaction import ThreadTransaction
from stores.tasks.timing import NO_INTERVAL, checked_commit_interval_ms
from stores.telemetry import MetricsRegistry
from stores.telemetry.otlp import INTERVAL_S, OtlpExporter, checked_endpoint
from stores.worker.definition import Definition, StoreSetting
from stores.worker.queries.access import CERTIFICATE, KEY, PORT_MAX, TOKEN, AccessFiles, ServerAddress, server_address
from stores.worker.queries.access import PROPERTY as SERVER
from stores.worker.queries.query_request import PARTITIONER

SESSION_TIMEOUT_S = 45.0
"""Source: Kafka, default of ``session.timeout.ms``."""
_MILLISECONDS_MAX = 2**31 - 1
"""24 days. Kafka has these times in 32 bits, and no thread can wait for any number of seconds."""
SERVERS, FILE = "bootstrap.servers", "changelog.file"
PROMETHEUS, PROMETHEUS_HOST = "metrics.prometheus.port", "metrics.prometheus.host"
OTLP, OTLP_INTERVAL = "metrics.otlp.endpoint", "metrics.otlp.interval.ms"
SCOPE, INSTANCE = "transaction.scope", "group.instance.id"


TIMEOUT_BEYOND_INTERVAL_S = 10.0
"""The time by which a transaction may be open longer than a commit interval. The next owner of a killed worker's tasks
waits for both. Source: Kafka Streams, whose ``transaction.timeout.ms`` is 10 s for an interval of 100 ms."""
TIMEOUT_S_MAX = 900.0
"""Source: Kafka, default of the brokers' ``transaction.max.timeout.ms``."""


class TransactionScope(Level):
    """The tasks of one transaction: the property ``transaction.scope``."""

    TASK = "task"
    """One task. An error rolls back this task alone."""
    THREAD = "thread"
    """All tasks of a stream thread: fewer transactions, and an error rolls back all of them. Source: KIP-447."""

    def transaction(
        self, changelog: Changelog, tasks: TaskConfig, instance: str, thread: int
    ) -> ThreadTransaction | None:
        """Return the transaction of a stream thread, None if each task has its own.

        ``instance`` is unique among the workers of the application that run at the same time.
        """
        if self is TransactionScope.TASK:
            return None
        # No task has such an ID: names of applications have no "/".
        transactional_id = f"{tasks.application_id}/{instance}/{thread}"
        return ThreadTransaction(changelog, transactional_id, timeout_s=transaction_timeout_s(tasks))


def transaction_timeout_s(tasks: TaskConfig) -> float:
    """Return the time for which a transaction of these tasks may be open."""
    interval_ms = checked_commit_interval_ms(tasks.commit_interval_ms, tasks.guarantee)
    if interval_ms == NO_INTERVAL:
        return TIMEOUT_S_MAX
    return min(interval_ms / 1000 + TIMEOUT_BEYOND_INTERVAL_S, TIMEOUT_S_MAX)


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
    "num.stream.threads": ("threads", partial(_at_least, 1)),
    "num.standby.replicas": ("standby_replicas", partial(_at_least, 0)),
    "session.timeout.ms": ("session_timeout_s", _milliseconds),
    "status.interval.ms": ("status_interval_s", _milliseconds),
    SERVER: ("server", str),
    CERTIFICATE: ("certificate", _name),
    KEY: ("key", _name),
    TOKEN: ("token", _name),
    PARTITIONER: ("query_partitioner", partitioner_named),
    SCOPE: ("scope", TransactionScope),
    INSTANCE: ("instance_id", _name),
    PROMETHEUS: ("prometheus_port", _port),
    PROMETHEUS_HOST: ("prometheus_host", _name),
    OTLP: ("otlp_endpoint", checked_endpoint),
    OTLP_INTERVAL: ("otlp_interval_s", _interval),
    FILE: ("changelog_file", str),
    SERVERS: ("servers", str),
}
"""The worker's own properties, besides those of tasks and of stores."""
_OURS: frozenset[str] = frozenset({*WORKER_PROPERTIES, *TASK_PROPERTIES, *STORE_PROPERTIES})


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of one worker. Checked when they are made."""

    tasks: TaskConfig
    client: Mapping[str, Any] = field(repr=False)
    """The settings of the Kafka client, its passwords among them; empty without Kafka."""
    threads: int = 1
    standby_replicas: int = 0
    """The number of standby copies of each task, in other state directories than the task's own."""
    session_timeout_s: float = SESSION_TIMEOUT_S
    """The time in which the worker leaves after SIGTERM. In Kafka also that after which a dead worker is detected."""
    status_interval_s: float = 10.0
    """The time between two status lines, in seconds; 0 for none."""
    scope: TransactionScope = TransactionScope.TASK
    instance_id: str | None = None
    """The name of this worker in the group, by which it gets its tasks back after a restart; None for none."""
    changelog_file: str | None = None
    servers: str | None = None
    server: ServerAddress | None = None
    """The address on which the worker answers queries; None for no queries."""
    access: AccessFiles = field(default_factory=AccessFiles)
    """The encryption and the token of queries."""
    prometheus_port: int | None = None
    """The port on which Prometheus reads the metrics, 0 for any; None for none."""
    prometheus_host: str = "127.0.0.1"
    otlp_endpoint: str | None = None
    """The collector to which the metrics are sent; None for none."""
    otlp_interval_s: float = INTERVAL_S
    query_partitioner: Partitioner | None = None
    """The function that gives the partition of a key, as the producers of the inputs chose it; None if unknown."""

    @classmethod
    def from_properties(cls, application: Definition, properties: Properties) -> Self:
        """Return the settings for an application.

        ``bootstrap.servers`` or ``changelog.file`` decides which changelog the worker uses. With Kafka, names that are
        none of ours are settings of the client.

        Raises: TypeError; ConfigError for an unknown name, with the nearest one, and for a value that does not fit.
        """
        if not isinstance(properties, Mapping):
            raise TypeError(f"properties are a mapping of names to values, not {type(properties).__name__}")
        for name in properties:
            if not isinstance(name, str):
                raise TypeError(f"a property's name is a str, not {type(name).__name__}")
        over_kafka = SERVERS in properties
        if over_kafka == (FILE in properties):
            raise ConfigError(
                f"a worker needs one of the properties {SERVERS} (Kafka) and {FILE} (the embedded changelog)"
            )
        own: dict[str, Any] = {}
        tasks: dict[str, Any] = {"application.id": application.name}
        client: dict[str, Any] = {}
        for name, value in properties.items():
            if name in WORKER_PROPERTIES:
                target, parse = WORKER_PROPERTIES[name]
                own[target] = parsed_as(name, value, parse)
            elif name in _OURS or name.startswith(StoreConfig.OPTION):
                tasks[name] = value
            else:
                client[name] = value
        access = {name: checked_path(own.pop(name)) for name in ("certificate", "key", "token") if name in own}
        if "server" in own:
            own["server"], own["access"] = server_address(own["server"]), AccessFiles(**access)
        elif access:
            raise ConfigError(f"{CERTIFICATE}, {KEY} and {TOKEN} are for queries: give {SERVER}, or drop them")
        if tasks["application.id"] != application.name:
            raise ConfigError(
                f"application.id={tasks['application.id']} contradicts the application's name {application.name!r}: "
                "drop the property"
            )
        for name, needed in ((PROMETHEUS_HOST, PROMETHEUS), (OTLP_INTERVAL, OTLP)):
            if name in properties and needed not in properties:
                raise ConfigError(f"the property {name} needs {needed}: add it, or drop {name}")
        for name in client:
            _check_foreign(name, over_kafka=over_kafka)
        if over_kafka:
            client[SERVERS] = own["servers"]
        elif INSTANCE in properties:
            raise ConfigError(
                f"the property {INSTANCE} needs {SERVERS}: over the embedded changelog the tasks of a killed worker "
                "are free immediately. Drop it"
            )
        settings = cls(TaskConfig.from_properties(tasks, application.topology), client, **own)
        shares = settings.scope is TransactionScope.THREAD
        if shares and settings.tasks.guarantee is not ProcessingGuarantee.EXACTLY_ONCE:
            raise ConfigError(
                f"{SCOPE}=thread needs processing.guarantee=exactly_once_v2: at least once there are no transactions. "
                "Drop one of the two"
            )
        settings.global_stores(application.global_stores)  # Its backend may not fit them.
        return settings

    def open_changelog(self) -> Changelog:
        """Open the changelog. Raises: as ``SqliteChangelog`` and ``KafkaChangelog``."""
        if self.changelog_file is not None:
            return SqliteChangelog(self.changelog_file)
        from stores.changelog.kafka import KafkaChangelog

        return KafkaChangelog(self.client)

    def stores(self, settings: Mapping[str, StoreSetting]) -> dict[str, StoreConfig]:
        """Return the configurations of a task's stores."""
        return {name: self._store(setting) for name, setting in settings.items()}

    def global_stores(self, described: Mapping[str, GlobalStore]) -> dict[str, GlobalStore]:
        """Return global stores with their whole configurations. Raises: ConfigError."""
        return {name: replace(each, store=self._store(each.store)) for name, each in described.items()}

    def persistent_subtopologies(self, application: Definition) -> set[int]:
        """Return the numbers of the sub-topologies with a store whose files outlast a task."""
        return {
            number
            for number, processor in application.processors.items()
            if any(backend_named(config.backend).persistent for config in self.stores(processor.stores).values())
        }

    def _store(self, setting: StoreSetting) -> StoreConfig:
        if setting is None:
            return self.tasks.store
        if isinstance(setting, RecordKind):
            return replace(self.tasks.store, records=setting)
        return setting


def _check_foreign(name: str, *, over_kafka: bool) -> None:
    """Refuse a name that is none of ours, unless it may be one of the client's. Raises: ConfigError."""
    if not over_kafka:
        raise ConfigError(f"no property {name!r}{nearest(name, _OURS)}. Settings of the Kafka client need {SERVERS}")
    from stores.changelog.kafka.client import KNOWN

    near = get_close_matches(name, _OURS.union(KNOWN), n=1, cutoff=0.8)
    if name not in KNOWN and near and near[0] in _OURS:
        raise ConfigError(f"no property {name!r}{nearest(name, near)}")


_BYTES_MAX = 1 << 20


def read_properties(path: str | PathLike[str]) -> dict[str, str]:
    """Return the properties of a file, by name. Raises: ConfigError; StoreUnavailableError if it can't be read."""
    file = checked_path(path)
    with translated_system_errors(file), open(file, "rb") as stream:
        content = stream.read(_BYTES_MAX + 1)
    if len(content) > _BYTES_MAX:
        raise ConfigError(f"{file} has more than {_BYTES_MAX:,} bytes: choose a file of properties")
    try:
        # Editors on Windows begin a file with a byte order mark.
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: choose a file of properties") from None
    values: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        # The line itself may have a secret.
        if not equals or not name:
            raise ConfigError(f"{file}, line {number}: not a property. Write it as name=value")
        if name in values:
            raise ConfigError(f"{file}, line {number}: {name} is there twice, drop one")
        values[name] = value
    return values


_log = logging.getLogger(__name__)


def exports_metrics(settings: WorkerSettings) -> bool:
    """Return True if the properties ask for an exporter."""
    return settings.prometheus_port is not None or settings.otlp_endpoint is not None


@contextmanager
def exported_metrics(settings: WorkerSettings, application: str, registry: MetricsRegistry) -> Iterator[None]:
    """Export the metrics of ``registry`` during the block. Raises: ConfigError if a port can't be had."""
    with ExitStack() as exporters:
        if settings.prometheus_port is not None:
            from stores.telemetry.prometheus import PrometheusEndpoint

            host = settings.prometheus_host
            try:
                endpoint = PrometheusEndpoint(registry, host=host, port=settings.prometheus_port)
            except StoreUnavailableError as error:
                raise ConfigError(f"properties {PROMETHEUS} and {PROMETHEUS_HOST}: {error}") from error
            exporters.enter_context(endpoint)
            _log.info("metrics at http://%s:%d/metrics", host, endpoint.port)
        if settings.otlp_endpoint is not None:
            exporter = OtlpExporter(
                registry, settings.otlp_endpoint, service=application, interval_s=settings.otlp_interval_s
            )
            exporters.enter_context(exporter)
        yield
