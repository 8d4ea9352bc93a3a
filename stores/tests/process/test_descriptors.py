"""Stores take few file descriptors, and where there are none left the error says so."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stores import open_store

TAKEN = {"memory": 0, "lmdb": 4, "sqlite": 3}
"""By each store, at most, by the engine's part of a backend's name; RocksDB takes more, by its number of files."""
BACKENDS = ("memory-indexed-batch", "lmdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch", "sqlite-native")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_takes_few_descriptors_and_gives_them_back(tmp_path: Path, backend: str) -> None:
    open_store(backend, tmp_path / "first").close()
    # Descriptors that other tests left to the collector are no part of this.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    stores = [open_store(backend, tmp_path / f"{number}") for number in range(10)]
    for store in stores:
        store.put(b"key", b"value")
        store.commit()
        assert store.get(b"key") == b"value"
    taken = len(os.listdir("/proc/self/fd")) - before
    for store in stores:
        store.close()
    assert taken <= 10 * TAKEN[backend.split("-", maxsplit=1)[0]]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", *BACKENDS[1:4:2]])
def test_a_process_without_descriptors_gets_an_error_and_goes_on_with_the_stores_that_it_has(
    tmp_path: Path, backend: str
) -> None:
    script = f"""
import resource, sys
from stores import StoreUnavailableError, open_store
stores = [open_store({backend!r}, sys.argv[1] + "/first")]
resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    for number in range(100):
        stores.append(open_store({backend!r}, f"{{sys.argv[1]}}/{{number}}"))
except StoreUnavailableError as error:
    assert "ulimit" in str(error), error
    last = len(stores)
for store in stores[:2]:
    store.close()
for store in stores[2:]:
    store.put(b"key", b"value")
    store.commit()
    store.close()
open_store({backend!r}, f"{{sys.argv[1]}}/{{number}}").close()
print(last > 2)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == (b"True\n", 0), done.stderr.decode()


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "lmdb-native", "sqlite-native"])
def test_a_good_store_is_never_called_damaged_for_lack_of_descriptors(tmp_path: Path, backend: str) -> None:
    """A task would wipe it. The lack is at each call of the opening in turn, until the store opens and works."""
    script = f"""
import os, resource, sys
from stores import CommitFailedError, StoreUnavailableError, open_store
def held_but(spare):
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        while spare:
            spare -= 1
            os.close(held.pop())
    return held
def opens(path, spare):
    held = held_but(spare)
    try:
        with open_store({backend!r}, path) as store:
            store.put(b"key", b"value")
            store.commit()
            return len(list(store.all())) == 1
    except (StoreUnavailableError, CommitFailedError) as error:
        assert "ulimit" in str(error), error
        return False
    finally:
        for descriptor in held:
            os.close(descriptor)
path = sys.argv[1]
with open_store({backend!r}, path + "/filled") as store:
    store.put(b"key", b"value")
    store.commit()
resource.setrlimit(resource.RLIMIT_NOFILE, (60, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
refused = 0
while not opens(path + "/filled", refused):
    refused += 1
assert 2 < refused < 30, refused
for spare in range(refused):
    new = f"{{path}}/new{{spare}}"
    if not opens(new, spare):
        with open_store({backend!r}, new) as store:
            assert store.get(b"key") in (None, b"value")
with open_store({backend!r}, path + "/filled") as store:
    print(store.get(b"key"))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == (b"b'value'\n", 0), done.stderr.decode()
