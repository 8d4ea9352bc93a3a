"""Strategy native: what it keeps in memory, scans that outlive what they read, engines that give a transaction up."""

from __future__ import annotations

import mmap
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores import (
    CommitFailedError,
    ConfigError,
    Durability,
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    TopicPartition,
    open_store,
)
from stores.engines.lmdb import environment
from stores.engines.memory import MemoryEngine
from stores.registry import backends
from stores.strategies import native as native_module
from stores.strategies.native import NativeStaging
from stores.strategies.staging import Traits
from stores.strategies.store import Store
from stores.strategies.store_opening import open_over
from stores.tests.engines.test_engine_errors import Instead, named
from stores.tests.model import Model
from stores.tests.store_process import StoreProcess

NATIVE = [name for name in backends() if name.endswith("-native")]
LOG, INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)
in_linux = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="what a process has mapped is asked of Linux"
)
KEYS = [b"%02d" % number for number in range(60)]


def opened(backend: str, path: Path) -> Store:
    store = open_store(backend, path)
    assert isinstance(store, Store)
    return store


def native(store: Store) -> NativeStaging:
    assert isinstance(store.staging, NativeStaging)
    return store.staging


def shown(model: Model, rng: Random) -> tuple[Any, list[tuple[bytes, bytes]]]:
    """Bounds and a direction, and what a scan of them shows now."""
    start, end = (rng.choice([None, *KEYS]) for _ in range(2))
    reverse = rng.random() < 0.5
    return (start, end, reverse), model.scan(start, end, reverse=reverse)


def scan(store: KeyValueStore, start: bytes | None, end: bytes | None, reverse: bool) -> KeyValueIterator:
    reader = store.read_only(IsolationLevel.READ_UNCOMMITTED)
    return reader.reverse_range(start, end) if reverse else reader.range(start, end)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", NATIVE)
def test_scans_that_have_got_somewhere_go_on_as_if_nothing_had_happened_since(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, seed: int
) -> None:
    """Two pairs are fetched at a time, so that most of a scan is read after what is done meanwhile."""
    monkeypatch.setattr(native_module, "FETCH_FIRST", 2)
    monkeypatch.setattr(native_module, "FETCH_MAX", 2)
    rng, model = Random(seed), Model()
    iterators: list[tuple[KeyValueIterator, list[tuple[bytes, bytes]]]] = []
    with opened(backend, path) as store:
        for step in range(1500):
            deed, key, other = rng.random(), rng.choice(KEYS), rng.choice(KEYS)
            if deed < 0.55:
                value = None if rng.random() < 0.3 else b"%d" % step
                store.put(key, value)
                model.put(key, value)
            elif deed < 0.58:
                store.delete_range(key, other)
                model.delete_range(key, other)
            elif deed < 0.6:
                store.commit()
                model.commit({})
            elif deed < 0.62:
                store.rollback()
                model.rollback()
            elif deed < 0.75 and len(iterators) < 6:
                bounds, expected = shown(model, rng)
                iterators.append((scan(store, *bounds), expected))
            elif iterators:
                at = rng.randrange(len(iterators))
                iterator, expected = iterators[at]
                for _ in range(rng.randrange(5)):
                    assert next(iterator, None) == (expected.pop(0) if expected else None)
                if not expected or rng.random() < 0.1:
                    iterator.close()
                    del iterators[at]
        for iterator, expected in iterators:
            assert list(iterator) == expected
        store.put(b"last", b"1")
        store.put(b"last", b"2")
        assert native(store)._undo.layers == []


@pytest.mark.parametrize("backend", NATIVE)
def test_nothing_of_the_past_is_kept_but_for_scans_that_are_open(path: Path, backend: str) -> None:
    with opened(backend, path) as store:
        store.put_all([(key, b"1") for key in KEYS])
        oldest, newer, newest = store.all(), None, None
        store.put(KEYS[0], b"2")
        newer = store.all()
        store.put(KEYS[1], b"2")
        store.put(KEYS[0], b"3")
        newest = store.all()
        store.put(KEYS[0], b"4")
        assert [dict(layer.staged.writes) for layer in native(store)._undo.layers] == [
            {KEYS[0]: b"1"},
            {KEYS[1]: b"1", KEYS[0]: b"2"},
            {KEYS[0]: b"3"},
        ]
        newer.close()
        store.put(KEYS[0], b"5")
        assert [dict(layer.staged.writes) for layer in native(store)._undo.layers] == [
            {KEYS[0]: b"1", KEYS[1]: b"1"},
            {KEYS[0]: b"3"},
        ]
        assert [value for _, value in oldest] == [b"1"] * len(KEYS)
        assert [value for _, value in newest][:2] == [b"3", b"2"]
        store.put(KEYS[0], b"6")
        assert native(store)._undo.layers == []


