"""The configuration of a worker: Kafka's names where Kafka has one. It decides which changelog there is.

In a file of properties a line is ``name=value``. Lines that are empty or begin with # are comments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Self
from wsgiref.types import WSGIApplication

from stores.changelog.interface import Changelog
from stores.changelog.partitioners import Partitioner
from stores.changelog.sqlite import SqliteChangelog
from stores.config import STORE_PROPERTIES, StoreConfig
from stores.declarations import Stores, configurations, configured
from stores.errors import ConfigError, StoreUnavailableError
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import ProcessingGuarantee
from stores.memory_limit import PROPERTY, MemoryParts, available_memory, default_limit, warning_for
from stores.registry import backend_named
from stores.settings import Properties, parsed_as
from stores.tasks.config import TASK_PROPERTIES, TaskConfig
from stores.tasks.global_copy import GlobalStore
from stores.telemetry import MetricsRegistry
from stores.telemetry.otlp import INTERVAL_S, OtlpExporter
from stores.worker.definition import Definition
from stores.worker.foreign_names import check_foreign
from stores.worker.log_format import LogFormat
from stores.worker.queries.access import CERTIFICATE, KEY, TOKEN, AccessFiles, ServerAddress, server_address
from stores.worker.queries.access import PROPERTY as SERVER
from stores.worker.transaction_scope import TransactionScope
from stores.worker.worker_properties import (
    FILE,
    INSTANCE,
    METRICS_HOST,
    METRICS_PORT,
    OTLP,
    OTLP_INTERVAL,
    SCOPE,
    SERVERS,
    WORKER_PROPERTIES,
)

SESSION_TIMEOUT_S = 45.0
"""Source: Kafka, default of ``session.timeout.ms``."""
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
    log_format: LogFormat = LogFormat.TEXT
    """The form of what the command writes to the standard error."""
    scope: TransactionScope = TransactionScope.TASK
    instance_id: str | None = None
    """The name of this worker in the group, by which it gets its tasks back after a restart; None for none."""
    changelog_file: str | None = None
    servers: str | None = None
    server: ServerAddress | None = None
    """The address on which the worker answers queries; None for no queries."""
    access: AccessFiles = field(default_factory=AccessFiles)
    """The encryption and the token of queries."""
    metrics_port: int | None = None
    """The port on which Prometheus reads the metrics, 0 for any; None for none."""
    metrics_host: str = "127.0.0.1"
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
                own[WORKER_PROPERTIES[name].setting] = parsed_as(name, value, WORKER_PROPERTIES[name])
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
        for name, needed in ((METRICS_HOST, METRICS_PORT), (OTLP_INTERVAL, OTLP)):
            if name in properties and needed not in properties:
                raise ConfigError(f"the property {name} needs {needed}: add it, or drop {name}")
        for name in client:
            check_foreign(name, _OURS, servers=SERVERS, over_kafka=over_kafka)
        if over_kafka:
            client[SERVERS] = own["servers"]
        elif INSTANCE in properties:
            raise ConfigError(
                f"the property {INSTANCE} needs {SERVERS}: over the embedded changelog the tasks of a killed worker "
                "are free immediately. Drop it"
            )
        settings = cls(_with_limit(TaskConfig.from_properties(tasks, application.topology)), client, **own)
        shares = settings.scope is TransactionScope.THREAD
        if shares and settings.tasks.guarantee is not ProcessingGuarantee.EXACTLY_ONCE:
            raise ConfigError(
                f"{SCOPE}=thread needs processing.guarantee=exactly_once_v2: at least once there are no transactions. "
                "Drop one of the two"
            )
        for processor in application.processors.values():
            settings.stores(processor.stores)
        settings.global_stores(application.global_stores)  # Its backend may not fit them.
        return settings

    def open_changelog(self, while_connecting: Callable[[], None] | None = None) -> Changelog:
        """Open the changelog. Raises: as ``SqliteChangelog`` and ``KafkaChangelog``; ``while_connecting``."""
        if self.changelog_file is not None:
            return SqliteChangelog(self.changelog_file)
        from stores.changelog.kafka import KafkaChangelog, buffer_limits

        limits = buffer_limits(self.memory.client_bytes, self.threads, self.client)
        return KafkaChangelog({**limits, **self.client}, while_connecting=while_connecting)

    @property
    def memory(self) -> MemoryParts:
        """The parts of the limit on the memory of the worker."""
        assert self.tasks.store.memory is not None, "a worker has a limit"
        return self.tasks.store.memory

    def log_memory(self) -> None:
        """Log the limit on memory with its parts, and a warning if the process can't have that much."""
        available = available_memory()
        _log.info("memory of this worker: %s (%s)", self.memory, PROPERTY)
        if warning := warning_for(self.memory.max_bytes, available):
            _log.warning("%s", warning)

    def stores(self, stores: Stores) -> dict[str, StoreConfig]:
        """Return the configurations of a task's stores. Raises: ConfigError."""
        return {name: self._limited(name, each) for name, each in configurations(stores, self.tasks.store).items()}

    def global_stores(self, described: Mapping[str, GlobalStore]) -> dict[str, GlobalStore]:
        """Return global stores with their whole configurations. Raises: ConfigError."""
        default = self.tasks.store
        return {
            name: replace(each, store=self._limited(name, configured(each.store, default)))
            for name, each in described.items()
        }

    def _limited(self, name: str, config: StoreConfig) -> StoreConfig:
        """Return a store's configuration with the limit of the worker, which is that of its process."""
        if config.memory_max_bytes not in (None, self.memory.max_bytes):
            raise ConfigError(
                f"store {name!r} has memory_max_bytes={config.memory_max_bytes:,}, and its worker "
                f"{self.memory.max_bytes:,}: all stores of a process share one limit. Set the property {PROPERTY} to "
                "it, and leave it out of the store"
            )
        return replace(config, memory_max_bytes=self.memory.max_bytes)

    def persistent_subtopologies(self, application: Definition) -> set[int]:
        """Return the numbers of the sub-topologies with a store whose files outlast a task."""
        return {
            number
            for number, processor in application.processors.items()
            if any(backend_named(config.backend).persistent for config in self.stores(processor.stores).values())
        }


