"""The interface of an engine to a strategy: committed bytes, one atomic write, and scans that are snapshots.

An engine keeps two maps of bytes to bytes. The first is the data. The second has the *meta* entries that strategies use
for offsets and position; it never shows in a scan. An engine does not know a store's transactions, threads or
iterators. An engine with transactions may offer them to a strategy (``TransactionalEngine``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import lt
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from stores.changed_keys import ChangedKeys
from stores.contract.levels import AT_ONCE, Persistence
from stores.errors import ConfigError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.interface import Durability
from stores.ordered import WHOLE, Bounds, ScanRange

__all__ = [
    "FETCH_BYTES_MAX",
    "Capture",
    "Engine",
    "EngineSnapshot",
    "Meta",
    "Scan",
    "Transaction",
    "TransactionalEngine",
    "UnwritableError",
    "Writes",
    "converted",
    "take",
]

Meta = Mapping[bytes, bytes | None]
"""Changes of meta entries; None removes one."""


class Writes(NamedTuple):
    """One layer of an atomic write: first the ranges are removed, then the writes are applied; None deletes."""

    ranges: Iterable[Bounds]
    writes: Mapping[bytes, bytes | None]
    family: int = 0
    """The data family to write to: 1 for the second of two (``stores.engines.families``)."""

    def keys_in_order(self) -> Iterable[list[bytes]]:
        """Return the keys of ``writes`` in ascending order, in one list or more."""
        return [sorted(self.writes)]


FETCH_BYTES_MAX = 1 << 20
"""A fetch ends with the pair whose value takes it to this many bytes, to bound the memory for large values."""


FETCH_FIRST, FETCH_MAX = 32, 512
"""The number of pairs that a scan fetches at first, and later. Each fetch has twice as many as the one before."""


def take(pairs: Iterator[tuple[bytes, bytes]], most: int) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return up to ``most`` pairs or about ``FETCH_BYTES_MAX`` from the front, and whether there are no more."""
    chunk = []
    num_bytes = 0
    for pair in islice(pairs, most):
        chunk.append(pair)
        num_bytes += len(pair[1])
        if num_bytes >= FETCH_BYTES_MAX:
            return chunk, False
    return chunk, len(chunk) < most


@contextmanager
def converted(
    errors: type[Exception] | tuple[type[Exception], ...], convert: Callable[[Exception], StoreError]
) -> Iterator[None]:
    """Raise an error of the block as the one that ``convert`` makes of it. Not for each record or commit: it costs."""
    try:
        yield
    except errors as error:
        raise convert(error) from error


class Scan(ABC):
    """An ordered read of a snapshot taken when it was made. Used by one thread at a time."""

    @abstractmethod
    def fetch(self) -> list[tuple[bytes, bytes]]:
        """Return the next pairs in order, some hundred or about a megabyte at most; an empty list at the end."""

    @abstractmethod
    def close(self) -> None:
        """Release the snapshot. May be called more than once. ``fetch`` must not be called afterwards."""


class EngineSnapshot(ABC):
    """The committed data of one moment, for any number of lookups and scans, until ``close``. For any thread.

    Raises, all methods: StoreCorruptedError, StoreUnavailableError. Nothing is called after ``close``.
    """

    _meta: Mapping[bytes, bytes]

    @abstractmethod
    def get(self, key: bytes, family: int = 0) -> bytes | None:
        """Return the value of ``key``."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` of the first data family, None for an empty key. By default they are looked up
        one by one."""
        return [self.get(key) if key else None for key in keys]

    @abstractmethod
    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        """Return a scan of a range. It is closed before the snapshot."""

    def meta(self) -> Mapping[bytes, bytes]:
        """Return all meta entries."""
        return self._meta

    @abstractmethod
    def close(self) -> None:
        """Release the snapshot. May be called more than once."""


class Capture(ABC):
    """The files of an engine as they are after one commit, for a folder of their own.

    The thread that writes begins it between two commits. Any one thread completes it. Closing the engine ends it.
    """

    shares_files: ClassVar[bool] = False
    """True if the files are links to those of the engine, which never change."""

    @abstractmethod
    def complete(self) -> None:
        """Copy what the folder still lacks. Afterwards nothing of the engine is needed.

        Raises: StoreUnavailableError, also if it was ended meanwhile; StoreCorruptedError.
        """

    @abstractmethod
    def end(self) -> None:
        """Release the engine. Waits for a step of ``complete``. The folder stays. May be called more than once."""


