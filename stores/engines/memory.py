"""An engine that keeps everything in memory and nothing when the process ends: for tests, and as a yardstick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import ClassVar, Self

from stores.engines.engine import Engine, Scan, Writes
from stores.interface import Durability
from stores.ranges import ScanRange
from stores.sorted_map import SortedMap

_FETCH = 256


class MemoryEngine(Engine):
    """A dict whose key order is made when a scan asks. Writing while scans are open copies it once."""

    name: ClassVar[str] = "memory"
    persistent: ClassVar[bool] = False
    durabilities: ClassVar[frozenset[Durability]] = frozenset({Durability.CHANGELOG})
    options: ClassVar[Mapping[str, object]] = {}
    max_key_bytes = 1 << 30
    max_value_bytes = 1 << 40

    def __init__(self) -> None:
        self._data: SortedMap[bytes] = SortedMap()
        self._meta: dict[bytes, bytes] = {}
        self._shared = False
        self._lock = Lock()

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        return cls()

    @classmethod
    def torn_by_power_loss(cls, durability: Durability) -> bool:
        return False

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._data.writes.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return list(map(self._data.writes.get, keys))

    def scan(self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False) -> Scan:
        return self.scans([ScanRange(start, end, end_open)], reverse=reverse)[0]

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        with self._lock:
            data, self._shared = self._data, True
            return [
                _MemoryScan(data.writes, data.merge(start, end, end_open=end_open, reverse=reverse), reverse=reverse)
                for start, end, end_open in ranges
            ]

    def meta(self) -> dict[bytes, bytes]:
        return dict(self._meta)

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        with self._lock:
            # Open scans keep the map that they have.
            data: SortedMap[bytes] = self._data.copy() if self._shared else self._data
            for ranges, writes in layers:
                for start, end in ranges:
                    data.discard_range(start, end)
                for key, value in writes.items():
                    if value is None:
                        data.discard(key)
                    else:
                        data.writes[key] = value
            self._data, self._shared = data, False
            for name, entry in meta.items():
                if entry is None:
                    self._meta.pop(name, None)
                else:
                    self._meta[name] = entry

    def put(self, key: bytes, value: bytes | None) -> None:
        self.write([Writes((), {key: value})], {})

    def persist(self) -> None:
        """Nothing survives a killed process here."""

    def sync(self) -> None:
        """Nothing is written anywhere."""

    def approximate_num_entries(self) -> int:
        return len(self._data.writes)

    def metrics(self) -> Mapping[str, int]:
        return {"num_keys": len(self._data.writes)}

    def close(self) -> None:
        """Nothing to release; a reader that is in the middle of something ends it well."""


class _MemoryScan(Scan):
    def __init__(self, values: Mapping[bytes, bytes], keys: Iterator[list[bytes]], *, reverse: bool) -> None:
        self._pairs: Iterator[tuple[bytes, bytes]] = (
            (key, values[key]) for some in keys for key in (reversed(some) if reverse else some)
        )

    def fetch(self) -> list[tuple[bytes, bytes]]:
        return list(islice(self._pairs, _FETCH))

    def close(self) -> None:
        self._pairs = iter(())
