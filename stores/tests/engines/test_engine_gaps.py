"""Defects of the engines' libraries that we work around: each of these fails when it is mended, and says what can go.

The facts are described where the workarounds are: ``stores/engines/``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import lmdb
import pytest
import rocksdict
from rocksdict import Options, Rdict, WriteBatch


def opened(path: Path) -> Rdict:
    """A raw RocksDB with two families that are to be flushed together."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    return Rdict(str(path), options=options, column_families={"default": options, "offsets": options})


def test_rocksdict_scans_end_at_damage_without_an_error(path: Path) -> None:
    """``_check_end`` in the RocksDB engine can go when this raises."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    db = Rdict(str(path), options=options)
    for number in range(2000):
        db[b"%06d" % number] = b"v" * 100
    db.flush()
    db.close()
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    with open(table, "r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(Random(1).randbytes(200))
    db = Rdict(str(path), options=options)
    assert len(list(db.items())) < 2000
    db.close()


def test_rocksdict_refuses_a_range_delete_that_ends_before_it_begins(path: Path) -> None:
    """``_delete_range`` in the RocksDB engine need not look for the last key when a range may be open-ended."""
    db = opened(path)
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(b"b", b"a")
    with pytest.raises(Exception, match="end key comes before start key"):
        db.write(batch)


def test_rocksdict_never_ends_opening_a_log_with_a_record_of_a_reused_log_in_it(path: Path) -> None:
    """``stores/files/open_probe.py`` and ``record_log.py`` can go when this ends, for the manifest as well."""
    db = opened(path)
    db[b"a"] = b"1"
    db.flush_wal(True)
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    db.close()
    with next(copy.glob("*.log")).open("ab") as log:
        log.write(b"\1\2\3\4\0\0\5")
    script = "from stores.tests.engines.test_engine_gaps import opened, Path; import sys; opened(Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", script, str(copy)], timeout=5, check=False, env=environment)


def test_rocksdict_cannot_flush_several_families_in_one_call() -> None:
    """``persist`` makes a checkpoint instead."""
    assert not hasattr(Rdict, "flush_cfs")


def test_rocksdict_has_no_indexed_batch_and_no_transactions() -> None:
    """``stores/batch/buffer.py`` is ours for that reason."""
    assert not hasattr(rocksdict, "WriteBatchWithIndex")
    assert not hasattr(rocksdict, "TransactionDB")


def test_rocksdict_snapshots_scan_live_data(path: Path) -> None:
    """Scans use a fresh iterator, which is a snapshot of its own."""
    db = opened(path)
    db[b"a"] = b"1"
    snapshot, iterator = db.snapshot(), db.items()
    db[b"b"] = b"2"
    assert [key for key, _ in snapshot.items()] == [b"a", b"b"]
    assert [key for key, _ in iterator] == [b"a"]
    del snapshot, iterator
    db.close()


def test_reading_a_truncated_lmdb_ends_the_process(path: Path) -> None:
    """``check_length`` in the LMDB engine can go when this is an error that can be caught."""
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for number in range(4000):
            txn.put(b"%06d" % number, b"v" * 100)
    file = path / "data.mdb"
    with open(file, "r+b") as opened_file:
        opened_file.truncate(file.stat().st_size // 2)
    script = "import lmdb, sys; print(sum(1 for _ in lmdb.open(sys.argv[1]).begin().cursor()))"
    process = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, timeout=600, check=False)
    assert process.returncode < 0


def test_lmdb_creates_an_empty_database_in_place_of_a_removed_one(path: Path) -> None:
    """``database_bytes`` of ``stores.engines.lmdb.file`` need refuse nothing when this raises."""
    with lmdb.open(str(path), map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    (path / "data.mdb").unlink()
    with lmdb.open(str(path), map_size=1 << 20) as env, env.begin() as txn:
        assert txn.get(b"key") is None
