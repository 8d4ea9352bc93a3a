"""Compare a cache of committed records in place of memtables with the indexed batch, over RocksDB. For Linux.

KIP-892 rejected Kafka Streams' ThreadCache as a replacement of memtables. The prototype here is the nearest thing that
rocksdict allows. RocksDB has write buffers of 64 KiB, the least that it takes. A least-recently-used cache in Python
has committed records, from commits and from lookups. The indexed batch has RocksDB's own write buffers. Each RocksDB
has a block cache of 8 MiB.

    python -m harness.experiments.memory.record_cache 200000

Both do the same work in turns, each in its own process: commits of 1,000 puts of Zipf-like keys, each put after a
lookup of its key. It prints CPU time per record and the anonymous memory that it added.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from harness.experiments.memory.memory_watch import anonymous_bytes
from stores import open_store

KEYS, PER_COMMIT, TURNS = 100_000, 1_000, 3
BATCH, CACHE = "indexed batch", "record cache"
OPTIONS = {"block_cache_size_bytes": 8 << 20}
SMALL = {**OPTIONS, "write_buffer_size_bytes": 64 << 10, "offsets_write_buffer_size_bytes": 64 << 10}
CACHE_BYTES = 3 * (16 << 20)
"""The memory of the cache: that of the write buffers which it replaces."""
ENTRY_BYTES = 180
"""The memory of an entry beside its key and value: two objects and a place in an ordered dictionary."""


class RecordCache:
    """The most recently used committed records, up to ``CACHE_BYTES``."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, bytes | None] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: bytes, otherwise: Callable[[bytes], bytes | None]) -> bytes | None:
        """Return the value of ``key``, from ``otherwise`` if it is not here."""
        if key in self._records:
            self._records.move_to_end(key)
            return self._records[key]
        value = otherwise(key)
        self.put(key, value)
        return value

    def put(self, key: bytes, value: bytes | None) -> None:
        """Keep a committed record; None is the absence of one."""
        records = self._records
        if key in records:
            self._num_bytes -= len(records[key] or b"")
        else:
            self._num_bytes += len(key) + ENTRY_BYTES
        records[key] = value
        records.move_to_end(key)
        self._num_bytes += len(value or b"")
        while self._num_bytes > CACHE_BYTES:
            oldest, oldest_value = records.popitem(last=False)
            self._num_bytes -= len(oldest) + len(oldest_value or b"") + ENTRY_BYTES


def work(kind: str, records: int, path: Path) -> tuple[float, float]:
    """Return the microseconds of CPU for a record, and the MiB of the anonymous memory that it added."""
    draw = random.Random(892)
    keys = [b"%016d" % int(KEYS ** draw.random()) for _ in range(records)]
    before = anonymous_bytes(os.getpid())
    with open_store("rocksdb-indexed-batch", path, options=SMALL if kind == CACHE else OPTIONS) as store:
        cache = RecordCache()
        begin = time.process_time()
        for at in range(0, records, PER_COMMIT):
            staged: dict[bytes, bytes] = {}
            for number, key in enumerate(keys[at : at + PER_COMMIT], at):
                value = b"%0100d" % number
                if kind == CACHE:
                    if key not in staged:
                        cache.get(key, store.get)
                    staged[key] = value
                else:
                    store.get(key)
                store.put(key, value)
            store.commit()
            for key, value in staged.items():
                cache.put(key, value)
        cpu_s = time.process_time() - begin
        return cpu_s / records * 1e6, (anonymous_bytes(os.getpid()) - before) / (1 << 20)


def main() -> None:
    """Run both in turns, each in a process of its own."""
    if len(sys.argv) == 3:
        with tempfile.TemporaryDirectory() as folder:
            print(*work(sys.argv[2], int(sys.argv[1]), Path(folder, "store")))
        return
    figures: dict[str, list[list[float]]] = {BATCH: [], CACHE: []}
    for _ in range(TURNS):
        for kind, turns in figures.items():
            command = [sys.executable, "-m", __spec__.name, sys.argv[1], kind]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            turns.append([float(figure) for figure in answer.split()])
    for kind, turns in figures.items():
        micros, mebibytes = (sorted(column)[TURNS // 2] for column in zip(*turns, strict=True))
        print(f"{kind}: {micros:.2f} us of CPU per record, {mebibytes:.1f} MiB of memory")


if __name__ == "__main__":
    main()