@pytest.mark.parametrize("backend", NATIVE)
def test_staged_values_are_the_engine_s_to_keep(path: Path, backend: str) -> None:
    """Twenty megabytes of values, of which no copy is held here, only their keys and lengths."""
    with opened(backend, path) as store:
        tracemalloc.start()
        try:
            for number in range(5000):
                store.put(b"%08d" % number, b"%04000d" % number)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken < 2 << 20
        assert store.approximate_num_uncommitted_bytes() == 5000 * 4008


@pytest.mark.parametrize("backend", NATIVE)
def test_a_range_delete_under_a_scan_copies_what_is_staged_and_not_what_is_committed(path: Path, backend: str) -> None:
    with opened(backend, path) as store:
        store.put_all([(b"%08d" % number, b"v" * 100) for number in range(20_000)])
        store.commit()
        store.put(b"staged", b"1")
        with store.all() as scan:
            tracemalloc.start()
            try:
                store.delete_range(None, None)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 1 << 20
            assert list(store.all()) == []
            assert sum(1 for _ in scan) == 20_001


def test_a_transaction_larger_than_lmdb_s_map_is_kept_whole(path: Path) -> None:
    pairs = [(b"%06d" % number, b"s" * 3000) for number in range(1000)]
    with open_store("lmdb-native", path, options={"map_size_bytes": 64 << 10}) as store:
        store.put_all([(key, b"c") for key, _ in pairs])
        store.commit({LOG: 1})
        committed_scan = store.read_only().all()
        store.put_all(pairs[:1])
        scan = store.all()
        store.put_all(pairs)
        assert list(store.all()) == pairs
        assert [len(value) for _, value in scan] == [3000] + [1] * 999
        assert {value for _, value in committed_scan} == {b"c"}
        store.commit({LOG: 2})
    with open_store("lmdb-native", path) as store:
        assert list(store.all()) == pairs


def test_a_transaction_that_does_not_fit_into_lmdb_s_map_is_given_up_and_said_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ROOM_MAX_BYTES", 0)
    monkeypatch.setattr(environment, "ROOM_MIN_BYTES", 0)
    with open_store("lmdb-native", path, options={"map_size_bytes": 64 << 10}) as store:
        store.put(b"first", b"1")
        store.commit({LOG: 1})
        uses: list[Callable[[], object]] = [
            lambda: store.put_all([(key, b"v" * 4000) for key in KEYS]),
            lambda: store.get(b"first"),
            lambda: store.put(b"a", b"1"),
            store.commit,
        ]
        for use in uses:
            with pytest.raises(CommitFailedError) as error:
                use()
            assert error.value.reopen
        assert store.read_only().get(b"first") == b"1"
        store.rollback()
        assert list(store.all()) == [(b"first", b"1")]
        store.put(b"second", b"2")
        store.commit({LOG: 2})
    with open_store("lmdb-native", path) as store:
        assert list(store.all()) == [(b"first", b"1"), (b"second", b"2")]


@in_linux
def test_lmdb_s_map_is_content_with_the_addresses_that_there_are(path: Path) -> None:
    with StoreProcess() as process:
        process.call("load_backend", "lmdb-native")
        leave_room(process, 512 << 20)
        process.call("open", "lmdb-native", path, Durability.PROCESS, {"map_size_bytes": 64 << 10})
        process.call("put_many", 0, 2000, b"v" * 10_000)
        process.call("commit")
        assert len(process.call("scan")) == 2000


@in_linux
def test_a_transaction_of_ten_times_the_memory_that_is_left_is_committed_by_sqlite(path: Path) -> None:
    room_bytes, value_bytes = 8 << 20, 8000
    records = 10 * room_bytes // value_bytes // 100 * 100
    with StoreProcess() as process:
        process.call("open", "sqlite-native", path, Durability.CHANGELOG, {"cache_size_bytes": 1 << 20})
        leave_room(process, room_bytes)
        for first in range(0, records, 100):
            # Each value is an object of its own: one that is staged again and again would take no memory anywhere.
            process.call("put_all", [(b"%08d" % n, b"%0*d" % (value_bytes, n)) for n in range(first, first + 100)])
        assert process.call("get", b"%08d" % 5) == b"%0*d" % (value_bytes, 5)
        process.call("commit", {LOG: 1})
        process.call("close")
    with open_store("sqlite-native", path) as store:
        assert store.committed_offset(LOG) == 1
        assert sum(1 for _ in store.all()) == records