class UnwritableError(StoreUnavailableError):
    """The reader of live files may not write to a file that it needs for that."""


class Engine(ABC):
    """Committed bytes on disk. Reads may come from any thread; writes from one at a time.

    Raises, all methods: StoreCorruptedError, StoreUnavailableError; ``write`` and ``put`` CommitFailedError.
    """

    name: ClassVar[str]
    """The engine's part of a backend's name."""
    persistent: ClassVar[bool] = True
    bounded_memory: ClassVar[bool] = True
    """False if the engine keeps committed data in memory without a bound from its options."""
    durabilities: ClassVar[frozenset[Durability]] = frozenset(Durability)
    """The durability levels that the engine supports."""
    options: ClassVar[Mapping[str, object]]
    """All options of the engine, with their defaults."""
    option_values: ClassVar[Mapping[str, Container[object]]] = {}
    """The valid values of some options; others are refused before anything is opened.

    The other options take any value of the type of their default: numbers from 0 (from -1 if that is the default) to
    2**63 - 1.
    """
    deletes_ranges_whole: ClassVar[bool] = False
    """True if the cost of a range delete does not depend on the number of keys that it removes."""
    reads_live: ClassVar[bool] = False
    """True if a process can read and copy the files, at one commit, while another one has the store open."""
    captures: ClassVar[bool] = False
    """True if ``capture`` is offered."""
    part_bytes: ClassVar[int] = 1 << 20
    """The size of the parts in which captured files are kept elsewhere: small if files are changed in place."""
    captures_changes: ClassVar[bool] = False
    """True if ``capture_changes`` is offered: files that are changed in place are nearly all changed."""
    changed: ChangedKeys | None = None
    """The keys that writes have changed since a commit; None if none are kept. For the thread that writes."""
    reads_unguarded: bool = False
    """True if the files are read in the belief that no process changes them: ``is_current`` is asked after each read.
    """
    max_key_bytes: int
    max_value_bytes: int
    splits: ClassVar[bool] = False
    """True if the engine can keep data in two families, 0 and 1 (``stores.engines.families``)."""
    num_families: int = 1
    """The number of data families in use."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        """Open the engine in the existing folder ``path``. Create its files if there are none.

        ``options`` has a value for every name in ``options`` of the class.
        """

    @classmethod
    def torn_by_power_loss(cls, durability: Durability) -> bool:
        """Return whether power loss at this level may leave the engine in a state that is not that of a commit."""
        return durability is not Durability.DISK

    @classmethod
    def check_closed(cls, path: Path) -> None:
        """Check files in ``path`` that were closed cleanly for damage that looks like the result of a crash.

        Opening can't distinguish such damage from a crash, and would continue with an older state.
        Raises: StoreCorruptedError, OSError.
        """

    @classmethod
    def check_before_commit(cls, path: Path) -> None:
        """Check as ``check_closed`` does, but for what the next commit writes over: a process may have died in it.

        By default everything is checked. Raises: StoreCorruptedError, OSError.
        """
        cls.check_closed(path)

    @classmethod
    def repair_after_crash(cls, path: Path) -> None:
        """Remove from files in ``path``, which were not closed cleanly, a last write that power loss has torn.

        Only for a write that no commit can depend on, and with which the engine would refuse to open the files. The
        folder may be missing. Raises: StoreCorruptedError, OSError.
        """

    @classmethod
    def is_doubtful(cls, path: Path) -> bool:
        """Return whether opening the files in ``path`` may hang or crash. If so, an open probe comes first.

        Raises: OSError, StoreCorruptedError.
        """
        return False

    @classmethod
    def probe_open(cls, path: Path, options: Mapping[str, object]) -> None:
        """Open and close the files in ``path`` without a change: the open probe, in a process that may crash."""

    @classmethod
    def open_read_only(cls, path: Path, *, live: bool) -> Self:
        """Open the files in ``path`` for reads, without a change to them; a folder that can't be written is enough.

        ``live`` is True if another process has them open or may open them, which only an engine with ``reads_live``
        takes. Otherwise no process opens them meanwhile.

        Raises also: ConfigError if the engine does not offer it, as by default; UnwritableError, only if ``live``.
        """
        raise ConfigError(f"the engine {cls.name!r} reads its files only while the store is open: open the store")

    def refresh(self) -> None:
        """Show the newest commit of the process that writes to the live files. By default each read does."""

    def is_current(self) -> bool:
        """Return whether the live files are still those that are open. If not, open them again. It costs little."""
        return True

    def copy_to(self, folder: Path) -> None:
        """Copy the files to the existing, empty ``folder``, as they are after one commit. Only with ``reads_live``."""
        raise ConfigError(f"the engine {self.name!r} can't copy its files while they are in use: close the store first")

    def capture(self, folder: Path) -> Capture:
        """Begin to copy the files to ``folder``, which is on the same file system and is made.

        They are as after the last commit. An open transaction is not in them. It takes as long as a flush at most.
        Raises also: ConfigError unless ``captures``.
        """
        raise ConfigError(f"the engine {self.name!r} has no snapshots of its files: choose another engine")

    def capture_changes(self, folder: Path, runs: Sequence[ChangedKeys]) -> Capture:
        """Begin to copy the changes of ``runs``, which follow each other up to the last commit, to ``folder``, as
        ``capture``. Only with ``captures_changes``, and one data family."""
        raise ConfigError(f"the engine {self.name!r} has no snapshots of its changes: choose another engine")

    def note_changes(self, keys: Collection[bytes], ranges: Iterable[Bounds]) -> None:
        """Note what a write of the first data family is about to change, if that is wanted."""
        if self.changed is not None:
            self.changed.add(keys, ranges)

    @classmethod
    def compact(cls, path: Path, options: Mapping[str, object]) -> None:
        """Rewrite the cleanly closed files in ``path`` without unused space, durably. Contents stay the same.

        Raises also: ConfigError if the engine does not offer it, as by default.
        """
        raise ConfigError(f"the engine {cls.name!r} has no compaction by hand")

    @property
    def kind(self) -> type[Engine]:
        """The class of the engine, which can open its files."""
        return type(self)

    def add_family(self) -> None:
        """Create the second data family if it does not exist. Nothing refers to it yet. Raises: CommitFailedError."""
        raise NotImplementedError(f"{type(self).__name__} has one data family")

    def select_families(self) -> None:
        """Switch to the data families that the meta entry names, after it was written. No scan is open."""
        raise NotImplementedError(f"{type(self).__name__} has one data family")

    @abstractmethod
    def get(self, key: bytes, family: int = 0) -> bytes | None:
        """Return the committed value of ``key``."""

    def bare_lookup(self) -> Callable[[bytes], bytes | None]:
        """Return a function like ``get`` for the first data family, in use until the families or the engine change.

        It may raise errors of its own: its caller then calls ``get``, which raises the proper one. An engine overrides
        this if its ``get`` costs a call more.
        """
        return self.get

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """Return values like ``get_many``, for pairs of a family and a key."""
        raise NotImplementedError(f"{type(self).__name__} has one data family")

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the committed values of ``keys``, in their order, all of one snapshot."""

    def scan(self, bounds: ScanRange = WHOLE, *, reverse: bool = False) -> Scan:
        """Return a scan of one range."""
        return self.scans([bounds], reverse=reverse)[0]

    @abstractmethod
    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        """Return a scan of each range, all of one snapshot."""

    def snapshot(self) -> EngineSnapshot | None:
        """Return a snapshot of all committed data, in constant time; None, the default, if the engine has none.

        A store then copies the data into memory.
        """
        return None

    def has_records(self) -> bool:
        """Return whether the first data family in use has a committed record. Only the first record is read."""
        scan = self.scan()
        try:
            return bool(scan.fetch())
        finally:
            scan.close()

    @abstractmethod
    def meta(self) -> dict[bytes, bytes]:
        """Return all meta entries: few, of a kilobyte at most."""

    @abstractmethod
    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        """Apply the layers, oldest first, and the meta entries, atomically, with the durability of the engine's level.

        Without ``durable`` the write may skip a sync: it becomes durable with the next durable write at the latest.
        """

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write one entry immediately, without a sync; None deletes."""
        self.write([Writes((), {key: value})], {}, durable=False)

    def persist(self) -> None:
        """Make all writes so far survive at least a killed process. By default each write does."""

    @property
    def persistence(self) -> Persistence:
        """The commits that a killed process would lose. A ``write`` with meta entries is a commit."""
        return AT_ONCE

    def sync(self) -> None:
        """Give all writes so far the durability of the engine's level. By default each write has it."""

    @abstractmethod
    def approximate_num_entries(self, family: int = 0) -> int:
        """Return an estimate of the number of keys."""

    def verify(self) -> None:
        """Read all committed data and check it for damage. A transaction may be open.

        The thread that writes calls this, so that nothing is committed meanwhile. The default suits an engine whose
        reads verify checksums: it scans all keys and looks each one up, since a lookup reads other pages than a scan.
        Raises: StoreCorruptedError for damage.
        """
        for family in range(self.num_families):
            self._verify_family(family)
        self.meta()

    def _verify_family(self, family: int) -> None:
        last = b""
        scan = self.scan(WHOLE._replace(family=family))
        try:
            while chunk := scan.fetch():
                keys = [key for key, _ in chunk]
                if keys[0] <= last or not all(map(lt, keys, keys[1:])):
                    raise _inconsistent(self, f"keys behind {last[:32]!r} are out of order")
                values = self.get_each([(family, key) for key in keys]) if family else self.get_many(keys)
                if values != [value for _, value in chunk]:
                    raise _inconsistent(self, f"lookups of keys from {keys[0][:32]!r} on show other than a scan")
                last = keys[-1]
        finally:
            scan.close()

    def change_writer(self) -> None:
        """Note that this thread calls ``write`` from now on. The former one has ended its last call."""

    def metrics(self) -> Mapping[str, int]:
        """Return the engine's figures by name; the name has the unit. May be called on any thread; needs no scan."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Close the engine. Its scans must be closed before."""


