"""One thread at a time is in an engine's open transaction: a reader is held there while the writer goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, ReadOnlyKeyValueStore, open_store
from stores.ordered import KeyRanges
from stores.strategies.native import NativeStaging, Undo
from stores.strategies.store import Store
from stores.tests.overtaken_lock import LONG_S, OvertakenLock

WRITER_GETS_S = 0.1
"""The seconds for which a reader is stopped; a writer that waits for it continues afterwards."""
NATIVE = ["lmdb-native", "sqlite-native"]
KEYS = [b"%04d" % number for number in range(100)]
READS: dict[str, Callable[[ReadOnlyKeyValueStore], object]] = {
    "get": lambda reader: reader.get(KEYS[0]),
    "get_many": lambda reader: reader.get_many(KEYS),
    "scan": lambda reader: next(reader.all()),
}
WRITES: dict[str, Callable[[KeyValueStore], object]] = {
    "put": lambda store: store.put(b"new", b"1"),
    "delete_range": lambda store: store.delete_range(None, None),
    "commit": lambda store: store.commit(),
    "rollback": lambda store: store.rollback(),
    "close": lambda store: store.close(),
}


class Held:
    """A transaction in which the first reader stays until the writer is done, or has waited long enough."""

    def __init__(self, transaction: Any) -> None:
        self._transaction, self._writer = transaction, get_ident()
        self._is_read = False
        self.begun, self.done = Event(), Event()
        self.overlaps: list[str] = []
        """The calls of the writer while the reader was stopped."""

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._transaction, name)

        def watched(*given: Any, **named: Any) -> Any:
            if get_ident() == self._writer:
                if self._is_read:
                    self.overlaps.append(name)
                return call(*given, **named)
            answer = call(*given, **named)
            if not self.begun.is_set():
                self._is_read = True
                self.begun.set()
                self.done.wait(WRITER_GETS_S)
                self._is_read = False
            return answer

        return watched


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_a_writer_is_kept_out_of_a_transaction_while_a_reader_is_in_it(path: Path, read: str, write: str) -> None:
    store = open_store("lmdb-native", path)
    assert isinstance(store, Store)
    assert isinstance(store.staging, NativeStaging)
    try:
        store.put_all((key, b"staged") for key in KEYS)
        held = Held(store.staging._transaction)
        store.staging._transaction = held  # type: ignore[assignment]
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(READS[read], store.read_only(IsolationLevel.READ_UNCOMMITTED))
            assert held.begun.wait(600)
            WRITES[write](store)
            held.done.set()
            # Of a store that was closed meanwhile it may be an error.
            answer.exception(60)
        assert held.overlaps == []
    finally:
        store.close()


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("deleted", [False, True])
def test_only_a_lookup_of_what_may_be_staged_waits_for_a_commit(path: Path, backend: str, deleted: bool) -> None:
    with open_store(backend, path) as store:
        store.put_all((key, b"committed") for key in KEYS)
        store.commit()
    with ThreadPoolExecutor(1) as writer, ThreadPoolExecutor(4) as readers:
        store = writer.submit(open_store, backend, path).result(LONG_S)
        assert isinstance(store, Store)
        assert isinstance(store.staging, NativeStaging)
        writer.submit(store.put, KEYS[0], b"staged").result(LONG_S)
        if deleted:
            writer.submit(store.delete_range, KEYS[1], KEYS[2]).result(LONG_S)
        transaction = HeldCommit(store.staging._transaction)
        store.staging._transaction = transaction  # type: ignore[assignment]
        committing = writer.submit(store.commit)
        assert transaction.begun.wait(LONG_S)
        view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        untouched: list[Future[Any]] = [readers.submit(view.get, KEYS[9]), readers.submit(view.get_many, KEYS[8:10])]
        if deleted:
            # Nobody knows which keys: all wait.
            assert not wait(untouched, WRITER_GETS_S).done
        else:
            assert [each.result(LONG_S) for each in untouched] == [b"committed", [b"committed"] * 2]
        futures: list[Future[Any]] = [readers.submit(view.get, KEYS[0]), readers.submit(view.get_many, KEYS[:4])]
        assert not wait(futures, WRITER_GETS_S).done
        transaction.go_on.set()
        committing.result(LONG_S)
        gone = [None] * 2 if deleted else [b"committed"] * 2
        assert [each.result(LONG_S) for each in futures] == [b"staged", [b"staged", *gone, b"committed"]]
        writer.submit(store.close).result(LONG_S)


class HeldCommit:
    """A transaction whose commit waits until it may go on."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self.begun, self.go_on = Event(), Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def commit(self, meta: Any) -> None:
        self.begun.set()
        assert self.go_on.wait(LONG_S)
        self._transaction.commit(meta)