def test_a_write_for_which_sqlite_has_no_room_gives_the_transaction_up(path: Path) -> None:
    with opened("sqlite-native", path) as store:
        writer = store.staging.engine._writer  # type: ignore[attr-defined]
        [pages] = writer.execute("pragma page_count").fetchone()
        writer.execute(f"pragma max_page_count = {pages + 3}").fetchall()
        store.put(b"small", b"1")
        for _ in range(2):
            with pytest.raises(CommitFailedError) as error:
                store.put(b"large", b"v" * 100_000)
            assert error.value.reopen
        assert writer.execute("select count(*) from data").fetchone() == (0,)
        store.rollback()
        writer.execute("pragma max_page_count = 1000000").fetchall()
        store.put(b"large", b"v" * 100_000)
        store.commit({LOG: 1})
        assert [(key, len(value)) for key, value in store.all()] == [(b"large", 100_000)]


def leave_room(process: StoreProcess, room_bytes: int) -> None:
    """Allow the process so many bytes beyond what it has mapped now."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
    process.call("limit", "RLIMIT_AS", pages * mmap.PAGESIZE + room_bytes)


class GivesUp(Instead):
    """A connection on which a commit fails, and takes the transaction with it, as SQLite's do."""

    def __getattr__(self, name: str) -> Any:
        def execute(*given: Any) -> Any:
            if given[0] == "commit":
                self._handle.execute("rollback")
                raise self._error
            return self._handle.execute(*given)

        return execute if name == "execute" else getattr(self._handle, name)


def test_a_commit_with_which_the_engine_gives_up_asks_to_open_the_store_again(path: Path) -> None:
    with opened("sqlite-native", path) as store:
        store.put(b"key", b"1")
        store.commit({LOG: 1})
        store.put(b"key", b"2")
        store.advance_position(INPUT, 5)
        begun, held = store.all(), store.all()
        whole = store.staging.engine._writer  # type: ignore[attr-defined]
        native(store)._transaction._writer = GivesUp(whole, "", "", named("SQLITE_FULL"))  # type: ignore[union-attr]
        uses: list[Callable[[], object]] = [
            lambda: store.commit({LOG: 2}),
            lambda: store.get(b"key"),
            lambda: list(store.all()),
            lambda: next(begun),
            lambda: store.put(b"other", b"1"),
            lambda: store.delete_range(None, None),
        ]
        for use in uses:
            with pytest.raises(CommitFailedError) as error:
                use()
            assert error.value.reopen
        assert store.read_only().get(b"key") == b"1"
        assert store.committed_offset(LOG) == 1
        store.rollback()
        with pytest.raises(CommitFailedError):
            next(held)
        assert list(store.all()) == [(b"key", b"1")]
    with opened("sqlite-native", path) as store:
        assert list(store.all()) == [(b"key", b"1")]
        assert store.committed_offset(LOG) == 1


class Watched:
    """An LMDB transaction whose commit looks at what others see just before and just after."""

    def __init__(self, txn: Any, look: Callable[[], None]) -> None:
        self._txn, self._look = txn, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._look()
        self._txn.commit()
        self._look()


def test_readers_of_committed_data_go_on_during_a_commit_and_never_go_back(path: Path) -> None:
    answers: list[tuple[bytes | None, ...]] = []
    with opened("lmdb-native", path) as store, ThreadPoolExecutor(1) as elsewhere:
        reader = store.read_only(IsolationLevel.READ_COMMITTED)

        def read() -> tuple[bytes | None, ...]:
            return reader.get(b"key"), next(reader.all())[1], reader.get(b"key")

        def look() -> None:
            answers.append(elsewhere.submit(read).result(timeout=600))

        store.put(b"key", b"1")
        store.commit()
        store.put(b"key", b"2")
        look()
        native(store)._transaction._txn = Watched(native(store)._transaction._txn, look)  # type: ignore[union-attr]
        store.commit()
        look()
    assert answers == [(b"1",) * 3, (b"1",) * 3, (b"2",) * 3, (b"2",) * 3]


def test_an_engine_without_transactions_carries_no_native_store(path: Path) -> None:
    with pytest.raises(ConfigError):
        open_over(NativeStaging, MemoryEngine, path, {}, Traits("store", "memory-native", Durability.CHANGELOG))
    assert not path.exists()
