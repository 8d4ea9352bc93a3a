"""A mutant as a plain value: a defect, the experiments that must detect it, and how it is built into a process.

Below it are the changes that mutants make: of declared interfaces, of file functions, and of few inner names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any, Self
from weakref import WeakKeyDictionary

from stores import failpoints
from stores.changelog.files import PartitionLog
from stores.changelog.interface import Changelog, Producer
from stores.engines.engine import Engine, Transaction, TransactionalEngine, Writes
from stores.engines.ingesting import FilePart, IngestingEngine
from stores.interface import Durability, IsolationLevel, KeyValueStore, KeyValueView
from stores.registry import backends
from stores.spark.local_state import LocalState
from stores.strategies.store import Store
from stores.tasks.context import TaskContext
from stores.tasks.task import StreamTask

Fits = Callable[[str], bool]
"""Return True for the name of a subject, a backend or a protocol of the library, in which the mutant is a defect."""


def only(*names: str) -> Fits:
    """Return a test for these subjects."""
    return names.__contains__


def isolates(name: str) -> bool:
    """Return True for a backend that isolates uncommitted writes."""
    return name in backends() and backends()[name].transactional


def reaching(failpoint: str) -> Fits:
    """Return a test for the backends that reach a failpoint."""
    return lambda name: name in backends() and failpoint in backends()[name].failpoints


def over(engine: str) -> Fits:
    """Return a test for the backends over an engine."""
    return lambda name: name in backends() and backends()[name].engine == engine


@dataclass(frozen=True, slots=True)
class CrashDetection:
    """Crash trials detect the mutant: ``checker`` finds an anomaly."""

    checker: str


@dataclass(frozen=True, slots=True)
class IoFault:
    """Injected I/O faults detect the mutant at DISK, in each subject that it ``fits``.

    ``fault`` and ``variant`` must detect it. ``records`` is the kind of store that it needs. ``unseen_by`` is a fault
    that cannot detect it, which is tried too. It is empty where that would show nothing.
    """

    fault: str
    fits: Fits
    variant: str = ""
    unseen_by: str = ""
    records: str = ""


@dataclass(frozen=True, slots=True)
class ReaderDetection:
    """Readers beside a writer detect the mutant, in stores of ``strategy``."""

    strategy: str


@dataclass(frozen=True, slots=True)
class QueryDetection:
    """Stateful queries on Spark detect the mutant, under ``fault``."""

    fault: str


@dataclass(frozen=True, slots=True)
class BrokerDetection:
    """Tasks over a Kafka broker detect the mutant, under ``fault`` at ``place``.

    ``finds`` is the kind of finding as which it must show (``harness.checkers.counting``).
    """

    fault: str
    place: str
    finds: str
    guarantee: str = "exactly_once"


@dataclass(frozen=True, slots=True)
class LibraryTest:
    """A test of the library detects the mutant. ``unseen`` says why no experiment is relied upon for it."""

    unseen: str


Detection = CrashDetection | IoFault | ReaderDetection | QueryDetection | BrokerDetection | LibraryTest


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect. ``build`` puts it into this process, for the subject that it is given; ``detected_by`` must find it."""

    name: str
    meaning: str
    build: Build
    detected_by: tuple[Detection, ...]


DECLARED: dict[str, Mutant] = {}
"""Every mutant by its name, of the modules that are imported; ``harness.mutants`` imports all."""


def mutant(meaning: str, *detected_by: Detection, name: str = "") -> Callable[[Build], Build]:
    """Declare the decorated function a mutant, which has the ``name``, or that of the function with dashes.

    Raises: ValueError if the name is taken.
    """

    def declare(build: Build) -> Build:
        own_name = name or build.__name__.strip("_").replace("_", "-")
        if own_name in DECLARED:
            raise ValueError(f"two mutants are called {own_name!r}: give each its own name")
        DECLARED[own_name] = Mutant(own_name, meaning, build, detected_by)
        return build

    return declare