@pytest.mark.parametrize("backend", NATIVE)
def test_no_lookup_goes_back_to_before_a_staged_value_that_a_range_delete_takes_away(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """The reader is held where the key is no longer among the staged ones, and the transaction does not have all "
    "writes yet."""
    with open_store(backend, path) as store, ThreadPoolExecutor(1) as pool:
        assert isinstance(store, Store)
        assert isinstance(store.staging, NativeStaging)
        staging = store.staging
        store.put(b"key", b"committed")
        store.commit()
        store.put(b"key", b"staged")
        view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        assert pool.submit(view.get, b"key").result(LONG_S) == b"staged"
        add = KeyRanges.add
        answers: list[Future[bytes | None]] = []

        def add_later(ranges: KeyRanges, start: bytes | None, end: bytes | None) -> None:
            assert b"key" not in staging._lengths.writes
            answers.append(pool.submit(view.get, b"key"))
            wait(answers, WRITER_GETS_S)
            add(ranges, start, end)

        monkeypatch.setattr(KeyRanges, "add", add_later)
        store.delete_range(b"k", None)
        assert [each.result(LONG_S) for each in answers] == [None]


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", ["commit", "rollback"])
def test_a_read_that_waits_for_the_transaction_until_it_has_ended_shows_what_is_committed_then(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, read: str, write: str
) -> None:
    """When it asked for the lock there was an open transaction; there is none, or another one, when it gets it."""
    with open_store(backend, path) as store, ThreadPoolExecutor(1) as pool:
        assert isinstance(store, Store)
        assert isinstance(store.staging, NativeStaging)
        store.put_all((key, b"committed") for key in KEYS)
        store.commit()
        store.put_all((key, b"staged") for key in KEYS)
        lock = OvertakenLock(store.staging._lock)
        monkeypatch.setattr(store.staging, "_lock", lock)
        answer = pool.submit(READS[read], store.read_only(IsolationLevel.READ_UNCOMMITTED))
        assert lock.asked.wait(LONG_S)
        WRITES[write](store)
        lock.overtaken.set()
        value = b"staged" if write == "commit" else b"committed"
        expected = {"get": value, "get_many": [value] * len(KEYS), "scan": (KEYS[0], value)}
        assert answer.result(LONG_S) == expected[read]


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("write", ["delete_range", "commit", "rollback"])
def test_a_scan_that_is_being_made_while_the_writer_goes_on_shows_one_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, write: str
) -> None:
    """It is held where it has found an open transaction, and does not know yet from when on it needs the past."""
    begun, done, writer = Event(), Event(), get_ident()
    pin = Undo.pin

    def held(self: Undo) -> Any:
        if get_ident() != writer:
            begun.set()
            done.wait(WRITER_GETS_S)
        return pin(self)

    monkeypatch.setattr(Undo, "pin", held)
    with open_store(backend, path) as store, ThreadPoolExecutor(1) as pool:
        store.put_all((key, b"committed") for key in KEYS)
        store.commit()
        store.put_all((key, b"staged") for key in KEYS)
        before = list(store.all())
        scan = pool.submit(store.read_only(IsolationLevel.READ_UNCOMMITTED).all)
        assert begun.wait(600)
        WRITES[write](store)
        done.set()
        pairs = scan.result(600)
        store.put_all((key, b"later") for key in KEYS[::2])
        assert list(pairs) == before
