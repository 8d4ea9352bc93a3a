"""A store has one SQLite connection that can write: two that write or checkpoint at one moment may corrupt the file.

Source: SQLite 3.51.3, release notes, "WAL-reset" bug of 3.7.0 to 3.51.2.
"""

from __future__ import annotations

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Event

import pytest

from stores import Durability
from stores.engines.sqlite import SqliteEngine
from stores.files import sqlite_library
from stores.registry import backend_named, open_store


def opened(folder: Path) -> SqliteEngine:
    """An engine whose WAL has pages that are not in the database file."""
    folder.mkdir()
    engine = SqliteEngine.open(folder, Durability.PROCESS, SqliteEngine.options)
    for number in range(100):
        engine.put(b"%d" % number, b"v" * 1_000)
    return engine


def digests(folder: Path) -> dict[str, str]:
    """The contents of the database file and of its WAL."""
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in ("store.db", "store.db-wal")}


def test_a_connection_of_a_reader_can_neither_write_nor_checkpoint(tmp_path: Path) -> None:
    engine = opened(tmp_path / "s")
    before = digests(tmp_path / "s")
    reader = engine._acquire()
    for statement in ("delete from data", "pragma wal_checkpoint(truncate)", "vacuum", "pragma user_version=7"):
        with pytest.raises(sqlite_library.Error):
            reader.execute(statement).fetchall()
    assert digests(tmp_path / "s") == before
    engine._release(reader)
    engine.close()


def test_the_last_reader_to_close_does_not_checkpoint(tmp_path: Path) -> None:
    """SQLite checkpoints when the last connection closes. A reader must leave that to the writer."""
    engine, left = opened(tmp_path / "s"), tmp_path / "left"
    # The files as a killed process leaves them, with a reader as their only connection.
    shutil.copytree(tmp_path / "s", left)
    engine._file = left / "store.db"
    reader = engine._connect()
    assert reader.execute("select count(*) from data").fetchone() == (100,)
    before = digests(left)
    reader.close()
    assert digests(left) == before
    engine.close()
    # Another connection does.
    other = sqlite3.connect(left / "store.db")
    assert other.execute("select count(*) from data").fetchone() == (100,)
    other.close()
    assert not (left / "store.db-wal").exists()


def test_the_owner_reads_committed_data_while_a_reader_is_inside_the_writing_connection(tmp_path: Path) -> None:
    """A dirty reader looks into the transaction. apsw refuses every other call on that connection meanwhile."""
    engine, inside, go_on = opened(tmp_path / "s"), Event(), Event()
    transaction = engine.begin()
    transaction.put(b"7", b"staged")

    def pause() -> bool:
        inside.set()
        return not go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        engine._writer.set_progress_handler(pause, 1)
        dirty = pool.submit(transaction.get, b"7")
        try:
            assert inside.wait(60)
            assert engine.get(b"7") == b"v" * 1_000
            assert engine.get_many([b"7", b"x"]) == [b"v" * 1_000, None]
        finally:
            go_on.set()
        assert dirty.result(60) == b"staged"
    engine._writer.set_progress_handler(None, 0)
    transaction.commit({})
    assert engine.get(b"7") == b"staged"
    engine.close()


@pytest.mark.parametrize("commits", [True, False])
def test_after_a_transaction_the_owner_reads_on_the_writing_connection_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    engine, taken = opened(tmp_path / "s"), list[sqlite_library.Connection]()
    acquire = engine._acquire

    def noted() -> sqlite_library.Connection:
        taken.append(acquire())
        return taken[-1]

    monkeypatch.setattr(engine, "_acquire", noted)
    transaction = engine.begin()
    transaction.put(b"7", b"staged")
    assert engine.get(b"7") == b"v" * 1_000
    assert len(taken) == 1
    if commits:
        transaction.commit({})
    else:
        transaction.abort()
    assert engine.get(b"7") == (b"staged" if commits else b"v" * 1_000)
    assert len(taken) == 1
    engine.close()


def test_a_closed_store_has_a_checkpoint_and_no_wal(tmp_path: Path) -> None:
    engine = opened(tmp_path / "s")
    scan, snapshot = engine.scan(), engine.snapshot()
    assert snapshot.get(b"7") == b"v" * 1_000
    snapshot.close()
    scan.close()
    engine.verify()
    engine.close()
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["store.db"]


@pytest.mark.parametrize("backend", ["sqlite-indexed-batch", "sqlite-native"])
def test_a_store_says_which_sqlite_it_uses(tmp_path: Path, backend: str) -> None:
    with open_store(backend_named(backend).name, tmp_path / "s") as store:
        number = store.engine_metrics()["sqlite_version_number"]
    assert (number // 1_000_000, number // 1_000 % 1_000, number % 1_000) == tuple(
        int(part) for part in sqlite_library.VERSION.split(".")
    )
