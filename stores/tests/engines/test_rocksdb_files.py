"""RocksDB's files, looked at behind the store's back: families, flushes, and what a kill finds in them.

Source: KIP-892, "Atomic Checkpointing" and "RocksDB Transactions".
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from rocksdict import AccessType, Options, Rdict

from stores import Durability, IsolationLevel, TopicPartition, open_store
from stores.engines.rocksdb import engine
from stores.engines.rocksdb.reader import DatabaseReader, Mirror
from stores.engines.rocksdb.scan import RocksDBScan, RocksDBSnapshot
from stores.ordered import ScanRange
from stores.strategies.indexed_batch import AFTER_WRITE, BEFORE_WRITE
from stores.strategies.store import Store
from stores.tests.rocksdb_options import DATABASE, RECORDS, options_in_use
from stores.tests.store_process import StoreProcess

LOG, INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)
INDEXED = "rocksdb-indexed-batch"
TINY = {"write_buffer_size_bytes": 64 << 10, "offsets_write_buffer_size_bytes": 64 << 10}
SHARED = {"shared_memory_bytes": 128 << 10}
SEED = 892


def flushes(path: Path) -> int:
    """Return the number of flushes since the store was opened, from RocksDB's info log."""
    return (path / "data" / "LOG").read_text(errors="replace").count('"event": "flush_started"')


def families(path: Path) -> dict[str, dict[bytes, bytes]]:
    """Return the content of each column family of a closed store, read with plain rocksdict."""
    options = Options(raw_mode=True)
    names = Rdict.list_cf(str(path / "data"), options)
    db = Rdict(
        str(path / "data"),
        options=options,
        column_families=dict.fromkeys(names, options),
        access_type=AccessType.read_only(),
    )
    families_content: dict[str, dict[Any, Any]] = {name: dict(db.get_column_family(name).items()) for name in names}
    db.close()
    return families_content


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("max_background_jobs", 5),
        ("max_file_opening_threads", 2),
        ("level_zero_file_num_compaction_trigger", 7),
        ("max_write_buffer_number", 6),
        ("write_buffer_size_bytes", 1 << 20),
    ],
)
def test_rocksdb_gets_the_options_of_a_store_and_their_defaults(path: Path, name: str, given: int) -> None:
    in_file = name.replace("level_zero", "level0").removesuffix("_bytes")
    for options, wanted in (({name: given}, given), ({}, engine.RocksDBEngine.options[name])):
        with open_store(INDEXED, path, options=options):
            used = options_in_use(path)
            assert {**used[DATABASE], **used[RECORDS]}[in_file] == str(wanted)


@pytest.mark.parametrize("backend", [INDEXED, "rocksdb-direct", "rocksdb-dual-store"])
@pytest.mark.parametrize("durability", Durability)
def test_commits_flush_nothing(path: Path, backend: str, durability: Durability) -> None:
    """When to flush is the engine's to decide; ``persist`` is the one that asks for it."""
    with open_store(backend, path, durability=durability) as store:
        assert isinstance(store, Store)
        for number in range(200):
            store.put(b"%04d" % number, b"v" * 100)
            store.commit({LOG: number})
        assert flushes(path) == 0
        assert list((path / "data").glob("*.sst")) == []
        if durability is Durability.CHANGELOG:
            store.staging.engine.persist()
            assert flushes(path) > 0
            assert list((path / "data").glob("*.sst")) != []


def test_offsets_and_position_have_a_family_of_their_own(path: Path) -> None:
    with open_store(INDEXED, path) as store:
        store.put(b"key", b"value")
        store.advance_position(INPUT, 7)
        store.commit({LOG: 41})
        assert list(store.all()) == list(store.read_only().reverse_all()) == [(b"key", b"value")]
    family_names = families(path)
    assert set(family_names) == {"default", "offsets"}
    assert family_names["default"] == {b"key": b"value"}
    assert sorted(family_names["offsets"].values()) == [number.to_bytes(8, "big") for number in (7, 41)]


def test_a_direct_store_keeps_no_offsets(path: Path) -> None:
    with open_store("rocksdb-direct", path) as store:
        store.put(b"key", b"value")
        store.commit({LOG: 41})
    assert families(path) == {"default": {b"key": b"value"}, "offsets": {}}


@pytest.mark.parametrize(("options", "kills"), [(TINY, 12), (SHARED, 5)], ids=["buffers", "shared"])
def test_whatever_flush_a_kill_comes_after_data_and_offsets_are_of_one_commit(
    path: Path, options: Mapping[str, object], kills: int
) -> None:
    """No log, and write buffers, or memory for those of all stores, that are full every few dozen commits.

    Seed: ``SEED``.

    Commit n puts n under the key n modulo 50: the last 50 numbers are then all that is there.
    """
    random = Random(SEED)
    kept: list[int] = []
    begin = 0
    for _ in range(kills):
        with StoreProcess() as process:
            process.call("open", INDEXED, path, Durability.CHANGELOG, options)
            process.call("kill_at", random.choice([BEFORE_WRITE, AFTER_WRITE]), random.randrange(100, 1000))
            process.call_until_killed("commit_numbers", begin, begin + 1001, 50, b"v" * random.randrange(200, 2000))
        with open_store(INDEXED, path, options=options) as store:
            offset = store.committed_offset(LOG)
            expected = {} if offset is None else {n % 50: n for n in range(max(0, offset - 49), offset + 1)}
            assert {int(key): int(value.split(b":")[0]) for key, value in store.all()} == expected
            assert store.position(IsolationLevel.READ_COMMITTED) == ({} if offset is None else {INPUT: offset})
        if offset is not None:
            kept.append(offset)
            begin = offset + 1
    assert len(set(kept)) > kills // 2, "nothing was flushed before the kills: they have shown nothing"


