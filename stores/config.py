"""The settings with which a store is opened, as one value; also read from properties with Kafka's names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Self

from stores.contract.arguments import check_number, check_seconds, check_type
from stores.errors import ConfigError
from stores.interface import Durability, IsolationLevel, KeyValueStore, ProcessingGuarantee
from stores.memory_limit import LEAST_BYTES, PROPERTY, MemoryParts, parts_of
from stores.records.record_kind import RecordKind
from stores.registry import backend_named, check_options, checked_durability, member, open_store
from stores.settings import (
    ANY_NUMBER,
    SAME,
    TRUE_OR_FALSE,
    Known,
    Properties,
    Property,
    Upgrade,
    UpgradeMode,
    boolean,
    one_of,
    parsed_as,
    read,
)

UNCOMMITTED_MAX_BYTES = 67_108_864
"""Default of ``statestore.uncommitted.max.bytes``. Source: KIP-892, "New configuration"."""
RESTORE_MAX_BYTES = 33_554_432
"""Default of ``restore.max.bytes``: twice the changelog that fills one of RocksDB's write buffers, at the most."""
STAGING_BUFFER_OPTION = "staging_buffer_bytes"
"""The option of a strategy that keeps staged writes in memory up to a size, and the others on disk."""
SHARED_MEMORY_OPTION = "shared_memory_bytes"
"""The option of an engine whose stores share memory: they share it with all stores that have the same number."""
INDEXES_OPTION = "cache_index_and_filter_blocks"
"""The option of an engine that keeps indexes in memory: True counts them in its cache."""


