"""What a strategy asks of an engine: committed bytes, one atomic write, and scans that are snapshots.

An engine keeps two maps of bytes to bytes: the data, and beside it, never shown in a scan, the *meta* entries that
strategies use for offsets and position. It knows nothing of a store's transactions, threads or iterators' owners; one
that has transactions itself may lend them (``TransactionalEngine``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import lt
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from stores.errors import StoreCorruptedError
from stores.interface import Durability
from stores.persistence import AT_ONCE, Persistence
from stores.ranges import Bounds, ScanRange


class Writes(NamedTuple):
    """One layer of an atomic write: first the ranges are removed, then the writes are applied; None deletes."""

    ranges: Iterable[Bounds]
    writes: Mapping[bytes, bytes | None]
    family: int = 0
    """The data family that is written to: 1 for the second of two (``stores.engines.families``)."""

    def keys_in_order(self) -> Iterable[list[bytes]]:
        """The keys of ``writes``, ascending, in one list or more."""
        return [sorted(self.writes)]


FETCH_BYTES_MAX = 1 << 20
"""A fetch ends at the pair whose value takes it to this many bytes, so that large values don't pile up in memory."""


def take(pairs: Iterator[tuple[bytes, bytes]], most: int) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Up to ``most`` pairs or about ``FETCH_BYTES_MAX`` from the front, and whether there are no more."""
    taken = []
    num_bytes = 0
    for pair in islice(pairs, most):
        taken.append(pair)
        num_bytes += len(pair[1])
        if num_bytes >= FETCH_BYTES_MAX:
            return taken, False
    return taken, len(taken) < most


class Scan(ABC):
    """An ordered read of a snapshot taken when it was made. Used by one thread at a time."""

    @abstractmethod
    def fetch(self) -> list[tuple[bytes, bytes]]:
        """The next pairs in order, some hundred or about a megabyte at most; an empty list at the end."""

    @abstractmethod
    def close(self) -> None:
        """Release the snapshot. May be called more than once; nothing is fetched afterwards."""


class Engine(ABC):
    """Committed bytes on disk. Reads may come from any thread; writes from one at a time.

    Raises, all methods: StoreCorruptedError, StoreUnavailableError; ``write`` and ``put`` CommitFailedError.
    """

    name: ClassVar[str]
    """The engine's part of a backend's name."""
    persistent: ClassVar[bool] = True
    durabilities: ClassVar[frozenset[Durability]] = frozenset(Durability)
    """The levels that this engine can carry."""
    options: ClassVar[Mapping[str, object]]
    """Every option the engine takes, with its default."""
    option_values: ClassVar[Mapping[str, Container[object]]] = {}
    """What some options can be, to be refused before anything is opened; the others take any value of their default's
    type, numbers from 0 (from -1 where that is the default) up to 2**63 - 1."""
    deletes_ranges_whole: ClassVar[bool] = False
    """Whether a range delete costs the same whatever it removes."""
    max_key_bytes: int
    max_value_bytes: int
    splits: ClassVar[bool] = False
    """Whether it can keep data in two families (``stores.engines.families``), which all ``family`` here stand for."""
    num_families: int = 1
    """How many data families are in use."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        """Open the engine's folder ``path``, which is there, creating its files in it where there are none.

        ``options`` holds a value for every name in ``options`` of the class.
        """

    @classmethod
    def torn_by_power_loss(cls, durability: Durability) -> bool:
        """Whether power loss may leave this engine, at this level, in a state that is no earlier commit."""
        return durability is not Durability.DISK

    @classmethod
    def check_closed(cls, path: Path) -> None:
        """See whether what lies in ``path``, which was closed cleanly, is what a crash could only have cut short.

        Opening can't tell that from a crash, and goes on with less. Raises: StoreCorruptedError, OSError.
        """

    @classmethod
    def is_doubtful(cls, path: Path) -> bool:
        """Whether opening what lies in ``path`` may never end, or end the process: then it is rehearsed.

        Raises: OSError.
        """
        return False

    @classmethod
    def rehearse(cls, path: Path, options: Mapping[str, object]) -> None:
        """Open what lies in ``path`` and close it, in a process that may die of it, leaving everything as it was."""

    @property
    def kind(self) -> type[Engine]:
        """The engine's class, which opens its files."""
        return type(self)

    def add_family(self) -> None:
        """Make the second data family if it is not there. Nothing refers to it yet. Raises: CommitFailedError."""
        raise NotImplementedError(f"{type(self).__name__} has one data family")

    def settle_families(self) -> None:
        """Use those data families that the meta entry names, after it was written. No scan is open."""
        raise NotImplementedError(f"{type(self).__name__} has one data family")

    @abstractmethod
    def get(self, key: bytes, family: int = 0) -> bytes | None:
        """The committed value of ``key``."""

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """As ``get_many``, of pairs of a family and a key."""
        raise NotImplementedError(f"{type(self).__name__} has one data family")

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The committed values of ``keys``, in their order, all of one moment."""

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False) -> Scan:
        """Pairs from ``start`` to ``end``; ``end`` itself only if not ``end_open``."""

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        """A scan of each range, all of one moment.

        An engine whose scans could show a write in the later ones only makes them in another way than this.
        """
        return [self.scan(start, end, end_open=end_open, reverse=reverse) for start, end, end_open, _ in ranges]

    def has_records(self) -> bool:
        """Whether anything is committed in the first data family in use. It looks for the first record."""
        scan = self.scan(None, None)
        try:
            return bool(scan.fetch())
        finally:
            scan.close()

    @abstractmethod
    def meta(self) -> dict[bytes, bytes]:
        """All meta entries: few, of a kilobyte at most."""

    @abstractmethod
    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        """Apply the layers, oldest first, and the meta entries, atomically, with the durability of the engine's level.

        Without ``durable`` the write may skip a sync: it is lost or kept like the next durable one at the latest.
        """

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Write one entry at once, unsynced; None deletes."""

    @abstractmethod
    def persist(self) -> None:
        """Let everything written so far survive at least a killed process."""

    @property
    def persistence(self) -> Persistence:
        """How much of what was written a killed process would lose. A ``write`` with meta entries is a commit."""
        return AT_ONCE

    @abstractmethod
    def sync(self) -> None:
        """Let everything written so far survive what the engine's level promises; a no-op where each write does."""

    @abstractmethod
    def approximate_num_entries(self, family: int = 0) -> int:
        """About how many keys there are."""

    def verify(self) -> None:
        """Read all that is committed, and check whatever tells damage, beside an open transaction, too.

        Called by the thread that writes: nothing is committed meanwhile. This much does for an engine each of whose
        reads checks what it reads: it scans, and looks up what it has scanned, since these go different ways to the
        same bytes. Raises: StoreCorruptedError for damage.
        """
        for family in range(self.num_families):
            self._verify_family(family)
        self.meta()

    def _verify_family(self, family: int) -> None:
        last = b""
        [scan] = self.scans([ScanRange(None, None, family=family)])
        try:
            while chunk := scan.fetch():
                keys = [key for key, _ in chunk]
                if keys[0] <= last or not all(map(lt, keys, keys[1:])):
                    raise _told_wrongly(self, f"keys behind {last[:32]!r} are out of order")
                found = self.get_each([(family, key) for key in keys]) if family else self.get_many(keys)
                if found != [value for _, value in chunk]:
                    raise _told_wrongly(self, f"lookups of keys from {keys[0][:32]!r} on show other than a scan")
                last = keys[-1]
        finally:
            scan.close()

    def metrics(self) -> Mapping[str, int]:
        """Figures worth watching, by name; bytes where the name says so. From any thread; costs no scan."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release everything. Scans must be closed before."""


