"""Stores take few file descriptors and say where none are left; a fork leaves open handles to the parent."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from stores import open_store, process
from stores.registry import backends

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
    descriptors = len(os.listdir("/proc/self/fd")) - before
    for store in stores:
        store.close()
    assert descriptors <= 10 * TAKEN[backend.split("-", maxsplit=1)[0]]
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
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, check=False, timeout=600
    )
    assert (process.stdout, process.returncode) == (b"True\n", 0), process.stderr.decode()


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
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, check=False, timeout=600
    )
    assert (process.stdout, process.returncode) == (b"b'value'\n", 0), process.stderr.decode()


DEADLINE_S = 600

STORE = """
import os, sys
from stores import StoreClosedError, open_store
from stores.tests.test_process import ends_well
path, backend = sys.argv[1:]
store = open_store(backend, path)
store.put_all([(b"%04d" % number, b"1") for number in range(1000)])
store.commit()
store.put(b"staged", b"1")
reader, scan = store.read_only(), store.all()
next(scan)
with store:
    child = os.fork()
    if not child:
        uses = (
            lambda: store.get(b"0001"), lambda: store.get(b"staged"), lambda: store.put(b"child", b"1"),
            lambda: store.commit(), lambda: store.all(), lambda: reader.get(b"0001"), reader.all, lambda: next(scan),
            lambda: list(scan),
        )
        for use in uses:
            try:
                use()
            except StoreClosedError:
                continue
            os._exit(1)
        scan.close()
        store.close()
        del reader, scan, uses, use
    else:
        # The child's end is that of a whole interpreter: what it frees then must not reach the parent's files.
        assert ends_well(child), "the child"
        assert sum(1 for _ in scan) == 999 + 1
        store.commit()
        assert store.get(b"staged") == b"1"
"""
LOCK = """
import os, sys
from stores import open_store
path, backend = sys.argv[1:]
store = open_store(backend, path)
begun, done = os.pipe(), os.pipe()
child = os.fork()
if not child:
    os.close(done[1])
    os.write(begun[1], b"1")
    os.read(done[0], 1)
    os._exit(0)
os.read(begun[0], 1)
store.close()
open_store(backend, path).close()
os.close(done[1])
os.waitpid(child, 0)
"""
OPENING = """
import os, sys
from stores import StoreUnavailableError, open_store
from stores.tests.test_process import ends_well
path, backend = sys.argv[1:]
open_store(backend, path).close()
child = os.fork()
if not child:
    try:
        open_store(backend, path)
    except StoreUnavailableError:
        os._exit(0)
    os._exit(1)
assert ends_well(child), "the child"
open_store(backend, path).close()
"""
TYPED = """
import os, sys
from stores import StoreClosedError, open_store
from stores.records import BYTES, TimestampedKeyValue
from stores.tests.test_process import ends_well
path, backend = sys.argv[1:]
store = TimestampedKeyValue(BYTES, BYTES).over(open_store(backend, path))
store.put(b"committed", b"1", 1)
store.commit()
store.put(b"staged", b"1", 1)
child = os.fork()
if not child:
    uses = (
        lambda: store.get(b"committed"), lambda: store.get(b"staged"), lambda: store.get(b"absent"),
        lambda: store.put(b"child", b"1", 1), lambda: store.all(), lambda: store.commit(),
    )
    for use in uses:
        try:
            use()
        except StoreClosedError:
            continue
        os._exit(1)
    store.close()
else:
    assert ends_well(child), "the child"
    assert store.get(b"staged").value == b"1"
    store.close()
"""
ENDING = """
import atexit, os, sys
from threading import Event, Thread
from stores import open_store
store = open_store(sys.argv[2], sys.argv[1])
# With the threads of an engine these have more memory for stacks than the C library keeps of threads that have ended.
ended = Event()
threads = [Thread(target=ended.wait) for _ in range(12)]
for thread in threads:
    thread.start()
child = os.fork()
if not child:
    atexit.register(os.write, 2, b"ended")
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3, "the child"
store.put(b"key", b"value")
store.commit()
store.close()
child = os.fork()
if not child:
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4, "the second child"
ended.set()
for thread in threads:
    thread.join()
"""
CHANGELOG = """
import os, sys
from stores import StoreClosedError, TopicPartition
from stores.changelog import SqliteChangelog
from stores.tests.test_process import ends_well
log, partition = SqliteChangelog(sys.argv[1] + ".log"), TopicPartition("a", 0)
log.create_topic("a")
producer = log.producer("p")
producer.begin()
producer.send(partition, b"k", b"v")
child = os.fork()
if not child:
    for use in (log.topics, producer.commit, lambda: log.read(partition), lambda: log.producer("p")):
        try:
            use()
        except StoreClosedError:
            continue
        os._exit(1)
    log.close()
else:
    assert ends_well(child), "the child"
    assert producer.commit() == {partition: 0}
    assert [record.value for record in log.read(partition)] == [b"v"]
    log.close()
"""


def ends_well(child: int) -> bool:
    """Return True if a forked process ends by itself, with status 0."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run(script: str, *arguments: str | Path) -> str:
    """Run a script that forks, in a process of its own: this one has threads. Return its standard error."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            _, told = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            # With whatever it forked.
            os.killpg(process.pid, 9)
            raise
    assert process.returncode == 0, told
    return told


@pytest.mark.parametrize("backend", backends())
def test_a_store_is_closed_for_the_child_and_goes_on_in_the_parent(path: Path, backend: str) -> None:
    run(STORE, path, backend)
    with open_store(backend, path) as store:
        assert store.get(b"child") is None
        assert sum(1 for _ in store.all()) == (1001 if store.persistent else 0)


@pytest.mark.parametrize("backend", backends())
def test_a_forked_process_ends_with_its_own_status_however_many_threads_there_were(path: Path, backend: str) -> None:
    assert run(ENDING, path, backend) == "ended"


@pytest.mark.parametrize("backend", backends())
def test_a_timestamped_store_is_closed_for_the_child_and_shows_it_nothing(path: Path, backend: str) -> None:
    run(TYPED, path, backend)


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "sqlite-indexed-batch"])
def test_a_child_does_not_hold_the_store_when_the_parent_has_closed_it(path: Path, backend: str) -> None:
    run(LOCK, path, backend)


def test_a_child_is_refused_an_engine_whose_threads_it_does_not_have(path: Path) -> None:
    run(OPENING, path, "rocksdb-indexed-batch")


def test_a_changelog_is_closed_for_the_child_and_goes_on_in_the_parent(path: Path) -> None:
    run(CHANGELOG, path)


def test_what_a_child_can_not_give_up_does_not_keep_it_from_giving_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened:
        closed = False

    def close(opened: Opened) -> None:
        opened.closed = True

    def fail(opened: Opened) -> None:
        raise OSError("it is half open")

    monkeypatch.setattr(process, "_disown", WeakKeyDictionary())
    before, broken, after = Opened(), Opened(), Opened()
    for opened, disown in ((before, close), (broken, fail), (after, close)):
        process.watch(opened, disown)
    with pytest.raises(OSError):
        process._disown_all()
    assert [opened.closed for opened in (before, broken, after)] == [True, False, True]
