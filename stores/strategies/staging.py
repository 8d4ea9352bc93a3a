"""A strategy: where a store stages uncommitted writes, how they are read back, and how a commit makes them permanent.

A store (``stores.strategies.store.Store``) has one staging. The staging has the engine, and never refers to the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

from stores.batch.merge import Pair, chunks_of
from stores.engines.engine import Engine, EngineSnapshot, Writes
from stores.engines.families import SplitEngine, split_or_whole
from stores.engines.snapshots import copied
from stores.errors import StoreClosedError, StoreError
from stores.failpoints import Part, declare
from stores.files.open_probe import probe_open
from stores.files.plain_files import sync_folder, translated_system_errors
from stores.files.store_directory import StoreDirectory
from stores.interface import Durability, IsolationLevel, RecoveryOutcome
from stores.ordered import ScanRange
from stores.strategies.access import Access
from stores.strategies.iterator import Pin

if TYPE_CHECKING:
    from stores.batch.buffer import IndexedBatch

RESTORE_BEFORE_WRITE = declare(
    "restore.before_write", "changelog records are about to be written into the engine", part=Part.RESTORE, twice=True
)
RESTORE_AFTER_WRITE = declare(
    "restore.after_write",
    "changelog records are in the engine together with their offsets",
    part=Part.RESTORE,
    twice=True,
)

Scanned = tuple[Iterator[list[Pair]], Pin]
"""A scan: its pairs, and the pin of its resources."""


@dataclass(frozen=True)
class Traits:
    """The properties that a store is opened with."""

    name: str
    backend: str
    durability: Durability
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The level of readers that do not ask for one."""


@dataclass(frozen=True)
class Opened:
    """Everything that a staging is made of."""

    engine: Engine
    directory: StoreDirectory | None
    """The folder of the store; None for a store in memory."""
    options: Mapping[str, object]
    traits: Traits
    access: Access