def _with_limit(tasks: TaskConfig) -> TaskConfig:
    """Return the configuration with a limit on memory: its own, or one by the size of the container or machine."""
    store, limit_bytes = tasks.store, tasks.store.memory_max_bytes
    limit_bytes = default_limit(available_memory()) if limit_bytes is None else limit_bytes
    return replace(tasks, store=replace(store, memory_max_bytes=limit_bytes))


_BYTES_MAX = 1 << 20


def read_properties(path: str | PathLike[str]) -> dict[str, str]:
    """Return the properties of a file, by name.

    Raises: ConfigError, also if there is no such file; StoreUnavailableError if it can't be read.
    """
    file = checked_path(path)
    if not file.exists():
        raise ConfigError(f"there is no file of properties {file}: write it, or correct its name")
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


@contextmanager
def exported_metrics(
    settings: WorkerSettings,
    application: str,
    registry: MetricsRegistry,
    around: Callable[[WSGIApplication], WSGIApplication] = lambda metrics: metrics,
) -> Iterator[None]:
    """Export the metrics of ``registry`` during the block; ``around`` adds paths to the port of Prometheus.

    Raises: ConfigError if a port can't be had.
    """
    with ExitStack() as exporters:
        if settings.metrics_port is not None:
            from stores.telemetry.prometheus import PrometheusEndpoint

            host = settings.metrics_host
            try:
                endpoint = PrometheusEndpoint(registry, host=host, port=settings.metrics_port, around=around)
            except StoreUnavailableError as error:
                raise ConfigError(f"properties {METRICS_PORT} and {METRICS_HOST}: {error}") from error
            exporters.enter_context(endpoint)
            _log.info("metrics at http://%s:%d/metrics", host, endpoint.port)
        if settings.otlp_endpoint is not None:
            exporter = OtlpExporter(
                registry, settings.otlp_endpoint, service=application, interval_s=settings.otlp_interval_s
            )
            exporters.enter_context(exporter)
        yield