def _told_wrongly(engine: Engine, what: str) -> StoreCorruptedError:
    return StoreCorruptedError(f"the {engine.name} store is damaged, {what}: wipe it and restore it from its changelog")


class Transaction(ABC):
    """Writes that an engine keeps apart by itself until ``commit``. Used from any thread, by one at a time.

    An engine may have to give a transaction up, where it can't write: its writes are gone then, nothing of them was
    committed, and every use but ``abort`` raises CommitFailedError with ``reopen``.
    Raises, all methods: StoreCorruptedError, StoreUnavailableError, CommitFailedError.
    """

    bound_to_thread: bool = False
    """Whether only the thread that began it may end it, unless that thread has ended."""

    @abstractmethod
    def get(self, key: bytes, family: int = 0) -> bytes | None:
        """The value of ``key``, with the transaction's own writes."""

    @abstractmethod
    def fetch(
        self, start: bytes | None, end: bytes | None, most: int, *, end_open: bool, reverse: bool, family: int = 0
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The first pairs of a range as it is now, as many as ``take`` does, and whether there are no more."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        """Write one entry; None deletes. Where it raises without ``reopen``, only this write was not made."""

    @abstractmethod
    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        """Remove the keys from ``start`` to ``end``, both included. Raises as ``put``."""

    @abstractmethod
    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        """Make everything committed, with the meta entries and the durability of the engine's level, and end.

        Where it raises without ``reopen``, the transaction is still open.
        """

    @abstractmethod
    def abort(self) -> None:
        """Forget everything, and end; nothing where it has ended."""


class TransactionalEngine(Engine):
    """An engine with a transaction of its own, one at a time. Its other reads go on showing what was committed.

    While the transaction is open, nothing is written past it.
    """

    spills: ClassVar[bool] = True
    """Whether its transaction leaves memory as it grows, so that its options bound what it takes there."""

    def prepare(self) -> None:
        """Make what room transactions need while no scan is open yet, so that none has to give way to it later."""

    @abstractmethod
    def begin(self) -> Transaction:
        """Begin the transaction; none is open. Raises: CommitFailedError."""
