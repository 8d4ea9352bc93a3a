"""The time to open a store and to look up its first key, with and without its files in the page cache.

A store is filled and closed cleanly. Before a cold opening its files are synced and dropped from the page cache. Each
backend has its own process.

Source: posix_fadvise(2), "POSIX_FADV_DONTNEED": pages that are not written back yet are not dropped.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from stores.interface import Durability, TopicPartition
from stores.registry import open_store

VALUE_BYTES = 100
DEADLINE_S = 120
_BATCH = 10_000
_CHANGELOG = TopicPartition("changelog", 0)


def drop_from_cache(folder: Path) -> None:
    """Sync every file below ``folder``, and ask the system to drop its pages."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        file = os.open(path, os.O_RDWR)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def measured(backend: str, records: int, repeats: int, seed: int, folder: Path) -> dict[str, Any]:
    """Return a row for warm openings and one for cold ones: medians over ``repeats``, in turns."""
    path = folder / "store"
    random = Random(seed)
    keys = [b"%016x" % number for number in range(records)]
    with open_store(backend, path, durability=Durability.CHANGELOG) as store:
        for begin in range(0, records, _BATCH):
            store.put_all([(key, random.randbytes(VALUE_BYTES)) for key in keys[begin : begin + _BATCH]])
            store.commit({_CHANGELOG: begin})
    times: dict[str, list[tuple[float, float]]] = {"warm": [], "cold": []}
    for repeat in range(repeats + 1):
        for cache, seconds in times.items():
            if cache == "cold":
                drop_from_cache(path)
            began = perf_counter()
            with open_store(backend, path, durability=Durability.CHANGELOG) as store:
                opened_at = perf_counter()
                value = store.get(random.choice(keys))
                looked_up = perf_counter()
            assert value is not None
            if repeat:
                seconds.append((opened_at - began, looked_up - opened_at))
    rows = [
        {
            "backend": backend,
            "durability": "CHANGELOG",
            "records": records,
            "cache": cache,
            "open_s": median(open_s for open_s, _ in seconds),
            "first_get_s": median(get_s for _, get_s in seconds),
        }
        for cache, seconds in times.items()
    ]
    return {"rows": rows}
