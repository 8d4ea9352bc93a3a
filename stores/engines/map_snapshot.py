"""A snapshot in memory: the maps of the memory engine, or a copy of another engine's data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Lock

from stores.engines.engine import Engine, EngineSnapshot, Scan
from stores.ordered.ranges import ScanRange
from stores.ordered.sorted_map import SortedMap

_FETCH = 256


class MapSnapshot(EngineSnapshot):
    """The data in ``maps``, one for each data family, which nobody changes. ``lock`` is held while keys are sorted."""

    def __init__(
        self, maps: Sequence[SortedMap[bytes]], meta: Mapping[bytes, bytes], lock: AbstractContextManager[object]
    ) -> None:
        self._maps, self._meta, self._lock = maps, meta, lock

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self._maps[family].writes.get(key)

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        start, end, end_open, family = bounds
        data = self._maps[family]
        with self._lock:
            keys = data.merge(start, end, end_open=end_open, reverse=reverse)
        return MapScan(data.writes, keys, reverse=reverse)

    def meta(self) -> Mapping[bytes, bytes]:
        return self._meta

    def close(self) -> None:
        """Do nothing: the maps are freed with their last user."""


class MapScan(Scan):
    """A scan of ``values`` in the order of ``keys``."""

    def __init__(self, values: Mapping[bytes, bytes], keys: Iterator[list[bytes]], *, reverse: bool) -> None:
        self._values, self._keys, self._reverse = values, keys, reverse
        self._some: list[bytes] = []
        """Keys in the order of the scan; those from ``_at`` on are not fetched yet."""
        self._at = 0

    def fetch(self) -> list[tuple[bytes, bytes]]:
        while self._at >= len(self._some):
            some = next(self._keys, None)
            if some is None:
                return []
            self._some, self._at = some[::-1] if self._reverse else some, 0
        keys = self._some[self._at : self._at + _FETCH]
        self._at += len(keys)
        # Without bytecode for each pair.
        return list(zip(keys, map(self._values.__getitem__, keys), strict=True))

    def close(self) -> None:
        self._keys, self._some = iter(()), []


def copied(engine: Engine) -> MapSnapshot:
    """Return a copy of all data of ``engine``, for an engine that has no snapshots.

    Raises: the errors of the engine's reads.
    """
    families = [ScanRange(None, None, family=family) for family in range(engine.num_families)]
    while True:
        meta = engine.meta()
        scans = engine.scans(families)
        if engine.meta() == meta:
            return read_whole(scans, meta)
        for scan in scans:
            scan.close()


def read_whole(scans: Sequence[Scan], meta: Mapping[bytes, bytes]) -> MapSnapshot:
    """Read ``scans``, each of one data family, to their ends. They are closed afterwards."""
    maps = []
    for scan in scans:
        pairs: dict[bytes, bytes] = {}
        try:
            while chunk := scan.fetch():
                pairs.update(chunk)
        finally:
            scan.close()
        maps.append(SortedMap(pairs))
    return MapSnapshot(maps, meta, Lock())
