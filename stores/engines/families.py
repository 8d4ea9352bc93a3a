"""The data families of an engine: one, or two during the upgrade of a store's records to another format.

A meta entry names those in use. Without it, the first family has all data. With ``BOTH``, the first has records of the
older format and the second those of the present one; only writes move records between them. With ``SECOND``, the second
family has all data, and the first stays empty. If both are in use, the first has number 0 and the second number 1.
Otherwise the one with all data has number 0. Source: KIP-258, ``RocksDBTimestampedStore``.

``SplitEngine`` shows both families as one map: the first byte of a key names its family. So a store over it works as
over any engine: buffers, spills, scans and merges do not know the families, and a record is moved between them by two
writes of one transaction. Keys that begin with ``OLD`` are records of the older format, those that begin with ``NEW``
of the present one. The engine below gets the keys without this byte, so that its limit on keys applies to the user's
keys in both families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self, cast

from stores.contract.levels import Persistence
from stores.engines.engine import Capture, Engine, EngineSnapshot, Scan, Transaction, TransactionalEngine, Writes
from stores.errors import StoreIncompatibleError, damaged
from stores.interface import Durability
from stores.ordered import ScanRange

FAMILIES: Final = b"f"
"""The meta entry."""
BOTH: Final = b"both"
SECOND: Final = b"second"


def families_in_use(entry: bytes | None) -> tuple[int, ...]:
    """Return the families with data, by their place on disk: 0 for the first. Raises: StoreCorruptedError."""
    places: Mapping[bytes | None, tuple[int, ...]] = {None: (0,), BOTH: (0, 1), SECOND: (1,)}
    if entry not in places:
        raise damaged(f"the meta entry of the data families is invalid, {entry!r}")
    return places[entry]


OLD: Final = b"\x00"
"""The first byte of each key of the first family."""
NEW: Final = b"\x01"
"""The first byte of each key of the second family."""
_TAGS = (OLD, NEW)

Pair = tuple[bytes, bytes]


class SplitEngine(TransactionalEngine):
    """The two families of ``engine`` as one map. It has transactions if ``engine`` has them."""

    name: ClassVar[str] = "split"
    options: ClassVar[Mapping[str, object]] = {}

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        """The engine below."""
        # A snapshot by files is whole as long as there are two.
        engine.changed = None
        self.max_key_bytes = engine.max_key_bytes + 1
        self.max_value_bytes = engine.max_value_bytes

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        raise NotImplementedError("a split engine is created over an open one")

    @property
    def kind(self) -> type[Engine]:
        return self.engine.kind

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self.engine.get(key[1:], key[0]) if _is_known(key) else None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        tagged_keys = [(key[0], key[1:]) for key in keys if _is_known(key)]
        values = iter(self.engine.get_each(tagged_keys))
        return [next(values) if _is_known(key) else None for key in keys]

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        parts = [_parts(bounds, reverse=reverse) for bounds in ranges]
        scans = iter(self.engine.scans([part for some in parts for part in some], reverse=reverse))
        return [_SplitScan((part.family, next(scans)) for part in some) for some in parts]

    def snapshot(self) -> EngineSnapshot | None:
        below = self.engine.snapshot()
        return None if below is None else _SplitSnapshot(below)

    def capture(self, folder: Path) -> Capture:
        return self.engine.capture(folder)

    def meta(self) -> dict[bytes, bytes]:
        return self.engine.meta()

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        self.engine.write([part for layer in layers for part in _split(layer)], meta, durable=durable)

    def persist(self) -> None:
        self.engine.persist()

    def change_writer(self) -> None:
        self.engine.change_writer()

    @property
    def persistence(self) -> Persistence:
        return self.engine.persistence

    def sync(self) -> None:
        self.engine.sync()

    def approximate_num_entries(self, family: int = 0) -> int:
        return sum(self.engine.approximate_num_entries(each) for each in range(self.engine.num_families))

    def verify(self) -> None:
        self.engine.verify()

    def metrics(self) -> Mapping[str, int]:
        return {**self.engine.metrics(), "num_old_entries": self.engine.approximate_num_entries()}

    def close(self) -> None:
        self.engine.close()

    def prepare(self) -> None:
        cast(TransactionalEngine, self.engine).prepare()

    def begin(self) -> Transaction:
        return _SplitTransaction(cast(TransactionalEngine, self.engine).begin())


def split_or_whole(engine: Engine) -> Engine:
    """Return ``engine``, or a ``SplitEngine`` over it if two data families are in use."""
    return SplitEngine(engine) if engine.num_families > 1 else engine


class _SplitScan(Scan):
    """The scans of the families, one after the other, with the families' bytes before the keys."""

    def __init__(self, parts: Iterable[tuple[int, Scan]]) -> None:
        self._parts = list(parts)

    def fetch(self) -> list[Pair]:
        while self._parts:
            family, scan = self._parts[0]
            if chunk := scan.fetch():
                return _tagged(family, chunk)
            del self._parts[0]
            scan.close()
        return []

    def close(self) -> None:
        parts, self._parts = self._parts, []
        for _, scan in parts:
            scan.close()


