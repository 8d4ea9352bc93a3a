"""LMDB's map grows by itself when it is full: the transaction is kept, and scans that are open stay what they were."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pytest

from stores import CommitFailedError, IsolationLevel, StoreUnavailableError, TopicPartition, open_store
from stores.engines.engine import Writes
from stores.engines.lmdb.environment import MemoryMap, room_bytes
from stores.ordered import Bounds
from stores.strategies.store import Store

BACKEND = "lmdb-indexed-batch"
LOG = TopicPartition("changelog", 0)
TINY = {"map_size_bytes": 64 << 10}


def test_a_full_map_grows_within_the_commit(path: Path) -> None:
    expected = [(b"%06d" % number, b"v" * 1000) for number in range(3000)]
    with open_store(BACKEND, path, options=TINY) as store:
        store.put_all(expected)
        store.commit({LOG: 1})
        assert list(store.all()) == expected
        store.restore([(key, b"r" * 3000) for key, _ in expected], {LOG: 2})
        assert store.get(b"000000") == b"r" * 3000
    with open_store(BACKEND, path, options=TINY) as store:
        assert [value for _, value in store.all()] == [b"r" * 3000] * 3000
        assert store.committed_offset(LOG) == 2


def test_scans_that_are_open_while_the_map_grows_stay_snapshots(path: Path) -> None:
    old = [(b"%06d" % number, b"old") for number in range(700)]
    with open_store(BACKEND, path, options=TINY) as store:
        store.put_all(old)
        store.commit()
        store.put(b"000001", b"staged")
        pairs = [(key, b"staged" if key == b"000001" else value) for key, value in old]
        scans = {
            "fresh": (store.all(), pairs),
            "descending": (store.reverse_all(), pairs[::-1]),
            "range": (store.range(b"000100", b"000300"), pairs[100:301]),
            "reverse range": (store.reverse_range(b"000100", b"000300"), pairs[100:301][::-1]),
            "prefix": (store.prefix_scan(b"0006"), pairs[600:]),
            "committed": (store.read_only(IsolationLevel.READ_COMMITTED).all(), old),
        }
        begun, closed = store.all(), store.all()
        first = [next(begun) for _ in range(50)]
        for growth in range(3):
            store.put_all([(b"%06d" % number, b"new" * 1000 * 2**growth) for number in range(700)])
            store.commit()
            closed.close()
        for scan, expected in scans.values():
            assert list(scan) == expected
        assert first + list(begun) == pairs
        assert [value for _, value in store.all()] == [b"new" * 4000] * 700


def test_a_full_disk_is_distinguished_from_a_full_map(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int = 0

    with open_store(BACKEND, path, options=TINY) as store:
        store.put(b"key", b"value")
        store.commit({LOG: 1})
        store.put_all([(b"%06d" % number, b"v" * 1000) for number in range(300)])
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: Usage())
            with pytest.raises(CommitFailedError) as error:
                store.commit({LOG: 2})
        assert not error.value.reopen
        assert store.committed_offset(LOG) == 1
        assert store.approximate_num_uncommitted_bytes() == 300 * 1006
        store.commit({LOG: 2})
        assert store.get(b"000299") == b"v" * 1000


def test_readers_see_the_last_commit_during_a_write(path: Path) -> None:
    """Let in where the write asks for its ranges: its transaction is open then."""
    with open_store(BACKEND, path) as store, ThreadPoolExecutor(1) as pool:
        store.put(b"key", b"old")
        store.commit()
        assert isinstance(store, Store)
        engine = store.staging.engine

        def ranges() -> Iterator[Bounds]:
            yield b"key", b"key"
            seen.append(pool.submit(engine.get, b"key").result(600))
            seen.extend(pool.submit(engine.get_many, [b"key", b"other"]).result(600))
            seen.extend(pool.submit(engine.scan().fetch).result(600))

        seen: list[object] = []
        engine.write([Writes(ranges(), {b"other": b"new"})], {})
        assert seen == [b"old", b"old", None, (b"key", b"old")]
        assert engine.get_many([b"key", b"other"]) == [None, b"new"]
        assert engine.get(b"other") == pool.submit(engine.get, b"other").result(600) == b"new"


def test_five_thousand_stores_leave_a_process_a_fifth_of_its_addresses() -> None:
    """It has 128 TiB; those whose transactions are not lent out take 1 GiB each, by default."""
    reserved = 0
    rooms = []
    for _ in range(5000):
        rooms.append(room_bytes(reserved))
        reserved += rooms[-1] + (1 << 30)
    assert rooms[0] >= 60 << 30
    assert sorted(rooms, reverse=True) == rooms
    assert rooms[-1] >= 4 << 30
    assert reserved <= (128 << 40) * 4 // 5


def test_stores_take_the_addresses_that_are_counted_and_give_them_back(tmp_path: Path) -> None:
    before, reserved = addresses(), MemoryMap._reserved_bytes
    stores = [open_store("lmdb-native", tmp_path / f"{number}") for number in range(8)]
    map_bytes = sum(int(store.engine_metrics()["map_size_bytes"]) for store in stores)
    assert MemoryMap._reserved_bytes == reserved + map_bytes
    assert map_bytes <= addresses() - before <= map_bytes + (1 << 30)
    for store in stores:
        store.close()
    assert MemoryMap._reserved_bytes == reserved
    assert addresses() - before <= 1 << 30


def test_a_transaction_that_is_lent_out_may_change_all_that_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little room there is for new pages: what it changes is copied."""
    monkeypatch.setattr("stores.engines.lmdb.environment.room_bytes", lambda _: 1 << 20)
    with open_store("lmdb-native", path, options=TINY) as store:
        for part in range(16):
            store.put_all([(b"%02d%04d" % (part, number), b"o" * 1000) for number in range(256)])
            store.commit()
        store.put_all([(b"%02d%04d" % (part, number), b"n" * 1000) for part in range(16) for number in range(256)])
        store.commit()
        assert {value for _, value in store.all()} == {b"n" * 1000}


def addresses() -> int:
    """Return the mapped bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


@pytest.mark.parametrize(("max_readers", "bytes_min"), [(4096, 16 << 10), (5, 1)])
def test_the_file_of_readers_has_room_on_the_disk_before_lmdb_writes_to_its_map(
    path: Path, monkeypatch: pytest.MonkeyPatch, max_readers: int, bytes_min: int
) -> None:
    """On a full disk, writing to a hole of a mapped file ends the process."""
    reserved = []
    opened = lmdb.open

    def spied(folder: str, **options: Any) -> object:
        reserved.append(Path(folder, "lock.mdb").stat().st_blocks * 512)
        return opened(folder, **options)

    monkeypatch.setattr(lmdb, "open", spied)
    with open_store("lmdb-indexed-batch", path, options={"max_readers": max_readers}):
        assert min(reserved) >= bytes_min

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreUnavailableError):
        open_store("lmdb-indexed-batch", path)
