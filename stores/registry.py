"""Backends by name, and the one way to open a store.

Another package adds a backend by an entry point of the group ``stores.backends``. The entry point has the backend's
name. Its object is a ``Backend`` (an engine and a strategy) or a ``StoreBackend`` (a separate store class).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from stores.contract.arguments import check_type
from stores.errors import ConfigError, StoreIncompatibleError, nearest
from stores.files.creation import FAILPOINTS, wipe
from stores.files.identity import IDENTITY_FILE
from stores.files.plain_files import sync_folder, translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import Durability, IsolationLevel, KeyValueStore
from stores.process import never_free, watch
from stores.strategies.access import close_refused, note_opened
from stores.strategies.staging import Traits
from stores.strategies.store_opening import disown, open_over

if TYPE_CHECKING:
    from stores.engines.engine import Engine
    from stores.strategies.staging import Staging

__all__ = ["ENTRY_POINT_GROUP", "Backend", "StoreBackend", "backend_named", "backends", "engines", "open_store"]

_ENGINES: Mapping[str, str] = {
    "rocksdb": "stores.engines.rocksdb:RocksDBEngine",
    "lmdb": "stores.engines.lmdb:LmdbEngine",
    "sqlite": "stores.engines.sqlite:SqliteEngine",
    "memory": "stores.engines.memory:MemoryEngine",
}
_STRATEGIES: Mapping[str, str] = {
    "direct": "stores.strategies.direct:DirectStaging",
    "indexed-batch": "stores.strategies.indexed_batch:IndexedBatchStaging",
    "dual-store": "stores.strategies.dual_store:DualStoreStaging",
    "native": "stores.strategies.native:NativeStaging",
    "sst-ingest": "stores.strategies.sst_ingest:SstIngestStaging",
}
_BACKENDS = (
    ("rocksdb", "direct"),
    ("rocksdb", "indexed-batch"),
    ("rocksdb", "dual-store"),
    ("rocksdb", "sst-ingest"),
    ("lmdb", "indexed-batch"),
    ("lmdb", "native"),
    ("sqlite", "indexed-batch"),
    ("sqlite", "native"),
    ("memory", "indexed-batch"),
)
ALIASES: Mapping[str, str] = {engine: f"{engine}-indexed-batch" for engine in _ENGINES}
"""Other names of backends: an engine's name alone means its indexed batch."""
ENTRY_POINT_GROUP = "stores.backends"

Named = TypeVar("Named", bound=StrEnum)


@dataclass(frozen=True)
class Backend:
    """A named pair of an engine and a strategy. The classes are loaded at their first use."""

    name: str
    load_engine: Callable[[], type[Engine]]
    load_strategy: Callable[[], type[Staging]]

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.load_engine().name

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.load_strategy().strategy

    @property
    def durabilities(self) -> frozenset[Durability]:
        """The durability levels that this backend supports."""
        return self.load_engine().durabilities

    @property
    def persistent(self) -> bool:
        """True if data is kept when the process ends."""
        return self.load_engine().persistent

    @property
    def manages_offsets(self) -> bool:
        """True if its stores keep offsets with their data."""
        return _constant(self._declaring(), "manages_offsets")

    @property
    def transactional(self) -> bool:
        """True if its stores isolate uncommitted writes."""
        return _constant(self._declaring(), "transactional")

    def _declaring(self) -> type:
        return self.load_strategy()

    @property
    def bounded_memory(self) -> bool:
        """Return whether a transaction larger than the bounds that its options set takes no memory of its size."""
        return self.persistent and self.load_strategy().bounds_memory(self.load_engine())

    def load(self) -> None:
        """Import the engine and the strategy, so that opening a store imports nothing."""
        self.load_engine()
        self.load_strategy()

    @property
    def failpoints(self) -> tuple[str, ...]:
        """The failpoints that its creation, commits, recovery and restore reach."""
        strategy = self.load_strategy()
        if not self.persistent:
            return strategy.failpoints
        return (*FAILPOINTS, *strategy.failpoints, *strategy.persistent_failpoints)

    @property
    def options(self) -> Mapping[str, object]:
        """The engine's and the strategy's options with their defaults."""
        strategy = self.load_strategy()
        over_files = strategy.persistent_options if self.persistent else {}
        return {**self.load_engine().options, **strategy.options, **over_files}

    @property
    def option_values(self) -> Mapping[str, Container[object]]:
        """The values that some of the options can have: see ``Engine.option_values``."""
        return self.load_engine().option_values

    def shares_files_with(self, other: Backend) -> bool:
        """Return True if both have one engine, whose files then are the same."""
        return not isinstance(other, StoreBackend) and other.load_engine() is self.load_engine()

    def open(self, path: Path, options: Mapping[str, object], traits: Traits) -> KeyValueStore:
        """Open a store. ``options`` are the given ones, all of them known. Raises: as ``open_store``."""
        store = open_over(self.load_strategy(), self.load_engine(), path, {**self.options, **options}, traits)
        watch(store, disown)
        return store

    def wipe(self, path: Path) -> None:
        """Remove the closed store at ``path``. Raises: as ``stores.files.creation.wipe``."""
        wipe(path)