class _SplitSnapshot(EngineSnapshot):
    """A snapshot of the engine below."""

    def __init__(self, below: EngineSnapshot) -> None:
        self._below, self._meta = below, below.meta()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self._below.get(key[1:], key[0]) if _is_known(key) else None

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        parts = _parts(bounds, reverse=reverse)
        return _SplitScan((part.family, self._below.scan(part, reverse=reverse)) for part in parts)

    def close(self) -> None:
        self._below.close()


class _SplitTransaction(Transaction):
    """A transaction of the engine below."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.bound_to_thread = transaction.bound_to_thread

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self._transaction.get(key[1:], key[0]) if _is_known(key) else None

    def fetch(self, bounds: ScanRange, most: int, *, reverse: bool) -> tuple[list[Pair], bool]:
        parts = _parts(bounds, reverse=reverse)
        for number, part in enumerate(parts):
            chunk, at_end = self._transaction.fetch(part, most, reverse=reverse)
            if chunk or number == len(parts) - 1:
                return _tagged(part.family, chunk), at_end and number == len(parts) - 1
        return [], True

    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        _check_known(key)
        self._transaction.put(key[1:], value, key[0])

    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        for part in _parts(ScanRange(start, end)):
            self._transaction.delete_range(part.start, part.end, part.family)

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        self._transaction.commit(meta)

    def abort(self) -> None:
        self._transaction.abort()


def _is_known(key: bytes) -> bool:
    return len(key) > 1 and key[0] < len(_TAGS)


def _check_known(key: bytes) -> None:
    if not _is_known(key):
        raise StoreIncompatibleError(
            f"key {key[:32]!r} has neither format of this store, which is being upgraded: write to it as "
            "TimestampedKeyValue"
        )


def _tagged(family: int, pairs: list[Pair]) -> list[Pair]:
    tag = _TAGS[family]
    return [(tag + key, value) for key, value in pairs]


def _parts(bounds: ScanRange, *, reverse: bool = False) -> list[ScanRange]:
    """Split a range into ranges of the families that it covers, in the order of the scan."""
    start, end, end_open, _ = bounds
    parts = []
    for family, tag in enumerate(_TAGS):
        low, high, high_open = None, None, False
        if start is not None and start[:1] >= tag:
            if start[:1] > tag:
                continue
            low = start[1:] or None
        if end is not None and end[:1] <= tag:
            if end[:1] < tag or len(end) == 1:
                continue
            high, high_open = end[1:], end_open
        parts.append(ScanRange(low, high, high_open, family))
    return parts[::-1] if reverse else parts


def _split(layer: Writes) -> list[Writes]:
    """Split a layer into one for each family that it writes to."""
    ranges, writes, _ = layer
    puts: tuple[dict[bytes, bytes | None], ...] = ({}, {})
    for key, value in writes.items():
        _check_known(key)
        puts[key[0]][key[1:]] = value
    deletes: tuple[list[tuple[bytes | None, bytes | None]], ...] = ([], [])
    for start, end in ranges:
        for part in _parts(ScanRange(start, end)):
            deletes[part.family].append((part.start, part.end))
    layers = [Writes(deletes[family], puts[family], family) for family in range(len(_TAGS))]
    return [part for part in layers if part.ranges or part.writes]