_CLOSE_AND_DIE = """
import os, signal, sys
from stores import TopicPartition, open_store
from stores.engines.rocksdb import engine as rocksdb

store = open_store(sys.argv[1], sys.argv[2])
store.put(b"key", b"value")
store.commit({TopicPartition("changelog", 0): 41})
close = rocksdb.close_handle

def close_and_die(handle):
    close(handle)
    os.kill(os.getpid(), signal.SIGKILL)

rocksdb.close_handle = close_and_die
store.close()
"""


def test_a_kill_between_the_families_while_the_store_is_closed_leaves_both_of_one_commit(path: Path) -> None:
    """Closing the handle of a family flushes that family alone."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-c", _CLOSE_AND_DIE, INDEXED, str(path)], env=environment, timeout=600, check=False
    )
    assert process.returncode == -signal.SIGKILL
    with open_store(INDEXED, path) as store:
        assert (store.get(b"key"), store.committed_offset(LOG)) == (b"value", 41)


def test_a_put_leaves_the_engine_alone_and_a_commit_is_one_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost moves from put to commit. Source: KIP-892, "Compatibility, Deprecation, and Migration Plan"."""
    calls: list[str] = []
    for backend in (INDEXED, "rocksdb-direct"):
        calls.clear()
        with open_store(backend, path.with_name(backend)) as store:
            assert isinstance(store, Store)
            engine = type(store.staging.engine)
            with monkeypatch.context() as patch:
                for name in ("put", "write", "persist", "sync"):
                    original = getattr(engine, name)

                    def call(*given: object, _name: str = name, _original: object = original, **named: object) -> None:
                        calls.append(_name)
                        assert callable(_original)
                        _original(*given, **named)

                    patch.setattr(engine, name, call)
                for number in range(100):
                    store.put(b"%d" % number, b"v")
                store.delete_range(b"5", b"6")
                staging = list(calls)
                store.commit({LOG: 1})
        if backend == INDEXED:
            assert (staging, calls) == ([], ["write"])
        else:
            assert staging == ["put"] * 100 + ["write"]
            assert calls == [*staging, "sync"]


def test_a_delete_without_an_end_reaches_what_was_staged_before_it_behind_all_committed_keys(path: Path) -> None:
    """RocksDB wants an end; the writes are in a layer of their own, since a scan holds them."""
    with open_store("rocksdb-indexed-batch", path) as store:
        store.put(b"a", b"1")
        store.commit()
        store.put(b"y", b"1")
        store.put(b"z", b"1")
        with store.all():
            store.delete_range(b"b", None)
            store.commit()
        assert list(store.all()) == [(b"a", b"1")]


def test_scans_of_many_ranges_share_the_iterators_of_one_snapshot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator for each takes a millisecond, and a view of a window store may have 20,000 ranges."""
    made: list[object] = []
    scans = RocksDBScan.__init__

    def counted(self: RocksDBScan, *given: Any, **named: Any) -> None:
        made.append(self)
        scans(self, *given, **named)

    def snapshot(iterators: list[Any], *given: Any) -> RocksDBSnapshot:
        made.extend(iterators)
        return RocksDBSnapshot(iterators, *given)

    monkeypatch.setattr(RocksDBScan, "__init__", counted)
    monkeypatch.setattr(engine, "RocksDBSnapshot", snapshot)
    store: Any = open_store("rocksdb-direct", path)
    with store:
        store.put_all([(b"%04d" % number, b"v") for number in range(1_000)])
        store.commit()
        found = store.staging.engine.scans([ScanRange(b"%04d" % number, b"%04d" % number) for number in range(1_000)])
        assert [[*scan.fetch()] for scan in found] == [[(b"%04d" % number, b"v")] for number in range(1_000)]
        for scan in found:
            scan.close()
    assert len(made) < 10


def test_a_reader_looks_again_if_a_wal_is_removed_while_it_looks(tmp_path: Path) -> None:
    """The WAL's commits may be in no table yet when the manifest is read, and in no WAL when the WALs are."""
    wal = tmp_path / "000004.log"
    wal.touch()
    database = Mock()
    database.try_catch_up_with_primary.side_effect = lambda: wal.unlink(missing_ok=True)
    DatabaseReader(database, False, tmp_path / "MANIFEST-000005", Mirror()).catch_up()
    assert database.try_catch_up_with_primary.call_count == 2