@dataclass(frozen=True)
class StoreConfig:
    """Backend, durability and limits of a store. Checked when made. Raises: ConfigError, TypeError."""

    OPTION: ClassVar = "store.option."
    """The prefix of the properties of options."""
    backend: str = "rocksdb-indexed-batch"
    durability: Durability = Durability.CHANGELOG
    """A level, or its text."""
    isolation_level: IsolationLevel | None = None
    """The level of readers that do not ask for one. None means READ_COMMITTED under exactly once, else
    READ_UNCOMMITTED. Source: KIP-892, ``default.state.isolation.level``."""
    uncommitted_max_bytes: int = UNCOMMITTED_MAX_BYTES
    """The limit on the memory of all staged writes of a task, in bytes. The task commits first; -1 for no limit.

    In addition to keys and values each entry counts 92 bytes, and each record that is held for the changelog 128.
    Tasks that share a ``MemoryBudget`` keep to that instead. ``restore_max_bytes`` may cause an earlier commit.
    """
    restore_max_bytes: int = RESTORE_MAX_BYTES
    """The most bytes of changelog, keys and values, that are replayed into the store after a kill; -1 for no limit.

    For this a task flushes an engine whose WAL is disabled (RocksDB at the level CHANGELOG). It also commits early,
    whatever ``uncommitted_max_bytes`` allows, before the records logged for the store since the last commit would
    exceed the limit. Only a single input record that writes more is replayed whole. It applies to stores that keep
    their offsets; any other store is restored whole after a kill.
    """
    memory_max_bytes: int | None = None
    """The limit on the memory of the process, in bytes; None for no such limit. All stores of a process have the same.

    The caches and write buffers of engines, staged writes, and the records of a restore have parts of it
    (``stores.memory_limit``). Options that are given, and a lower ``uncommitted_max_bytes``, are used in place of
    these parts. It is at least 96 MiB.
    """
    max_age_s: float | None = None
    """In a task, or as a global store: the age in seconds from which on its files are not trusted; None for any.

    A store whose files were last changed longer ago is wiped when it is opened, and restored whole: its changelog may
    have dropped tombstones that it lacks. Source: KIP-1259, ``state.cleanup.dir.max.age.ms``.
    """
    changelog_coalescing: bool = True
    """True if all updates of a key within one commit become one changelog record, with the timestamp of the last."""
    processing_guarantee: ProcessingGuarantee | None = None
    """The guarantee of the task that owns the store, unless the task has its own. Source: KIP-129."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The engine's own options, by the names in ``Backend.options``."""
    records: RecordKind | None = None
    """In a task: the kind of typed store, from ``stores.records``; None for bytes. ``open`` always opens bytes."""
    upgrade: Upgrade | None = None
    """In a task: the upgrade by which the store comes, or came, to its present format; None for format 0."""
    upgrade_mode: UpgradeMode | None = None
    """The way in which a store of an earlier format is upgraded when its task is opened; None refuses to open it."""

    def __post_init__(self) -> None:
        backend = backend_named(self.backend)
        set_to = partial(object.__setattr__, self)
        set_to("durability", checked_durability(backend, self.durability))
        if self.isolation_level is not None:
            set_to("isolation_level", member(IsolationLevel, "isolation level", self.isolation_level))
        if self.processing_guarantee is not None:
            set_to(
                "processing_guarantee", member(ProcessingGuarantee, "processing guarantee", self.processing_guarantee)
            )
        check_limit("uncommitted_max_bytes", self.uncommitted_max_bytes)
        check_limit("restore_max_bytes", self.restore_max_bytes)
        if self.memory_max_bytes is not None:
            parts_of(self.memory_max_bytes)
        if self.max_age_s is not None:
            check_seconds("max_age_s", self.max_age_s)
        check_type(self.changelog_coalescing, bool, "changelog_coalescing is a bool")
        check_options(backend, self.options)
        check_type(self.records, RecordKind | None, "records is a kind of stores.records, such as KeyValue(), or None")
        check_type(self.upgrade, Upgrade | None, "upgrade is an Upgrade or None")
        if self.upgrade_mode is not None:
            member(UpgradeMode, "upgrade mode", self.upgrade_mode)
        if self.upgrade is not None and self.upgrade.online:
            if self.upgrade_mode != UpgradeMode.IN_PLACE:
                raise ConfigError("an upgrade with online=True needs upgrade_mode='in_place'")
            if not backend.persistent:
                raise ConfigError(
                    f"{backend.name} keeps no data when its process ends: upgrade it with online=False, which rebuilds "
                    "it from its changelog when its task is opened"
                )

    @classmethod
    def from_properties(cls, properties: Properties) -> Self:
        """Return a configuration from properties.

        The names are Kafka's. Settings without a name in Kafka are ``store.backend``, ``store.durability`` and
        ``store.option.<name>``.

        ``enable.transactional.statestores=false`` (Kafka 4.4) means ``rocksdb-direct``, and true refuses that.
        Values may be text. The isolation level also goes by the name that Kafka 4.4 gave it,
        ``default.interactive.query.isolation.level``.

        Raises: TypeError; ConfigError for an unknown name, with the nearest one, and for a value that does not fit or
        contradicts another one.
        """
        return cls.from_settings(*read(properties, STORE_PROPERTIES, cls.OPTION))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], options: Mapping[str, object]) -> Self:
        """Return a configuration from the results of ``stores.settings.read``. Raises: ConfigError."""
        fields = dict(settings)
        transactional = fields.pop("transactional", None)
        if transactional is False:
            if fields.get("backend", "rocksdb-direct") != "rocksdb-direct":
                raise ConfigError(
                    f"enable.transactional.statestores=false contradicts store.backend={fields['backend']}: drop one"
                )
            fields["backend"] = "rocksdb-direct"
        backend = backend_named(fields.get("backend", cls.backend))
        if transactional and not backend.transactional:
            raise ConfigError(
                f"enable.transactional.statestores=true contradicts store.backend={backend.name}, which keeps no "
                "uncommitted writes apart: drop one"
            )
        defaults = backend.options
        fields["options"] = {
            name: parsed_as(cls.OPTION + name, value, option(name, defaults[name])) if name in defaults else value
            for name, value in options.items()
        }
        return cls(**fields)

    @property
    def readers_level(self) -> IsolationLevel:
        """The level of readers that do not ask for one: ``isolation_level``, or its default by guarantee."""
        if self.isolation_level is not None:
            return IsolationLevel(self.isolation_level)
        exactly_once = self.processing_guarantee == ProcessingGuarantee.EXACTLY_ONCE
        return IsolationLevel.READ_COMMITTED if exactly_once else IsolationLevel.READ_UNCOMMITTED

    @property
    def memory(self) -> MemoryParts | None:
        """The parts of ``memory_max_bytes``; None without a limit."""
        return None if self.memory_max_bytes is None else parts_of(self.memory_max_bytes)

    @property
    def staged_max_bytes(self) -> int:
        """The limit on staged writes: ``uncommitted_max_bytes``, or their part of ``memory_max_bytes`` if less."""
        if self.memory is None or 0 <= self.uncommitted_max_bytes <= self.memory.staged_bytes:
            return self.uncommitted_max_bytes
        return self.memory.staged_bytes

    def open(self, path: str | PathLike[str], *, name: str = "store") -> KeyValueStore:
        """Open the store at ``path`` as configured. Raises: as ``open_store``."""
        return open_store(
            self.backend,
            path,
            name=name,
            durability=self.durability,
            options=self.limited_options(),
            isolation_level=self.readers_level,
        )

    def limited_options(self) -> Mapping[str, object]:
        """Return the options. If the size from which a strategy spills is not given, it is at most the limit.

        A strategy whose default size is that of the limit uses the limit itself. An engine whose stores share memory
        gets the engines' part of the memory of the process.
        """
        known = backend_named(self.backend).options
        limited: dict[str, object] = {}
        if self.memory is not None:
            of_memory = {SHARED_MEMORY_OPTION: self.memory.engine_bytes, INDEXES_OPTION: True}
            limited = {name: value for name, value in of_memory.items() if name in known}
        spill_above = known.get(STAGING_BUFFER_OPTION)
        if isinstance(spill_above, int):
            limit = sys.maxsize if self.staged_max_bytes == -1 else self.staged_max_bytes
            limited[STAGING_BUFFER_OPTION] = limit if spill_above == UNCOMMITTED_MAX_BYTES else min(spill_above, limit)
        return {**limited, **self.options}


