"""Readers beside a writer, each held at the point where the other could show it something that never was."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from stores import (
    IsolationLevel,
    NotUpToBoundError,
    PositionBound,
    StoreClosedError,
    TopicPartition,
    open_store,
)
from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.engines.rocksdb import RocksDBEngine
from stores.interface import KeyValueView
from stores.registry import backends
from stores.strategies.batch_staging import BatchStaging
from stores.strategies.store import Store
from stores.tests.overtaken_lock import LONG_S, OvertakenLock

SPILLING = ("rocksdb-indexed-batch", "rocksdb-dual-store")
TINY: dict[str, object] = {"staging_buffer_bytes": 200 + 6 * PAIR_MEMORY_BYTES, "copy_part_bytes": 100}
KEYS = [b"%02d" % number for number in range(20)]
LOG, INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)

READS: dict[str, Callable[[KeyValueView], Any]] = {
    "get": lambda reader: [reader.get(KEYS[-1])],
    "get_many": lambda reader: reader.get_many(KEYS),
    "scan": lambda reader: [value for _, value in reader.all()],
}


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def spilled(backend: str, path: Path) -> Store:
    """A store with an open transaction in its staging store that deletes all keys and writes them again."""
    store = open_store(backend, path, options=TINY)
    assert isinstance(store, Store)
    store.put_all([(key, b"old") for key in KEYS])
    store.commit()
    store.delete_range(None, None)
    for key in KEYS:
        store.put(key, b"new" * 10)
    assert batch_of(store).spill is not None
    return store


def batch_of(store: Store) -> BatchStaging:
    assert isinstance(store.staging, BatchStaging)
    return store.staging


@pytest.mark.parametrize("backend", SPILLING)
@pytest.mark.parametrize("read", READS)
def test_a_read_during_which_a_copy_begins_shows_nothing_of_it_or_all(
    path: Path, backend: str, read: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is held where it asks the engine, until the first part has been copied, and its range delete."""
    with spilled(backend, path) as store:
        reader = store.read_only(IsolationLevel.READ_COMMITTED)
        asked, half_copied = Event(), Event()
        ask, write = getattr(RocksDBEngine, read), RocksDBEngine.write
        answer: list[Future[Any]] = []

        def held(self: RocksDBEngine, *given: Any, **named: Any) -> Any:
            if self is store.staging.engine and not asked.is_set():
                asked.set()
                assert half_copied.wait(LONG_S)
            return ask(self, *given, **named)

        def written(self: RocksDBEngine, layers: Any, *given: Any, **named: Any) -> None:
            write(self, layers, *given, **named)
            if self is store.staging.engine and layers and not half_copied.is_set():
                half_copied.set()
                answer[0].exception(LONG_S)

        monkeypatch.setattr(RocksDBEngine, read, held)
        monkeypatch.setattr(RocksDBEngine, "write", written)
        answer.append(pool.submit(READS[read], reader))
        assert asked.wait(LONG_S)
        store.commit()
        assert half_copied.is_set()
        answer_of_reader = answer[0].result(LONG_S)
        assert set(answer_of_reader) in ({b"old"}, {b"new" * 10})
        assert len(answer_of_reader) == (1 if read == "get" else len(KEYS))