def _none() -> NoReturn:
    raise ConfigError(
        "a StoreBackend has a store class of its own, and neither an engine nor a strategy of the library"
    )


@dataclass(frozen=True)
class StoreBackend(Backend):
    """A backend of another package with its own store class, a subclass of ``KeyValueStore``.

    ``load_store`` returns its class. That is called with a path, below which alone the store may have files and whose
    folder it makes, and with ``name``, ``durability``, ``isolation_level`` and ``options`` by name. The class has the
    attributes ``persistent``, ``transactional`` and ``manages_offsets``, or properties that are constants. It may have
    the attributes ``durabilities`` (without it, CHANGELOG is carried), ``options``, the known ones with their defaults,
    ``failpoints``, declared as those of a strategy are, and ``bounded_memory``: False if a transaction stays in memory.

    In the child of a fork the store is neither used nor freed. A task removes its folder to wipe the store.
    """

    load_engine: Callable[[], type[Engine]] = _none
    load_strategy: Callable[[], type[Staging]] = _none
    load_store: Callable[[], type[KeyValueStore]] = field(kw_only=True)

    @property
    def engine(self) -> str:
        return self.name

    @property
    def strategy(self) -> str:
        return "own"

    @property
    def durabilities(self) -> frozenset[Durability]:
        return frozenset(getattr(self.load_store(), "durabilities", {Durability.CHANGELOG}))

    @property
    def persistent(self) -> bool:
        return _constant(self.load_store(), "persistent")

    def _declaring(self) -> type:
        return self.load_store()

    @property
    def bounded_memory(self) -> bool:
        return bool(getattr(self.load_store(), "bounded_memory", self.persistent))

    def load(self) -> None:
        self.load_store()

    @property
    def failpoints(self) -> tuple[str, ...]:
        return tuple(getattr(self.load_store(), "failpoints", ()))

    @property
    def options(self) -> Mapping[str, object]:
        return dict(getattr(self.load_store(), "options", {}))

    @property
    def option_values(self) -> Mapping[str, Container[object]]:
        return {}

    def shares_files_with(self, other: Backend) -> bool:
        return False

    def open(self, path: Path, options: Mapping[str, object], traits: Traits) -> KeyValueStore:
        with translated_system_errors(path):
            if (path / IDENTITY_FILE).exists():
                raise StoreIncompatibleError(
                    f"{path} contains a store of another backend than {self.name!r}: choose another path"
                )
        own: Any = self.load_store()
        store: KeyValueStore = own(
            path,
            name=traits.name,
            durability=traits.durability,
            isolation_level=traits.isolation_level,
            options={**self.options, **options},
        )
        watch(store, never_free)
        return store

    def wipe(self, path: Path) -> None:
        with translated_system_errors(path):
            if path.exists():
                shutil.rmtree(path)
                sync_folder(path.parent)


@cache
def backends() -> Mapping[str, Backend]:
    """Return every backend by name: the library's own, then those of other packages."""
    # Not with this module: what looks into all packages takes a sixth of the time of "import stores".
    from importlib.metadata import entry_points

    by_name = {}
    for engine, strategy in _BACKENDS:
        name = f"{engine}-{strategy}"
        by_name[name] = Backend(name, _loader(_ENGINES[engine]), _loader(_STRATEGIES[strategy]))
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            loaded = entry.load()
        except Exception as error:
            raise ConfigError(
                f"backend {entry.name!r} of entry point {entry.value!r} can't be loaded: {error}"
            ) from error
        if not isinstance(loaded, Backend) or entry.name in by_name:
            raise ConfigError(
                f"entry point {entry.value!r} is not a Backend with a new name: correct its package, or uninstall it"
            )
        by_name[entry.name] = loaded
    return by_name


@cache
def engines() -> frozenset[str]:
    """Return the names of all engines: the library's own, then those of other packages, whose classes are loaded."""
    others = (backend for name, backend in backends().items() if name not in {"-".join(pair) for pair in _BACKENDS})
    return frozenset({*_ENGINES, *(backend.engine for backend in others)})