def check_limit(name: str, limit: object) -> None:
    """Check a number of bytes, -1 for no limit. Raises: TypeError, ConfigError."""
    check_number(name, limit, "-1 (no limit) or more", -1)


def _age(text: str) -> float | None:
    milliseconds = int(text)
    if milliseconds < -1:
        raise ValueError(text)
    return None if milliseconds == -1 else milliseconds / 1_000


def _upgrade_mode(text: str) -> UpgradeMode | None:
    return None if text.lower() in ("null", "none") else UpgradeMode(text)


LEVEL = Property(
    "isolation_level",
    IsolationLevel,
    one_of(IsolationLevel),
    "the level of readers that do not ask for one",
    "`default.state.isolation.level` (KIP-892)",
    default="read_committed under exactly once, else read_uncommitted",
)
STORE_PROPERTIES: Known = {
    "default.state.isolation.level": LEVEL,
    "default.interactive.query.isolation.level": replace(
        LEVEL, meaning="another name of default.state.isolation.level", kafka=SAME
    ),
    "statestore.uncommitted.max.bytes": Property(
        "uncommitted_max_bytes",
        int,
        "a whole number from 0, or -1 for no limit",
        "the memory of uncommitted writes, of a whole worker: each thread with tasks has an equal part",
        "the same name (KIP-892)",
        "bytes",
    ),
    "restore.max.bytes": Property(
        "restore_max_bytes",
        int,
        "a whole number from 0, or -1 for no limit",
        "the most changelog that is replayed into a store after a kill",
        "none: Kafka Streams flushes by the size of RocksDB's write buffers",
        "bytes",
    ),
    PROPERTY: Property(
        "memory_max_bytes",
        int,
        f"a whole number from {LEAST_BYTES:,}",
        "the memory of the process, in parts: caches and write buffers, uncommitted writes, restores, the client",
        "none: `RocksDBConfigSetter` with a shared cache, and the sum of several properties",
        "bytes",
        "of a worker half of its container, or an eighth of the machine, up to 1 GiB; of a task none",
    ),
    "state.cleanup.dir.max.age.ms": Property(
        "max_age_s",
        _age,
        "a whole number from 0, or -1 for none",
        "the age of a store's files from which on it is wiped when it is opened, and restored whole",
        "the same name (KIP-1259), for whole folders at the start",
        "ms",
        "-1",
    ),
    "changelog.coalescing": Property(
        "changelog_coalescing",
        boolean,
        TRUE_OR_FALSE,
        "true logs one changelog record for all updates of a key within a commit",
        "none: `statestore.cache.max.bytes` has this effect",
    ),
    "enable.transactional.statestores": Property(
        "transactional",
        boolean,
        TRUE_OR_FALSE,
        "true refuses a backend that does not isolate uncommitted writes, false means rocksdb-direct",
        "the same name (Kafka 4.4)",
        default="not set: both are allowed",
    ),
    "processing.guarantee": Property(
        "processing_guarantee",
        ProcessingGuarantee,
        one_of(ProcessingGuarantee),
        "exactly once (exactly_once_v2 is the same), or at least once without transactions",
        "the same name, with the default at_least_once",
        default=ProcessingGuarantee.EXACTLY_ONCE.value,
    ),
    "upgrade.mode": Property(
        "upgrade_mode",
        _upgrade_mode,
        one_of([*UpgradeMode, "none"]),
        "the way in which a store of an earlier format is upgraded",
        "the same name (KIP-258, first draft)",
    ),
    "store.backend": Property(
        "backend",
        str,
        "the name of a backend",
        "the backend of stores that do not name one",
        "`dsl.store.suppliers.class`",
    ),
    "store.durability": Property(
        "durability",
        Durability,
        one_of(Durability),
        "what a commit survives: a restore from the changelog, a kill of the process, or power loss",
        "none: Kafka Streams has the level changelog",
    ),
}
"""The properties of a store, beside those that begin with ``StoreConfig.OPTION``."""


def option(name: str, default: object) -> Property:
    """Return the property of an engine's option, whose value is of the type of ``default``."""
    parse: Callable[[str], Any] = str
    values = "text"
    if isinstance(default, bool):
        parse, values = boolean, TRUE_OR_FALSE
    elif isinstance(default, int):
        parse, values = int, ANY_NUMBER
    unit = "bytes" if name.endswith("_bytes") else ""
    return Property(name, parse, values, "an option of the engine", "`rocksdb.config.setter`", unit, str(default))
