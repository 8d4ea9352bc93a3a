"""The number of small stores that one process can hold, and their cost: ``python -m harness many-stores``.

Each backend gets its own process. It creates the stores, with one small commit each, looks a key up in each, closes
them and opens them all again. If it cannot open another store, it continues with those that it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.processes.child import MeasurementFailedError, figures_apart
from harness.report import text
from harness.report.page import TextTable
from stores import KeyValueStore, StoreError, TopicPartition, open_store
from stores.errors import ConfigError
from stores.registry import backend_named, backends

_LOG = TopicPartition("changelog", 0)
DEADLINE_S = 3_600.0


@dataclass(frozen=True)
class Cost:
    """The cost of ``stores`` open stores together; ``opening_s`` is the time of one store."""

    stores: int
    descriptors: int
    threads: int
    memory_bytes: int
    address_bytes: int
    opening_s: float
    refused: str
    """The error with which the next store was refused, or ""."""


def many_stores(names: Sequence[str] | None, count: int, progress: Callable[[str], None]) -> int:
    """Print a table of all backends, unless some are named. Return 1 if a process held fewer than ``count`` stores.

    Raises: ConfigError for an unknown name.
    """
    if count < 1:
        raise ConfigError(f"a number of stores is 1 or more, not {count}")
    backend_names = [backend_named(name).name for name in names] if names else sorted(backends())
    rows, fewer = [], []
    for name in backend_names:
        try:
            figures = figures_apart(hold, "many-stores", {"backend": name, "count": count}, DEADLINE_S)
        except MeasurementFailedError as error:
            raise StoreError(f"many stores of {name}: {error}") from error
        costs = {when: Cost(**cost) for when, cost in figures.items()}
        for when, cost in costs.items():
            rows.append([name, when, *_shown(cost)])
            if cost.stores < count:
                fewer.append(f"{name} held {cost.stores:,} stores ({when}): {cost.refused}")
        progress(f"{name}: {' and '.join(f'{cost.stores:,} {when}' for when, cost in costs.items())}")
    head = ("backend", "", "stores", "descriptors", "threads", "memory each", "addresses each", "time each")
    print(TextTable(f"{count:,} stores in one process", head, rows, range(2, 8)).plain())
    for line in fewer:
        print(line)
    return 1 if fewer else 0


def _shown(cost: Cost) -> list[str]:
    each = max(cost.stores, 1)
    return [
        text.exact(cost.stores),
        f"{cost.descriptors / each:.2f} each",
        text.exact(cost.threads),
        text.size(cost.memory_bytes / each),
        text.size(cost.address_bytes / each),
        text.duration(cost.opening_s),
    ]


def hold(backend: str, count: int, folder: Path) -> dict[str, Any]:
    """Create up to ``count`` stores in ``folder``, and open them all again. Return the cost of both in this process."""
    first, second = _hold(backend, count, folder), _hold(backend, count, folder, again=True)
    return {"made": asdict(first), "reopened": asdict(second)}


def _hold(backend: str, count: int, folder: Path, *, again: bool = False) -> Cost:
    stores: list[KeyValueStore] = []
    refused = ""
    before, began = _taken(), time.perf_counter()
    try:
        for number in range(count):
            if again and not (folder / str(number)).exists() and backends()[backend].persistent:
                break
            stores.append(open_store(backend, folder / str(number)))
            if not again:
                stores[-1].put(b"key", b"value")
                stores[-1].commit({_LOG: 1})
    except StoreError as error:
        refused = str(error)
    opening_s = (time.perf_counter() - began) / max(len(stores), 1)
    for store in stores:
        value = store.get(b"key")
        assert value == (b"value" if store.persistent or not again else None), value
    descriptors, threads, memory_bytes, address_bytes = (
        after - earlier for after, earlier in zip(_taken(), before, strict=True)
    )
    for store in stores:
        store.close()
    return Cost(len(stores), descriptors, threads, memory_bytes, address_bytes, opening_s, refused)


def _taken() -> tuple[int, int, int, int]:
    """Return the descriptors, threads, bytes of memory and bytes of address space of this process."""
    proc = Path("/proc/self")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    memory_bytes, address_bytes = (int(status[name].split()[0]) << 10 for name in ("VmRSS", "VmSize"))
    return len(os.listdir(proc / "fd")), int(status["Threads"]), memory_bytes, address_bytes
