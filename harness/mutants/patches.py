"""The changes that mutants make to a process: of declared interfaces, of file functions, and of few inner names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

from stores import failpoints
from stores.changelog.files import PartitionLog
from stores.changelog.interface import Changelog, Producer
from stores.engines.engine import Engine, FilePart, IngestingEngine, Transaction, TransactionalEngine, Writes
from stores.interface import Durability, IsolationLevel, KeyValueStore, KeyValueView, PositionBound
from stores.registry import backends
from stores.spark.local_state import LocalState
from stores.strategies.store import Store
from stores.tasks.context import TaskContext
from stores.tasks.task import StreamTask

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()


def _is_declared(owner: object, name: str) -> bool:
    if owner is os:
        return name in FILE_FUNCTIONS
    if not isinstance(owner, type) or (name.startswith("_") and name != "__init__"):
        return False
    return any(issubclass(owner, each) and hasattr(each, name) for each in INTERFACES)


Meta = Mapping[bytes, bytes | None]
Write = Callable[..., None]


def engine_of(subject: str) -> type[Engine]:
    """Return the engine class of a backend."""
    return backends()[subject].load_engine()


def every_engine() -> set[type[Engine]]:
    """Return the engine classes of all backends, for a mutant of a protocol that chooses its own backends."""
    return {backend.load_engine() for backend in backends().values()}


def before_opening(patches: Patches, engine: type[Engine], act: Callable[[Path], None]) -> None:
    """Call ``act`` with the engine's folder before each opening of ``engine``."""
    opening = engine.open.__func__  # type: ignore[attr-defined]

    def mutated(cls: type[Engine], path: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
        act(path)
        return cast(Engine, opening(cls, path, durability, options))

    patches.replace(engine, "open", classmethod(mutated))


def opened_with(
    patches: Patches,
    engine: type[Engine],
    change: Callable[[Path, Durability, Mapping[str, object]], tuple[Durability, Mapping[str, object]]],
) -> None:
    """Open ``engine`` with the durability and the options that ``change`` returns."""
    opening = engine.open.__func__  # type: ignore[attr-defined]

    def mutated(cls: type[Engine], path: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
        return cast(Engine, opening(cls, path, *change(path, durability, options)))

    patches.replace(engine, "open", classmethod(mutated))


def folders_of(patches: Patches, engine: type[Engine]) -> Mapping[Engine, Path]:
    """Return the folders of the engines that are open, by engine; it is kept up to date."""
    opening, close = engine.open.__func__, engine.close  # type: ignore[attr-defined]
    folders: WeakKeyDictionary[Engine, Path] = WeakKeyDictionary()

    def mutated(cls: type[Engine], path: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
        opened = cast(Engine, opening(cls, path, durability, options))
        folders[opened] = path
        return opened

    def closed(self: Engine) -> None:
        # Closing may use the engine once more.
        try:
            close(self)
        finally:
            folders.pop(self, None)

    patches.replace(engine, "open", classmethod(mutated))
    patches.replace(engine, "close", closed)
    return folders


def instead_of_writes(
    patches: Patches, engine: type[Engine], act: Callable[[Engine, Write, Sequence[Writes], Meta, bool], None]
) -> None:
    """Call ``act`` instead of ``write``, with the engine, its own ``write``, and the arguments.

    What a strategy would let the engine ingest is such a write as well.
    """
    write = engine.write
    if issubclass(engine, IngestingEngine):
        _instead_of_ingesting(patches, engine, act)

    def mutated(self: Engine, layers: Sequence[Writes], meta: Meta, *, durable: bool = True) -> None:
        act(self, write, layers, meta, durable)

    patches.replace(engine, "write", mutated)


def _instead_of_ingesting(
    patches: Patches,
    engine: type[IngestingEngine],
    act: Callable[[Engine, Write, Sequence[Writes], Meta, bool], None],
) -> None:
    write = engine.write
    contents: dict[Path, tuple[Writes, Meta]] = {}

    def kept(self: IngestingEngine, path: Path, parts: Iterable[FilePart], meta: Meta | None) -> None:
        pairs = {key: value for keys, values in parts for key, value in zip(keys, values, strict=True)}
        contents[path] = Writes((), pairs), meta or {}

    def mutated(self: IngestingEngine, files: Sequence[Path]) -> None:
        commit = [contents.pop(path) for path in files]
        act(self, write, [layer for layer, _ in commit if layer.writes], commit[0][1], True)

    patches.replace(engine, "write_file", kept)
    patches.replace(engine, "ingest", mutated)


def without_syncs(patches: Patches, fits: Callable[[Path], bool]) -> None:
    """Skip each ``fsync`` of a file or folder that ``fits``."""
    fsync = os.fsync

    def mutated(descriptor: int) -> None:
        if not fits(Path(os.readlink(f"/proc/self/fd/{descriptor}"))):
            fsync(descriptor)

    patches.replace(os, "fsync", mutated)


def instead_of_replacing(
    patches: Patches, name: str | None, act: Callable[[Callable[[Path, Path], None], Path, Path], None]
) -> None:
    """Call ``act`` with ``os.replace`` and its arguments where the target is a file called ``name``; None is any."""
    replace = os.replace

    def mutated(source: Any, target: Any) -> None:
        if name in (None, Path(target).name):
            act(replace, Path(source), Path(target))
        else:
            replace(source, target)

    patches.replace(os, "replace", mutated)


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
    read_only = Store.read_only

    def mutated(self: Any, level: IsolationLevel, bound: PositionBound | None = None) -> Any:
        return kind(self, read_only(self, level, bound), level)

    patches.replace(Store, "read_only", mutated)