class Staging(ABC):
    """The uncommitted writes of a store. Subclasses are the strategies, and implement the eight abstract methods.

    Other methods have defaults, which a strategy replaces if it can do better or has more to do.
    The store calls ``stage``, ``stage_all``, ``stage_range``, ``commit`` and ``rollback`` on the writer's thread only,
    with checked arguments. Reads come from any thread. Raises: the errors of the engine.
    """

    strategy: ClassVar[str]
    """The strategy's part of a backend's name."""
    failpoints: ClassVar[tuple[str, ...]] = (RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)
    """The failpoints in commits and recoveries of this strategy."""
    options: ClassVar[Mapping[str, object]] = {}
    """The strategy's own options, with their defaults."""
    persistent_failpoints: ClassVar[tuple[str, ...]] = ()
    """Failpoints that are reached over persistent engines only."""
    persistent_options: ClassVar[Mapping[str, object]] = {}
    """Options that exist over persistent engines only."""
    transactional: ClassVar[bool] = True
    """True if uncommitted writes are isolated and can be rolled back."""
    manages_offsets: ClassVar[bool] = True
    """True if offsets and position are committed with the data."""

    @classmethod
    def bounds_memory(cls, engine: type[Engine]) -> bool:
        """Return whether a transaction over ``engine`` takes no more memory than the options allow, however large."""
        return engine.bounded_memory

    @classmethod
    def check_engine(cls, engine: type[Engine], backend: str) -> None:
        """Check that the strategy works over ``engine``. Raises: ConfigError."""

    @classmethod
    def engine_level(cls, durability: Durability) -> Durability:
        """Return the level at which the engine of a store with ``durability`` is opened: that one, or a higher one."""
        return durability

    @classmethod
    def build(cls, engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
        """Fill the folder of a new store."""
        build_engine(engine, folder / "data", durability, options)

    large_commit_key: ClassVar[bytes | None] = None
    """The meta entry that changes with each commit that ``has_unfinished_commit`` knows from a file.

    A reader in another process does not find the file if the commit ends between the reader's two looks.
    """

    @classmethod
    def has_unfinished_commit(cls, folder: Path, meta: Mapping[bytes, bytes]) -> bool:
        """Return whether data in the store's ``folder`` may be a part of a commit: opening the store completes it.

        ``meta`` are the engine's meta entries.
        """
        return False

    @classmethod
    def folders(cls, directory: StoreDirectory) -> Sequence[Path]:
        """Return the folders of the store's engines."""
        return (directory.data,)

    def __init__(self, opened: Opened) -> None:
        """Make the staging, and complete a commit that the last process left (roll forward)."""
        self.access = opened.access
        self.batch: IndexedBatch | None = None
        """The indexed batch that the store may write to and read from itself, if there is one."""
        self.outcome: RecoveryOutcome | None = None
        """ROLLED_FORWARD if recovery has completed a commit."""
        self.use(split_or_whole(opened.engine))

    def use(self, engine: Engine) -> None:
        """Continue over ``engine``. Nothing is staged."""
        self.engine = engine
        self.lookup: Callable[[bytes], bytes | None] | None = None
        """A lookup of the writer that is cheaper than ``look_up``: that of the engine, while nothing is staged.

        The store calls it, or ``look_up`` if it is None, if there is no ``batch``.
        """
        self.bare_lookup = engine.bare_lookup()
        """The shortest way to a key's committed value. Instead of an error that it raises, raise that of ``get``."""

    @property
    def deletes_ranges_whole(self) -> bool:
        """True if the cost of a range delete does not depend on the number of keys that it removes."""
        return self.engine.deletes_ranges_whole

    @property
    def is_split(self) -> bool:
        """True if the engine has two data families in use."""
        return isinstance(self.engine, SplitEngine)

    # Staging

    def stage(self, key: bytes, value: bytes | None) -> None:
        """Stage one write; None deletes."""
        self.stage_all({key: value})

    @abstractmethod
    def stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        """Stage writes: readers see all of them or none. The method takes ownership of ``writes``."""

    @abstractmethod
    def stage_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage one range delete."""

    @abstractmethod
    def is_clean(self) -> bool:
        """Return whether no write is staged."""

    @abstractmethod
    def num_bytes(self) -> int:
        """Return the bytes of keys and values that are staged."""

    def memory_bytes(self) -> int:
        """Return the approximate memory of the staged writes."""
        return self.num_bytes()

    # Reading

    def get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        """Return the value of ``key`` at ``level``. May be called on any thread."""
        return self.get_many(level, [key])[0]

    def look_up(self, key: bytes) -> bytes | None:
        """Return the value of ``key`` for the writer."""
        return self.get(IsolationLevel.READ_UNCOMMITTED, key)

    def look_up_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` for the writer."""
        return self.get_many(IsolationLevel.READ_UNCOMMITTED, keys)

    @abstractmethod
    def get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` at ``level``, all of one snapshot. May be called on any thread."""

    def scan(self, level: IsolationLevel, bounds: ScanRange, *, reverse: bool) -> Scanned:
        """Return a scan of one range, like ``scans``."""
        return self.scans(level, [bounds], reverse=reverse)[0]

    @abstractmethod
    def scans(self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Scanned]:
        """Return a scan at ``level`` of each of ``ranges``, all of one snapshot. May be called on any thread."""

    def scans_committed(self, ranges: Sequence[ScanRange], reverse: bool) -> list[Scanned]:
        """Return a scan of the engine for each of ``ranges``, all of one snapshot."""
        return [(chunks_of(scan), Pin(scan.close)) for scan in self.engine.scans(ranges, reverse=reverse)]

    def snapshot(self) -> EngineSnapshot:
        """Return a snapshot of committed data. May be called on any thread."""
        return self.engine.snapshot() or copied(self.engine)

    def shows_staged(self) -> bool:
        """Return whether readers of committed data are shown staged writes: during a commit in parts, or always."""
        return not self.transactional

    # Ending

    @abstractmethod
    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        """Write the staged writes and the meta entries atomically. After an error, everything is as it was before."""

    @abstractmethod
    def rollback(self) -> None:
        """Discard the staged writes."""

    def write_at_once(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        """Write directly into the engine, atomically. Staged writes are not affected."""
        self.engine.write(layers, meta)

    def persist(self) -> None:
        """Make all commits survive a killed process. A commit that has its offsets is as durable as it will be."""
        if not self.manages_offsets:
            self.engine.persist()

    def change_writer(self) -> None:
        """Note that this thread is the writer from now on. Nothing is staged."""
        self.engine.change_writer()

    def verify(self) -> None:
        """Read all committed data and check it for damage. Raises: StoreCorruptedError."""
        self.engine.verify()

    def metrics(self) -> Mapping[str, int]:
        """Return figures of the engine by name."""
        return self.engine.metrics()

    def release(self) -> None:
        """Release the strategy's resources other than the engine."""

    def close(self, close_engine: Callable[..., None], *, clean: bool) -> None:
        """End what is left of the transaction, and call ``close_engine`` with ``clean``. ``release`` was called before.

        ``clean`` is False if ``release`` has failed.
        """
        close_engine(clean=clean)


class _ClosedEngine:
    """The stand-in for the engine of a closed store."""

    def get(self, key: bytes) -> NoReturn:
        raise StoreClosedError("the store is closed: open it again")

    def bare_lookup(self) -> Callable[[bytes], NoReturn]:
        return self.get

    def __getattr__(self, name: str) -> NoReturn:
        raise StoreClosedError("the store is closed: open it again")


CLOSED: Engine = _ClosedEngine()  # type: ignore[assignment]


def build_engine(engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
    """Create a new engine's files in ``folder``, with an empty commit: opening never finds them incomplete."""
    folder.mkdir()
    new_engine = engine.open(folder, durability, options)
    try:
        new_engine.write([], {})
    finally:
        new_engine.close()


def open_engine(engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
    """Open an engine's files. They may have been changed or damaged since they were last open."""
    probe_open(engine, folder, options)
    opened = engine.open(folder, durability, options)
    if durability is Durability.DISK:
        # Opening may have created a file. The engine syncs its contents, and nothing else would sync its name.
        try:
            with translated_system_errors(folder):
                sync_folder(folder)
        except BaseException:
            with suppress(StoreError):
                opened.close()
            raise
    return opened