def backend_named(name: str) -> Backend:
    """Return the backend ``name``. An engine's name alone means its indexed batch. Raises: ConfigError."""
    check_type(name, str, "a backend's name is a str")
    backend = backends().get(ALIASES.get(name, name))
    if backend is None:
        # A store without isolation is suggested only to those who ask for it.
        offered = [each for each in (*ALIASES, *backends()) if "-di" in name or not each.endswith("-direct")]
        suggestion = nearest(name, dict.fromkeys(offered))
        short = ", ".join(sorted(ALIASES))
        raise ConfigError(
            f"no backend {name!r}{suggestion}; choose one of {', '.join(sorted(backends()))}; {short} alone mean the "
            "indexed batch of the engine"
        )
    return backend


def open_store(
    backend: str,
    path: str | PathLike[str],
    *,
    name: str = "store",
    durability: Durability | str = Durability.CHANGELOG,
    options: Mapping[str, object] | None = None,
    isolation_level: IsolationLevel | str = IsolationLevel.READ_COMMITTED,
) -> KeyValueStore:
    """Open the store in the folder ``path``, or create it. Use it in a ``with`` block.

    The calling thread becomes its only writer; a process forked from this one can't use it. Uncommitted writes of an
    earlier process are rolled back. A commit that had passed its commit point is rolled forward. ``recover()`` returns
    the outcome. ``options`` are those of the engine and the strategy, by the names in ``Backend.options``.
    ``isolation_level`` is that of readers that do not ask for one.

    Raises: TypeError; ConfigError for an unknown backend, level or option, and for an invalid path;
    StoreUnavailableError, StoreLockedError, StoreIncompatibleError, StoreCorruptedError for the folder.
    """
    chosen = backend_named(backend)
    check_type(name, str, "a store's name is a str")
    given = {} if options is None else options
    check_options(chosen, given)
    traits = Traits(
        name,
        chosen.name,
        checked_durability(chosen, durability),
        member(IsolationLevel, "isolation level", isolation_level),
    )
    folder = checked_path(path)
    close_refused(folder)
    store = chosen.open(folder, given, traits)
    note_opened(folder, store)
    return store


def member(kind: type[Named], what: str, given: str) -> Named:
    """Return the member of ``kind`` for a member or its text. Raises: ConfigError, which names all members."""
    try:
        return kind(given)
    except ValueError as error:
        raise ConfigError(f"no {what} {given!r}; there are: {', '.join(kind)}") from error


def checked_durability(backend: Backend, given: Durability | str) -> Durability:
    """Return the durability level for a member or its text. Raises: ConfigError for an unknown or unsupported level."""
    level = member(Durability, "durability", given)
    if level not in backend.durabilities:
        carried = ", ".join(sorted(backend.durabilities))
        raise ConfigError(f"{backend.name} does not support durability {level}: choose one of {carried}")
    return level


def check_options(backend: Backend, given: Mapping[str, object]) -> None:
    """Refuse options that the backend does not have, or of another type or value. Raises: ConfigError, TypeError."""
    check_type(given, Mapping, "options are a mapping of names to values")
    known = backend.options
    for option, value in given.items():
        check_type(option, str, "an option's name is a str")
        if option not in known:
            raise ConfigError(
                f"{backend.name} has no option {option!r}{nearest(option, known)}; it has: {', '.join(known) or 'none'}"
            )
        default = known[option]
        if type(value) is not type(default):
            raise ConfigError(
                f"option {option!r} of {backend.name} is of type {type(default).__name__}, not {type(value).__name__}"
            )
        if type(value) is int and not (-1 if default == -1 else 0) <= value < 1 << 63:
            raise ConfigError(f"option {option!r} of {backend.name} can't be {value}")
        allowed = backend.option_values.get(option)
        if allowed is not None and value not in allowed:
            raise ConfigError(f"option {option!r} of {backend.name} can't be {value!r}: it is one of {allowed}")


def _constant(kind: type, name: str) -> bool:
    """Return what the class ``kind`` declares for all its stores: an attribute, or a property that is a constant."""
    declared = getattr(kind, name)
    return bool(declared.__get__(object.__new__(kind)) if isinstance(declared, property) else declared)


def _loader(where: str) -> Callable[[], type]:
    module, attribute = where.split(":")

    @cache
    def load() -> type:
        loaded: type = getattr(import_module(module), attribute)
        return loaded

    return load