def _inconsistent(engine: Engine, what: str) -> StoreCorruptedError:
    return StoreCorruptedError(f"the {engine.name} store is damaged, {what}: wipe it and restore it from its changelog")


class Transaction(ABC):
    """A transaction of the engine's own, which isolates its writes until ``commit``. Used by one thread at a time.

    An engine that can't write may abort a transaction. Its writes are then lost, none of them was committed, and every
    use but ``abort`` raises CommitFailedError with ``reopen``.
    Raises, all methods: StoreCorruptedError, StoreUnavailableError, CommitFailedError.
    """

    bound_to_thread: bool = False
    """True if only the thread that began the transaction may end it, unless that thread has ended."""

    @abstractmethod
    def get(self, key: bytes, family: int = 0) -> bytes | None:
        """Return the value of ``key``, with the transaction's own writes."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` of the first data family. By default they are looked up one by one."""
        return list(map(self.get, keys))

    @abstractmethod
    def fetch(self, bounds: ScanRange, most: int, *, reverse: bool) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return the first pairs of a range as it is now, as many as ``take``, and whether there are no more."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        """Write one entry; None deletes. After an error without ``reopen`` only this write is missing."""

    @abstractmethod
    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        """Remove the keys from ``start`` to ``end``, both included. Raises: as ``put``."""

    @abstractmethod
    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        """Commit the transaction with the meta entries, with the durability of the engine's level.

        After an error without ``reopen`` the transaction is still open.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard all writes and end the transaction. No effect if it has ended."""


class TransactionalEngine(Engine):
    """An engine with a transaction of its own, one at a time. Its other reads show committed data.

    While the transaction is open, there is no write outside of it.
    """

    spills: ClassVar[bool] = True
    """True if a growing transaction is spilled to disk, so that options bound its memory."""

    def prepare(self) -> None:
        """Reserve room for transactions while no scan is open, so that none has to be detached for it later."""

    @abstractmethod
    def begin(self) -> Transaction:
        """Begin the transaction; none is open. Raises: CommitFailedError."""
