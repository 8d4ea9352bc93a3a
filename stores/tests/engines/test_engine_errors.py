"""The meaning of an engine's own errors for a commit: repeat it, or open the store again first."""

from __future__ import annotations

import resource
import sqlite3
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest

from stores import (
    CommitFailedError,
    ConfigError,
    Durability,
    StoreCorruptedError,
    StoreUnavailableError,
    open_store,
)
from stores.engines.rocksdb import RocksDBEngine
from stores.records import BYTES, TimestampedKeyValue
from stores.strategies.store import Store


class Instead:
    """Stands in front of an engine's handle: ``call`` with an argument that begins with ``given`` raises ``error``."""

    def __init__(self, handle: Any, call: str, given: str, error: Exception) -> None:
        self._handle, self._call, self._given, self._error = handle, call, given, error

    def __getattr__(self, name: str) -> Any:
        def answer(*given: Any, **named: Any) -> Any:
            if not self._given or (given and str(given[0]).startswith(self._given)):
                raise self._error
            return getattr(self._handle, name)(*given, **named)

        return answer if name == self._call else getattr(self._handle, name)


def named(error: str) -> sqlite3.OperationalError:
    raised = sqlite3.OperationalError("disk I/O error")
    raised.sqlite_errorname = error
    return raised


@pytest.mark.parametrize(
    ("backend", "handle", "call", "given", "error", "reopen"),
    [
        ("sqlite", "_writer", "execute", "commit", named("SQLITE_IOERR_FSYNC"), True),
        ("sqlite", "_writer", "execute", "commit", named("SQLITE_IOERR_WRITE"), False),
        ("sqlite", "_writer", "execute", "commit", named("SQLITE_FULL"), False),
        ("lmdb", "_env", "begin", "", lmdb.Error("mdb_txn_commit: Input/output error"), True),
        ("lmdb", "_env", "begin", "", lmdb.PanicError("mdb_txn_begin: MDB_PANIC"), True),
        ("lmdb", "_env", "begin", "", lmdb.DiskError("mdb_txn_commit: No space left on device"), False),
        ("rocksdb-indexed-batch", "_db", "write", "", Exception("IO error: While fsync: Input/output error"), True),
    ],
)
def test_a_commit_says_whether_it_can_be_tried_again(
    path: Path, backend: str, handle: str, call: str, given: str, error: Exception, reopen: bool
) -> None:
    with open_store(backend, path, durability=Durability.DISK) as store:
        assert isinstance(store, Store)
        store.put(b"key", b"1")
        store.commit()
        store.put(b"key", b"2")
        whole = getattr(store.staging.engine, handle)
        setattr(store.staging.engine, handle, Instead(whole, call, given, error))
        with pytest.raises(CommitFailedError) as failure:
            store.commit()
        assert failure.value.reopen is reopen
        setattr(store.staging.engine, handle, whole)
        assert store.approximate_num_uncommitted_bytes() == 4
        assert store.read_only().get(b"key") == b"1"
    with open_store(backend, path, durability=Durability.DISK) as store:
        assert store.get(b"key") == b"1"


@pytest.mark.parametrize("error", ["SQLITE_CORRUPT", "SQLITE_NOTADB"])
def test_damage_found_in_a_commit_is_damage(path: Path, error: str) -> None:
    with open_store("sqlite", path) as store:
        assert isinstance(store, Store)
        store.put(b"key", b"1")
        whole = store.staging.engine._writer  # type: ignore[attr-defined]
        store.staging.engine._writer = Instead(whole, "execute", "commit", named(error))  # type: ignore[attr-defined]
        with pytest.raises(StoreCorruptedError):
            store.commit()
        store.staging.engine._writer = whole  # type: ignore[attr-defined]


def test_an_error_of_rocksdb_in_a_lookup_of_a_timestamped_value_is_damage(path: Path) -> None:
    with TimestampedKeyValue(BYTES, BYTES).over(open_store("rocksdb-indexed-batch", path)) as records:
        store = records.store
        assert isinstance(store, Store)
        for key in (b"key", b"other"):
            records.put(key, b"value", 1)
            records.commit()
        engine = cast(RocksDBEngine, store.staging.engine)
        stored = engine._stored
        engine._stored = [Instead(stored[0], "get", "", Exception("Corruption: block checksum mismatch"))]
        store.staging.use(engine)
        with pytest.raises(StoreCorruptedError):
            records.get(b"key")
        engine._stored = stored
        store.staging.use(engine)
        assert records.get(b"key") == (b"value", 1)


def test_lmdb_writes_through_no_mapping_of_the_file(path: Path) -> None:
    """Writes through mapped memory reach the disk at any time, in an unknown order."""
    for name in ("writemap", "map_async"):
        with pytest.raises(ConfigError):
            open_store("lmdb", path, options={name: True})
    for durability in Durability:
        with open_store("lmdb", path.with_name(durability.value), durability=durability) as store:
            assert isinstance(store, Store)
            flags = store.staging.engine._env.flags()  # type: ignore[attr-defined]
            assert (flags["writemap"], flags["map_async"]) == (False, False)
            assert (flags["sync"], flags["metasync"]) == (durability is Durability.DISK, True)


@pytest.mark.parametrize("content", [None, b"", b"{", b"garbage" * 9, b'{"raw_mode":false,"prefix_extractors":{}}'])
def test_what_has_become_of_rocksdict_s_own_notes_does_not_matter(path: Path, content: bytes | None) -> None:
    """They are rewritten on every opening, in place and unsynced: power loss may leave anything."""
    with open_store("rocksdb-indexed-batch", path, durability=Durability.DISK) as store:
        store.put(b"\x00key", b"1")
        store.commit()
    notes = path / "data" / "rocksdict-config.json"
    notes.unlink() if content is None else notes.write_bytes(content)
    with open_store("rocksdb-indexed-batch", path, durability=Durability.DISK) as store:
        assert list(store.all()) == [(b"\x00key", b"1")]


@pytest.mark.parametrize("backend", ["rocksdb", "lmdb", "sqlite"])
def test_an_opening_that_the_system_refuses_says_what_to_do(tmp_path: Path, backend: str) -> None:
    """As a full disk does: here no file may grow beyond a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(StoreUnavailableError, match="open the store again"):
            open_store(backend, tmp_path / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    open_store(backend, tmp_path / "store").close()