@pytest.mark.parametrize("backend", SPILLING)
@pytest.mark.parametrize("read", READS)
def test_a_read_during_a_copy_that_ends_before_it_gets_the_lock_shows_nothing_written_later(
    path: Path, backend: str, read: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the open transaction is another one, which readers of committed data must not see."""
    with spilled(backend, path) as store:
        reader = store.read_only(IsolationLevel.READ_COMMITTED)
        lock = OvertakenLock(batch_of(store).batch.lock)
        answer: list[Future[Any]] = []
        write = RocksDBEngine.write

        def written(self: RocksDBEngine, layers: Any, *given: Any, **named: Any) -> None:
            write(self, layers, *given, **named)
            if self is store.staging.engine and layers and not answer:
                answer.append(pool.submit(READS[read], reader))
                assert lock.asked.wait(LONG_S)

        monkeypatch.setattr(RocksDBEngine, "write", written)
        monkeypatch.setattr(batch_of(store).batch, "lock", lock)
        monkeypatch.setattr(batch_of(store)._copying, "_lock", lock)
        store.commit()
        for key in KEYS:
            store.put(key, b"later")
        lock.overtaken.set()
        assert set(answer[0].result(LONG_S)) == {b"new" * 10}


@pytest.mark.parametrize("backend", SPILLING)
@pytest.mark.parametrize("level", IsolationLevel)
def test_no_reader_waits_for_any_write_of_a_spilled_commit(
    path: Path, backend: str, level: IsolationLevel, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spilled(backend, path) as store:
        reader = store.read_only(level)
        shown: list[set[Any]] = []

        def beside(call: Callable[..., None], *given: Any, **named: Any) -> None:
            call(*given, **named)
            for read in READS.values():
                shown.append(set(pool.submit(read, reader).result(LONG_S)))

        for engine, step in ((RocksDBEngine, "write"), (RocksDBEngine, "persist")):
            monkeypatch.setattr(engine, step, partial_method(partial(beside, getattr(engine, step))))
        batch_of(store).spill_staged()
        shown.clear()
        store.commit({LOG: 1})
        monkeypatch.undo()
        new = {b"new" * 10}
        assert len(shown) > 3 * 4
        assert all(values == new or (values == {b"old"} and level is IsolationLevel.READ_COMMITTED) for values in shown)
        assert shown == sorted(shown, key=lambda values: values == new)


def partial_method(call: Callable[..., None]) -> Callable[..., None]:
    """As a method: a partial object is none."""

    def method(self: object, *given: Any, **named: Any) -> None:
        call(self, *given, **named)

    return method


@pytest.mark.parametrize("backend", SPILLING)
def test_the_writer_reads_what_a_spilled_commit_wrote_and_not_the_small_one_before(path: Path, backend: str) -> None:
    with open_store(backend, path, options={"staging_buffer_bytes": 10_000}) as store:
        store.put(b"key", b"small")
        store.commit()
        assert store.get(b"key") == b"small"
        store.put(b"key", b"large" * 4000)
        assert isinstance(store, Store)
        assert batch_of(store).spill is not None
        store.commit()
        assert store.get(b"key") == b"large" * 4000
        assert store.get_many([b"key"]) == [b"large" * 4000]


ASKS: list[tuple[str, Callable[[KeyValueView], Any]]] = [
    ("staging.get", lambda reader: reader.get(b"key")),
    ("staging.get_many", lambda reader: reader.get_many([b"key"])),
    ("_scan", lambda reader: reader.range(b"a", b"z")),
    ("_scan", lambda reader: reader.prefix_scan(b"k")),
    ("approximate_num_entries", lambda reader: reader.approximate_num_entries()),
]
"""The query of a reader, by the method of the store that answers it."""


@pytest.mark.parametrize("backend", [name for name in backends() if name != "rocksdb-direct"])
@pytest.mark.parametrize("when", ["before the read", "within the rollback"])
def test_a_bounded_reader_never_answers_from_a_state_that_a_rollback_took_back(
    path: Path, backend: str, when: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requested position is not reached: a reader between data and position must get an error."""
    writer = ThreadPoolExecutor(1)
    try:
        store: Any = writer.submit(open_store, backend, path).result(LONG_S)
        try:
            writer.submit(store.put, b"key", b"value").result(LONG_S)
            writer.submit(store.advance_position, INPUT, 5).result(LONG_S)
            reader = store.read_only(IsolationLevel.READ_UNCOMMITTED, PositionBound({INPUT: 5}))
            assert reader.get(b"key") == b"value"
            if when == "before the read":
                for method, read in ASKS:
                    part, _, name = method.rpartition(".")
                    owner = getattr(store, part) if part else store
                    asks = getattr(owner, name)

                    def rolled_back(*given: Any, asks: Callable[..., Any] = asks, **named: Any) -> Any:
                        writer.submit(store.rollback).result(LONG_S)
                        return asks(*given, **named)

                    writer.submit(store.advance_position, INPUT, 5).result(LONG_S)
                    with monkeypatch.context() as patch:
                        patch.setattr(owner, name, rolled_back)
                        with pytest.raises(NotUpToBoundError):
                            read(reader)
            else:
                rollback, told = store.staging.rollback, []

                def looked_at() -> None:
                    rollback()
                    told.append(pool.submit(reader.get, b"key").exception(LONG_S))

                monkeypatch.setattr(store.staging, "rollback", looked_at)
                writer.submit(store.rollback).result(LONG_S)
                assert [type(error) for error in told] == [NotUpToBoundError]
        finally:
            monkeypatch.undo()
            writer.submit(store.close).result(LONG_S)
    finally:
        writer.shutdown()


STEPS: dict[str, Callable[[Any], object]] = {
    "commit": lambda store: store.commit({LOG: 1}),
    "a commit of offsets": lambda store: (store.rollback(), store.commit({LOG: 1})),
    "rollback": lambda store: store.rollback(),
    "put": lambda store: store.put(b"key", b"v" * 3000),
    "put_all": lambda store: store.put_all([(key, b"v" * 3000) for key in KEYS]),
    "put_if_absent": lambda store: store.put_if_absent(b"absent", b"v"),
    "delete": lambda store: store.delete(KEYS[0]),
    "delete_range": lambda store: store.delete_range(KEYS[0], KEYS[5]),
    "restore": lambda store: (store.rollback(), store.restore([(b"key", b"value")], {LOG: 1})),
    "get": lambda store: store.get(b"absent"),
    "get_many": lambda store: store.get_many(KEYS),
    "scan": lambda store: list(store.all()),
    "verify": lambda store: store.verify(),
}


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("point", ["before", "after"])
def test_a_store_that_is_closed_in_the_middle_of_an_operation_says_so_or_carries_it_out(
    path: Path, backend: str, point: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes it where the writer is held, before or after it asks the engine for anything."""
    for number, (name, step) in enumerate(STEPS.items()):
        store: Any = open_store(backend, path / str(number))
        store.put_all([(key, b"old") for key in KEYS])
        store.commit()
        store.put_all([(key, b"new") for key in KEYS])
        closing: list[Future[None]] = []

        def close_beside(call: Callable[..., Any], store: Any = store, closing: list[Future[None]] = closing) -> Any:
            def called(*given: Any, **named: Any) -> Any:
                if point == "after":
                    result = call(*given, **named)
                if not closing:
                    closing.append(pool.submit(store.close))
                    # It gets as far as it can.
                    while store.is_open:
                        pass
                return call(*given, **named) if point == "before" else result

            return called

        engine = store.staging.engine
        for asked in ("write", "put", "get", "get_many", "scan", "begin"):
            if hasattr(engine, asked):
                monkeypatch.setattr(engine, asked, close_beside(getattr(engine, asked)))
        try:
            step(store)
        except StoreClosedError:
            pass
        except Exception as error:
            pytest.fail(f"{name}: {error!r}")
        monkeypatch.undo()
        store.close()
        if closing:
            closing[0].result(LONG_S)
        with pytest.raises(StoreClosedError):
            step(store)


SCANNED = ("memory-indexed-batch", "rocksdb-indexed-batch", "rocksdb-dual-store", "rocksdb-direct", "lmdb-native",
           "lmdb-indexed-batch", "sqlite-native", "sqlite-indexed-batch")  # fmt: skip


CLASSES = {
    "memory": "stores.engines.memory.MapScan",
    "lmdb": "stores.engines.lmdb.engine.LmdbScan",
    "rocksdb": "stores.engines.rocksdb.engine.RocksDBScan",
    "sqlite": "stores.engines.sqlite.engine.SqliteScan",
}


def write_between_scans(
    store: Any, after: int, monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]
) -> list[int]:
    """Let ``write`` run once, when so many scans have been made; the result counts the scans."""
    done: list[int] = []

    def between(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            made = call(*given, **named)
            done.append(1)
            if len(done) == after:
                write()
            return made

        return called

    target = CLASSES[store.staging.engine.name]
    module, name = target.rsplit(".", 1)
    monkeypatch.setattr(target, between(getattr(import_module(module), name)))
    if hasattr(store.staging, "_live_scan"):
        monkeypatch.setattr(store.staging, "_live_scan", between(store.staging._live_scan))
    return done


@pytest.mark.parametrize("backend", SCANNED)
@pytest.mark.parametrize("level", IsolationLevel)
@pytest.mark.parametrize("staged", [False, True], ids=["nothing staged", "a transaction open"])
@pytest.mark.parametrize("after", [1, 2])
def test_scans_that_are_made_together_show_one_moment_also_where_a_commit_comes_between(
    path: Path, backend: str, level: IsolationLevel, staged: bool, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer moves a key when one scan has been made, or two: it is in one place, wherever the scans look."""
    writer = ThreadPoolExecutor(1)
    try:
        store: Any = writer.submit(open_store, backend, path).result(LONG_S)
        try:
            writer.submit(store.put, b"a", b"1").result(LONG_S)
            writer.submit(store.commit).result(LONG_S)
            if staged:
                writer.submit(store.put, b"c", b"3").result(LONG_S)
            view = store.read_only(level)

            def move() -> None:
                store.put(b"b", b"1")
                store.put(b"a", None)
                store.commit()

            def moved() -> None:
                # Where the reader holds what the commit needs, that comes when the reader has gone on.
                with suppress(TimeoutError):
                    writer.submit(move).result(0.1)

            steps = write_between_scans(store, after, monkeypatch, moved)
            scans = view.range_many([(b"b", b"b"), (b"a", b"a"), (b"x", b"y"), (b"b", b"b")])
            shown = [[key for key, _ in scan] for scan in scans]
            assert shown in ([[], [b"a"], [], []], [[b"b"], [], [], [b"b"]])
            assert len(steps) >= 4
            writer.submit(lambda: None).result(LONG_S)
            scans = view.range_many([(b"a", b"a"), (None, b"b"), (b"b", None)], reverse=True)
            assert [[key for key, _ in scan] for scan in scans] == [[], [b"b"], [b"c", b"b"] if staged else [b"b"]]
        finally:
            monkeypatch.undo()
            writer.submit(store.close).result(LONG_S)
    finally:
        writer.shutdown()


def test_a_dual_store_is_not_closed_between_the_two_that_it_verifies(path: Path, pool: ThreadPoolExecutor) -> None:
    store: Any = open_store("rocksdb-dual-store", path)
    verify, closing = store.staging.second.verify, list[Future[None]]()

    def verified() -> None:
        closing.append(pool.submit(store.close))
        # It gets as far as it can.
        while store.is_open:
            pass
        wait(closing, 0.2)
        verify()

    store.staging.second.verify = verified
    store.verify()
    closing[0].result(LONG_S)
