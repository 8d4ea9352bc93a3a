"""The largest resident memory of a process with a RocksDB store in each of several threads, by its number of arenas.

    .venv/bin/python -m stores.tests.memory_of_arenas --threads 6

glibc gives threads arenas of their own, unless ``MALLOC_ARENA_MAX`` says how many there are. Each thread puts records
of 100 to 500 bytes, commits each 1,000 of them, and reads all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread

from stores.config import StoreConfig

ARENAS = (None, 2)
_COMMIT_RECORDS = 1_000
_MODULE = "stores.tests.memory_of_arenas"


def work(path: Path, limit: int, records: int, seed: int) -> None:
    """Fill a store, and read it."""
    random = Random(seed)
    with StoreConfig("rocksdb", memory_max_bytes=limit).open(path) as store:
        for number in range(records):
            store.put(b"%08d" % random.randrange(10**8), random.randbytes(random.randint(100, 500)))
            if number % _COMMIT_RECORDS == 0:
                store.commit()
        store.commit()
        with store.all() as scan:
            for _ in scan:
                pass


def in_threads(folder: Path, threads: int, limit: int, records: int, seed: int) -> int:
    """Let the threads of this process work; return its largest resident memory in bytes."""
    working = [
        Thread(target=work, args=(folder / str(number), limit, records, seed + number)) for number in range(threads)
    ]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


def in_process(arenas: int | None, *numbers: int) -> int:
    """Return what ``in_threads`` does with these numbers, in a process with so many arenas; None for the default."""
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    environment |= {} if arenas is None else {"MALLOC_ARENA_MAX": str(arenas)}
    with TemporaryDirectory(prefix="arenas-") as folder:
        program = f"from pathlib import Path; from {_MODULE} import in_threads; "
        program += f"print(in_threads(Path({folder!r}), *{numbers}))"
        command = [sys.executable, "-c", program]
        return int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    """Print a line for each number of arenas."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--records", type=int, default=80_000, help="of each thread")
    parser.add_argument("--limit-mib", type=int, default=256, help="memory.max.bytes")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    given = f"{options.threads} threads, {options.records:,} records each, a limit of {options.limit_mib} MiB"
    print(f"{given}, seed {options.seed}")
    for arenas in ARENAS:
        size = in_process(arenas, options.threads, options.limit_mib << 20, options.records, options.seed)
        print(f"{'by default' if arenas is None else f'{arenas} arenas'}: {size / (1 << 20):,.0f} MiB at most")


if __name__ == "__main__":
    main()
