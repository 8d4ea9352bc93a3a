"""The configuration of a worker: Kafka's names where Kafka has one. It decides which changelog there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Self

from stores.changelog.interface import Changelog
from stores.changelog.sqlite import SqliteChangelog
from stores.config import STORE_PROPERTIES, StoreConfig
from stores.errors import ConfigError
from stores.interface import ProcessingGuarantee
from stores.records.record_kind import RecordKind
from stores.registry import backend_named
from stores.settings.properties import Known, Properties, parsed_as
from stores.tasks.config import TASK_PROPERTIES, TaskConfig
from stores.tasks.global_store import GlobalStore
from stores.worker.definition import Definition, StoreSetting
from stores.worker.queries.address import PROPERTY as SERVER
from stores.worker.queries.address import ServerAddress, server_address
from stores.worker.queries.partitioners import PROPERTY as PARTITIONER
from stores.worker.queries.partitioners import Partitioner, partitioner
from stores.worker.transaction_scope import TransactionScope

SESSION_TIMEOUT_S = 45.0
"""Source: Kafka, default of ``session.timeout.ms``."""
_MILLISECONDS_MAX = 2**31 - 1
"""24 days. Kafka has these times in 32 bits, and no thread can wait for any number of seconds."""
SERVERS, FILE = "bootstrap.servers", "changelog.file"
SCOPE, INSTANCE = "transaction.scope", "group.instance.id"


def _threads(text: str) -> int:
    return _at_least(1, text)


def _replicas(text: str) -> int:
    return _at_least(0, text)


def _milliseconds(text: str) -> float:
    number = _at_least(0, text)
    if number > _MILLISECONDS_MAX:
        raise ValueError(text)
    return number / 1000


def _scope(text: str) -> TransactionScope:
    return TransactionScope(text.lower())


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
    "num.stream.threads": ("threads", _threads),
    "num.standby.replicas": ("standby_replicas", _replicas),
    "session.timeout.ms": ("session_timeout_s", _milliseconds),
    "status.interval.ms": ("status_interval_s", _milliseconds),
    SERVER: ("server", str),
    PARTITIONER: ("partitioner", str),
    SCOPE: ("scope", _scope),
    INSTANCE: ("instance_id", _name),
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
    partitioner: Partitioner | None = None
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
        if "server" in own:
            own["server"] = server_address(own["server"])
        if "partitioner" in own:
            own["partitioner"] = partitioner(own["partitioner"])
        if tasks["application.id"] != application.name:
            raise ConfigError(
                f"application.id={tasks['application.id']} contradicts the application's name {application.name!r}: "
                "drop the property"
            )
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
        near = get_close_matches(name, _OURS, n=1, cutoff=0.5)
        raise ConfigError(f"no property {name!r}{_suggestion(near)}. Settings of the Kafka client need {SERVERS}")
    from stores.changelog.kafka.client_settings import KNOWN

    near = get_close_matches(name, _OURS.union(KNOWN), n=1, cutoff=0.8)
    if name not in KNOWN and near and near[0] in _OURS:
        raise ConfigError(f"no property {name!r}{_suggestion(near)}")


def _suggestion(near: list[str]) -> str:
    return f": did you mean {near[0]}?" if near else ""
