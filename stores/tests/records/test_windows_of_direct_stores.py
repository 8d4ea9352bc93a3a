"""A window store over a direct one shows what a killed process has written, whether or not it was committed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stores import StoreError, open_store
from stores.records import BYTES, STR, Window, Windowed

KIND = Window(STR, BYTES, size_ms=10, retention_ms=1_000)


def test_windows_above_the_last_committed_stream_time_are_seen_after_a_kill(path: Path) -> None:
    killed = path.with_name("killed")
    with KIND.over(open_store("rocksdb-direct", path, durability="PROCESS")) as windows:
        windows.put("a", b"1", 100)
        windows.commit({})
        for start_ms in (200, 300):
            windows.put("a", b"2", start_ms)
        shutil.copytree(path, killed)
    with KIND.over(open_store("rocksdb-direct", killed, durability="PROCESS")) as windows, windows.all() as found:
        assert [window for window, _ in found] == [Windowed("a", start, start + 10) for start in (100, 200, 300)]


def test_a_put_that_is_refused_leaves_the_stream_time(path: Path) -> None:
    for backend in ("rocksdb-direct", "lmdb-indexed-batch"):
        store = open_store(backend, path.with_name(backend))
        with KIND.over(store) as windows:
            windows.put("a", b"1", 100)
            with pytest.raises((StoreError, ValueError)) as refused:
                windows.put("a" * store.max_key_bytes, b"1", 5_000)
            if isinstance(refused.value, ValueError):
                for named in (repr(store.name), str(store.max_key_bytes), str(store.max_key_bytes + 17)):
                    assert named in str(refused.value)
            windows.put("b", b"1", 90)
            assert windows.fetch_one("b", 90) == b"1"
            assert windows.fetch_one("a", 100) == b"1"
