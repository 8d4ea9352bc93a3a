"""Iterators that are left open take little: a read transaction for each commit that they show, and lookups go on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from stores import IsolationLevel, StoreUnavailableError, open_store
from stores.strategies.store import Store

PERSISTENT = ("lmdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch", "sqlite-native")
PAIRS = [(b"%04d" % key, b"0") for key in range(100)]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("backend", ["memory-indexed-batch", "rocksdb-indexed-batch", *PERSISTENT])
def test_a_thousand_iterators_are_open_at_once_and_lookups_go_on(path: Path, backend: str) -> None:
    with open_store(backend, path) as store, ThreadPoolExecutor(1) as other:
        store.put_all(PAIRS)
        store.commit()
        view = store.read_only(IsolationLevel.READ_COMMITTED)
        before = descriptors()
        iterators = [view.all() for _ in range(1100)]
        assert [next(iterator) for iterator in iterators] == [PAIRS[0]] * 1100
        assert descriptors() <= before + 10
        store.put(b"0000", b"staged")
        assert store.get(b"0000") == b"staged"
        assert other.submit(view.get, b"0000").result(600) == b"0"
        assert other.submit(view.get_many, [b"0000", b"none"]).result(600) == [b"0", None]
        store.commit()
        assert {bytes(len(list(iterator))) for iterator in iterators} == {bytes(99)}
        assert next(store.all()) == (b"0000", b"staged")


@pytest.mark.parametrize("backend", ["lmdb-indexed-batch", "lmdb-native"])
def test_a_thousand_iterators_show_as_many_different_commits(path: Path, backend: str) -> None:
    with open_store(backend, path) as store:
        view = store.read_only(IsolationLevel.READ_COMMITTED)
        iterators = []
        for number in range(1100):
            store.put(b"key", b"%d" % number)
            store.commit()
            iterators.append(view.all())
        assert store.get(b"key") == view.get(b"key") == b"1099"
        assert [list(iterator) for iterator in iterators] == [[(b"key", b"%d" % number)] for number in range(1100)]


def test_lookups_of_lmdb_find_a_slot_where_scans_have_taken_theirs(path: Path) -> None:
    with open_store("lmdb-indexed-batch", path, options={"max_readers": 32}) as store, ExitStack() as iterators:
        view = store.read_only(IsolationLevel.READ_COMMITTED)

        def fill() -> None:
            for number in range(100):
                store.put(b"key", b"%d" % number)
                store.commit()
                iterators.enter_context(view.all())

        with pytest.raises(StoreUnavailableError):
            fill()
        store.put(b"key", b"last")
        store.commit()
        with ThreadPoolExecutor(4) as others:
            assert {future.result(600) for future in [others.submit(view.get, b"key") for _ in range(8)]} == {b"last"}
        assert view.get_many([b"key"]) == [b"last"]
        iterators.close()
        fill_again = view.all()
        assert list(fill_again) == [(b"key", b"last")]


@pytest.mark.parametrize("backend", PERSISTENT)
def test_scans_between_two_commits_share_a_snapshot_which_ends_with_the_last_of_them(path: Path, backend: str) -> None:
    with open_store(backend, path) as store:
        store.put_all(PAIRS)
        store.commit()
        assert isinstance(store, Store)
        snapshots = store.staging.engine._snapshots  # type: ignore[attr-defined]
        before = snapshots.count
        first, second = store.all(), store.all()
        assert [next(first), next(second)] == PAIRS[:1] * 2
        assert snapshots.count == before + 1
        store.put(b"0000", b"1")
        store.commit()
        third = store.all()
        assert (next(third), list(first), list(second)) == ((b"0000", b"1"), PAIRS[1:], PAIRS[1:])
        assert snapshots.count <= before + 1
        third.close()
        del first, second, third
        assert snapshots.count == before
