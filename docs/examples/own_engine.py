"""An engine of one's own: all pairs in memory, and each write as one line of a log file.

The file never shrinks, a scan copies its range, and everything is in memory: this is an example, not a recommendation.
It is a complete backend all the same, and keeps every promise of the conformance suite but the bound on memory.

In your package's ``pyproject.toml``:

    [project.entry-points."stores.backends"]
    log-indexed-batch = "own_engine:BACKEND"

Then ``open_store("log-indexed-batch", path)`` opens it, and ``python -m stores.tests.conformance --backend
log-indexed-batch`` tests it. ``python own_engine.py`` writes a pair and reads it from the file again.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Self
from zlib import crc32

from stores.engines.engine import Engine, Scan, Writes, take
from stores.engines.families import FAMILIES, families_in_use
from stores.errors import CommitFailedError, StoreCorruptedError, StoreUnavailableError
from stores.interface import Durability
from stores.ordered import ScanRange
from stores.registry import Backend
from stores.strategies.indexed_batch import IndexedBatchStaging

FILE = "engine.log"
Pairs = dict[bytes, bytes]
Families = tuple[Pairs, Pairs]
Change = dict[str, Any]
"""One write: the ranges and the pairs of each layer, and the meta entries, with all bytes in hexadecimal."""


class LogEngine(Engine):
    """Sorted maps in memory with a log file. Below DISK nothing is synced: power loss may tear the log."""

    name: ClassVar[str] = "log"
    options: ClassVar[Mapping[str, object]] = {}
    max_key_bytes = 1 << 20
    max_value_bytes = 1 << 28
    # With two data families a plain store can be upgraded to a timestamped one.
    splits: ClassVar[bool] = True

    def __init__(self, file: Path, durability: Durability, data: Families, meta: Pairs) -> None:
        self._file, self._sync = file, durability is Durability.DISK
        self._data, self._meta = data, meta
        self._log = file.open("ab", buffering=0)
        self._lock = Lock()
        self._failed = False
        self.select_families()

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        """Replay the log. A last line that is not whole was cut short by a crash, and is removed."""
        file = path / FILE
        data: Families = ({}, {})
        meta: Pairs = {}
        try:
            file.touch()
            whole_bytes = 0
            for line in _lines(file):
                _apply(_decoded(line), data, meta)
                whole_bytes += len(line)
            os.truncate(file, whole_bytes)
            return cls(file, durability, data, meta)
        except OSError as error:
            raise StoreUnavailableError(f"{file} can't be opened: {error.strerror}. Make it writable") from error

    @classmethod
    def check_closed(cls, path: Path) -> None:
        """Refuse a log that ends within a line, although it was closed cleanly."""
        file = path / FILE
        if not file.exists() or sum(map(len, _lines(file))) != file.stat().st_size:
            raise StoreCorruptedError(f"{file} is cut short: wipe the store and restore it from its changelog")

    def add_family(self) -> None:
        """Both are always there."""

    def select_families(self) -> None:
        self._places = families_in_use(self._meta.get(FAMILIES))
        self.num_families = len(self._places)

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self._data[self._places[family]].get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.get_each([(0, key) for key in keys])

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        with self._lock:
            return [self.get(key, family) for family, key in keys]

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        with self._lock:
            return [CopiedScan(self._pairs(bounds), reverse=reverse) for bounds in ranges]

    def _pairs(self, bounds: ScanRange) -> list[tuple[bytes, bytes]]:
        start, end, end_open, family = bounds
        pairs = self._data[self._places[family]]
        return [pair for pair in pairs.items() if _within(pair[0], start, end, end_open=end_open)]

    def meta(self) -> dict[bytes, bytes]:
        return dict(self._meta)

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        if self._failed:
            raise CommitFailedError(f"{self._file} has refused a sync: open the store again", reopen=True)
        change: Change = {
            "layers": [
                {
                    "family": self._places[layer.family],
                    "ranges": [[_hex(start), _hex(end)] for start, end in layer.ranges],
                    "writes": {key.hex(): _hex(value) for key, value in layer.writes.items()},
                }
                for layer in layers
            ],
            "meta": {key.hex(): _hex(value) for key, value in meta.items()},
        }
        self._append(_encoded(change), synced=durable and self._sync)
        with self._lock:
            _apply(change, self._data, self._meta)

    def _append(self, line: bytes, *, synced: bool) -> None:
        log = self._log.fileno()
        before = os.fstat(log).st_size
        try:
            if self._log.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(log, before)
            raise CommitFailedError(f"{self._file}: {error.strerror}. Nothing was written: try again") from error
        try:
            if synced:
                os.fsync(log)
        except OSError as error:
            # The line may be on disk or not: only opening the file again can tell.
            self._failed = True
            raise CommitFailedError(f"{self._file}: {error.strerror}. Open the store again", reopen=True) from error

    def sync(self) -> None:
        if self._sync:
            os.fsync(self._log.fileno())

    def approximate_num_entries(self, family: int = 0) -> int:
        return len(self._data[self._places[family]])

    def metrics(self) -> Mapping[str, int]:
        return {"num_keys": sum(map(len, self._data)), "log_bytes": os.stat(self._file).st_size}

    def close(self) -> None:
        self._log.close()


class CopiedScan(Scan):
    """A scan of a copy."""

    def __init__(self, pairs: list[tuple[bytes, bytes]], *, reverse: bool) -> None:
        self._pairs = iter(sorted(pairs, reverse=reverse))

    def fetch(self) -> list[tuple[bytes, bytes]]:
        return take(self._pairs, 256)[0]

    def close(self) -> None:
        self._pairs = iter(())


def _lines(file: Path) -> Iterator[bytes]:
    """Yield the lines up to the first that is torn. Raises: StoreCorruptedError where whole ones follow it."""
    torn = False
    with file.open("rb") as lines:
        for line in lines:
            whole = line.endswith(b"\n") and line[:8] == b"%08x" % crc32(line[9:-1])
            if whole and torn:
                raise StoreCorruptedError(f"{file} is damaged: wipe the store and restore it from its changelog")
            torn = torn or not whole
            if whole:
                yield line


def _encoded(change: Change) -> bytes:
    text = json.dumps(change).encode()
    return b"%08x %b\n" % (crc32(text), text)


def _decoded(line: bytes) -> Change:
    change: Change = json.loads(line[9:-1])
    return change


def _apply(change: Change, data: Families, meta: Pairs) -> None:
    for layer in change["layers"]:
        family: int = layer["family"]
        pairs = data[family]
        for start, end in layer["ranges"]:
            for key in [key for key in pairs if _within(key, _bytes(start), _bytes(end), end_open=False)]:
                del pairs[key]
        _put_all(pairs, layer["writes"])
    _put_all(meta, change["meta"])


def _put_all(kept: Pairs, pairs: Mapping[str, str | None]) -> None:
    for key, value in pairs.items():
        if value is None:
            kept.pop(bytes.fromhex(key), None)
        else:
            kept[bytes.fromhex(key)] = bytes.fromhex(value)


def _within(key: bytes, start: bytes | None, end: bytes | None, *, end_open: bool) -> bool:
    return (start is None or key >= start) and (end is None or key < end or (key == end and not end_open))


def _hex(given: bytes | None) -> str | None:
    return None if given is None else given.hex()


def _bytes(given: str | None) -> bytes | None:
    return None if given is None else bytes.fromhex(given)


BACKEND = Backend("log-indexed-batch", lambda: LogEngine, lambda: IndexedBatchStaging)


def main() -> None:
    """Write a pair, close the engine, and read the pair from the file again."""
    with tempfile.TemporaryDirectory() as folder:
        engine = LogEngine.open(Path(folder), Durability.DISK, {})
        engine.write([Writes((), {b"apples": b"3", b"pears": b"1"})], {b"offset": b"41"})
        engine.write([Writes([(b"p", None)], {})], {})
        engine.close()
        engine = LogEngine.open(Path(folder), Durability.DISK, {})
        print(engine.scan().fetch(), engine.meta())
        engine.close()


if __name__ == "__main__":
    main()
