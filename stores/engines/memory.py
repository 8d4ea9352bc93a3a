"""An engine that keeps all data in memory and loses it when the process ends: for tests and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import ClassVar, Self

from stores.engines.engine import Engine, EngineSnapshot, Scan, Writes
from stores.engines.families import BOTH, FAMILIES, families_in_use
from stores.engines.snapshots import MapScan, MapSnapshot
from stores.interface import Durability
from stores.ordered import WHOLE, ScanRange, SortedMap


class MemoryEngine(Engine):
    """A dict whose keys are sorted for a scan. The first write after a scan was made copies the dict."""

    name: ClassVar[str] = "memory"
    persistent: ClassVar[bool] = False
    bounded_memory: ClassVar[bool] = False
    durabilities: ClassVar[frozenset[Durability]] = frozenset({Durability.CHANGELOG})
    options: ClassVar[Mapping[str, object]] = {}
    splits: ClassVar[bool] = True
    max_key_bytes = 1 << 30
    max_value_bytes = 1 << 40

    def __init__(self) -> None:
        self._stored: list[SortedMap[bytes]] = [SortedMap()]
        self._meta: dict[bytes, bytes] = {}
        self._shared: set[int] = set()
        """The data families whose map an open scan may use."""
        self._lock = Lock()

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        return cls()

    @classmethod
    def torn_by_power_loss(cls, durability: Durability) -> bool:
        return False

    def add_family(self) -> None:
        if len(self._stored) < len(families_in_use(BOTH)):
            self._stored.append(SortedMap())

    def select_families(self) -> None:
        with self._lock:
            self._stored = [self._stored[place] for place in families_in_use(self._meta.get(FAMILIES))]
            self._shared = set(range(len(self._stored)))
            self.num_families = len(self._stored)

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        with self._lock:
            return self._stored[family].writes.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return list(map(self._stored[0].writes.get, keys))

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        with self._lock:
            return [self._stored[family].writes.get(key) for family, key in keys]

    def scan(self, bounds: ScanRange = WHOLE, *, reverse: bool = False) -> Scan:
        # Without the lists of ``scans``, which would take a twentieth of the time of a short scan.
        with self._lock:
            self._shared.add(bounds.family)
            return MapScan(self._stored[bounds.family], bounds, reverse=reverse)

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        with self._lock:
            self._shared.update([bounds.family for bounds in ranges])
            return [MapScan(self._stored[bounds.family], bounds, reverse=reverse) for bounds in ranges]

    def snapshot(self) -> EngineSnapshot:
        with self._lock:
            self._shared.update(range(len(self._stored)))
            return MapSnapshot(list(self._stored), dict(self._meta), self._lock)

    def meta(self) -> dict[bytes, bytes]:
        return dict(self._meta)

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        with self._lock:
            for layer in layers:
                ranges, writes, family = layer
                if family in self._shared:
                    # Open scans keep the old map.
                    self._stored[family] = self._stored[family].copy()
                    self._shared.discard(family)
                data = self._stored[family]
                for start, end in ranges:
                    data.discard_range(start, end)
                for key, value in writes.items():
                    if value is None:
                        data.discard(key)
                    else:
                        data.writes[key] = value
            for name, entry in meta.items():
                if entry is None:
                    self._meta.pop(name, None)
                else:
                    self._meta[name] = entry

    def approximate_num_entries(self, family: int = 0) -> int:
        return len(self._stored[family].writes)

    def metrics(self) -> Mapping[str, int]:
        return {"num_keys": sum(len(data.writes) for data in self._stored)}

    def close(self) -> None:
        """Do nothing: readers in the middle of a call complete it."""