def unsynced(name: str, meaning: str, fits: Fits, is_skipped: Callable[[Path], bool], variant: str = "") -> None:
    """Declare a mutant that leaves out the syncs of some files: a loss of power shows it, and a kill does not."""

    def synced(fsync: Act, descriptor: int) -> None:
        if not is_skipped(path_of(descriptor)):
            fsync(descriptor)

    detected_by = IoFault("power", fits, variant, unseen_by="kill")
    mutant(meaning, detected_by, name=name)(instead_of(os, "fsync")(synced))


INTERFACES = (
    *(Engine, TransactionalEngine, IngestingEngine, Transaction, KeyValueStore),
    *(Changelog, Producer, StreamTask, TaskContext, PartitionLog, LocalState),
)
"""The declared interfaces of the library. A mutant may replace their public methods in any class that has them."""
FILE_FUNCTIONS = ("fsync", "replace", "rename", "unlink", "pwrite")
"""The functions of ``os`` by which the library changes files."""

_ABSENT = object()


class Patches:
    """Changes of this process. They last until ``undo``, or the end of a ``with`` block."""

    def __init__(self) -> None:
        self._changed: list[tuple[object, str, object]] = []
        self._armed: list[str] = []

    def replace(self, owner: object, name: str, mutated: object) -> None:
        """Replace a public method of a class with one of ``INTERFACES``, or one of ``FILE_FUNCTIONS`` of ``os``.

        Raises: AttributeError if ``owner`` has no such name; ValueError if it is not declared.
        """
        if not _is_declared(owner, name):
            raise ValueError(f"{owner!r} declares no {name!r}: use another seam")
        self.replace_inner(owner, name, mutated)

    def replace_inner(self, owner: object, name: str, mutated: object) -> None:
        """Replace any attribute of a module, a class or an object. For ``harness.mutants.inner_names`` only.

        Raises: AttributeError if ``owner`` has no such name: after a move in the library, the change would do nothing.
        """
        getattr(owner, name)
        self._changed.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, mutated)

    def wrap(self, owner: object, name: str, act: Act) -> None:
        """Call ``act`` with a method, its object and its arguments, instead of the method. Raises: as ``replace``."""
        own = getattr(owner, name)
        function = own.__func__ if isinstance(own, MethodType) else own

        def mutated(*given: Any, **named: Any) -> Any:
            return act(function, *given, **named)

        self.replace(owner, name, mutated if function is own else classmethod(mutated))

    def arm(self, failpoint: str, action: Callable[[], None]) -> None:
        """Run ``action`` each time ``failpoint`` is reached. Raises: ValueError for an unknown failpoint."""
        failpoints.arm(failpoint, action)
        self._armed.append(failpoint)

    def undo(self) -> None:
        """Restore everything that was replaced, the last change first."""
        while self._changed:
            owner, name, before = self._changed.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        while self._armed:
            failpoints.disarm(self._armed.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def _is_declared(owner: object, name: str) -> bool:
    if owner is os:
        return name in FILE_FUNCTIONS
    if not isinstance(owner, type) or (name.startswith("_") and name != "__init__"):
        return False
    return any(issubclass(owner, each) and hasattr(each, name) for each in INTERFACES)


Meta = Mapping[bytes, bytes | None]
Write = Callable[..., None]
Build = Callable[[Patches, str], None]
"""Puts a mutant into this process, for the stores or the protocol that it names."""


def engine_of(subject: str) -> type[Engine]:
    """Return the engine class of a backend."""
    return backends()[subject].load_engine()


def every_engine() -> set[type[Engine]]:
    """Return the engine classes of all backends, for a mutant of a protocol that chooses its own backends."""
    return {backend.load_engine() for backend in backends().values()}


Act = Callable[..., Any]
"""Called with a method that a mutant replaces, its object or class, and its arguments. Returns the method's result."""


def instead_of(owner: object, *names: str) -> Callable[[Act], Build]:
    """Return a decorator: what is called instead of these methods of ``owner`` becomes the builder of a mutant."""

    def builder(act: Act) -> Build:
        @wraps(act)
        def build(patches: Patches, subject: str) -> None:
            for name in names:
                patches.wrap(owner, name, act)

        return build

    return builder


def before_opening(patches: Patches, engine: type[Engine], act: Callable[[Path], None]) -> None:
    """Call ``act`` with the engine's folder before each opening of ``engine``."""

    def mutated(opening: Act, cls: type[Engine], path: Path, *settings: Any) -> Any:
        act(path)
        return opening(cls, path, *settings)

    patches.wrap(engine, "open", mutated)


def opened_with(
    patches: Patches,
    engine: type[Engine],
    change: Callable[[Path, Durability, Mapping[str, object]], tuple[Durability, Mapping[str, object]]],
) -> None:
    """Open ``engine`` with the durability and the options that ``change`` returns."""
    patches.wrap(engine, "open", lambda opening, cls, path, *settings: opening(cls, path, *change(path, *settings)))


def folders_of(patches: Patches, engine: type[Engine]) -> Mapping[Engine, Path]:
    """Return the folders of the engines that are open, by engine; it is kept up to date."""
    folders: WeakKeyDictionary[Engine, Path] = WeakKeyDictionary()

    def opened(opening: Act, cls: type[Engine], path: Path, *settings: Any) -> Any:
        engine = opening(cls, path, *settings)
        folders[engine] = path
        return engine

    def closed(close: Act, engine: Engine) -> None:
        # Closing may use the engine once more.
        try:
            close(engine)
        finally:
            folders.pop(engine, None)

    patches.wrap(engine, "open", opened)
    patches.wrap(engine, "close", closed)
    return folders


def instead_of_writes(
    patches: Patches, engine: type[Engine], act: Callable[[Write, Engine, Sequence[Writes], Meta, bool], None]
) -> None:
    """Call ``act`` instead of ``write``, with the engine's own ``write``, the engine, and the arguments.

    What a strategy would let the engine ingest is such a write as well.
    """
    write = engine.write

    def mutated(write: Write, self: Engine, layers: Sequence[Writes], meta: Meta, *, durable: bool = True) -> None:
        act(write, self, layers, meta, durable)

    patches.wrap(engine, "write", mutated)
    if not issubclass(engine, IngestingEngine):
        return
    contents: dict[Path, tuple[Writes, Meta]] = {}

    def noted(_: Act, self: Engine, path: Path, parts: Iterable[FilePart], meta: Meta | None) -> None:
        pairs = {key: value for keys, values in parts for key, value in zip(keys, values, strict=True)}
        contents[path] = Writes((), pairs), meta or {}

    def ingested(_: Act, self: Engine, files: Sequence[Path]) -> None:
        commit = [contents.pop(path) for path in files]
        act(write, self, [layer for layer, _ in commit if layer.writes], commit[0][1], True)

    patches.wrap(engine, "write_file", noted)
    patches.wrap(engine, "ingest", ingested)


def ingesting_one_by_one(patches: Patches, engine: type[Engine]) -> None:
    """Let the engine ingest the files of a commit one by one, the first with the offsets."""

    def mutated(ingest: Act, self: IngestingEngine, files: Sequence[Path]) -> None:
        for file in files:
            ingest(self, [file])

    patches.wrap(engine, "ingest", mutated)


def path_of(descriptor: int) -> Path:
    """Return the path of an open file."""
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def instead_of_replacing(
    patches: Patches, name: str | None, act: Callable[[Callable[[Path, Path], None], Path, Path], None]
) -> None:
    """Call ``act`` with ``os.replace`` and its arguments where the target is a file called ``name``; None is any."""

    def mutated(replace: Act, source: Any, target: Any) -> None:
        if name in (None, Path(target).name):
            act(replace, Path(source), Path(target))
        else:
            replace(source, target)

    patches.wrap(os, "replace", mutated)


class View:
    """A view of a store's reader with some methods changed by a subclass; all others are those of ``view``."""

    def __init__(self, store: KeyValueStore, view: KeyValueView, level: IsolationLevel) -> None:
        self._store, self._view, self._level = store, view, level

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    @property
    def _is_committed(self) -> bool:
        return self._level is IsolationLevel.READ_COMMITTED


def with_views(patches: Patches, kind: type[View]) -> None:
    """Give readers views of ``kind`` instead of the store's own."""

    def mutated(read_only: Act, store: Store, level: IsolationLevel, *bound: Any, **named: Any) -> Any:
        return kind(store, read_only(store, level, *bound, **named), level)

    patches.wrap(Store, "read_only", mutated)
