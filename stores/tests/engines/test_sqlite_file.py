"""A file that can't be written as its level of durability asks is refused, by the store and by the changelog alike."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores import (
    ChangelogError,
    Durability,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreUnavailableError,
    open_store,
)
from stores.changelog.sqlite import SqliteChangelog
from stores.engines.sqlite import SqliteEngine
from stores.engines.sqlite import engine as sqlite
from stores.files.sqlite_library import connect, run_script, write_ahead

BACKEND = "sqlite-indexed-batch"
FULL = {Durability.CHANGELOG: 0, Durability.PROCESS: 1, Durability.DISK: 2}


class Deaf:
    """A connection that silently ignores every setting of ``pragma``, as SQLite does if it can't apply one."""

    def __init__(self, pragma: str, *given: Any, **named: Any) -> None:
        self._pragma, self._connection = pragma, connect(*given, **named)

    def execute(self, statement: str, *given: Any) -> Any:
        if self._pragma in statement and "=" in statement:
            statement = f"pragma {self._pragma}"
        return self._connection.execute(statement, *given)

    def executescript(self, script: str) -> None:
        run_script(self._connection, script)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("pragma", ["journal_mode", "synchronous"])
def test_a_mode_that_is_not_taken_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pragma: str) -> None:
    with open_store(BACKEND, tmp_path / "store"), SqliteChangelog(tmp_path / "log"):
        pass
    for database in (tmp_path / "store" / "data" / "store.db", tmp_path / "log"):
        connection = sqlite3.connect(database)
        assert connection.execute("pragma journal_mode = delete").fetchone() == ("delete",)
        connection.close()
    with monkeypatch.context() as patch:
        for module in ("engines.sqlite.engine", "changelog.log_file", "changelog.schema"):
            patch.setattr(f"stores.{module}.connect", partial(Deaf, pragma))
        with pytest.raises(StoreUnavailableError):
            open_store(BACKEND, tmp_path / "store", durability=Durability.PROCESS)
        with pytest.raises(ChangelogError):
            SqliteChangelog(tmp_path / "log", Durability.PROCESS)
        with pytest.raises(ChangelogError):
            SqliteChangelog(tmp_path / "other log", Durability.PROCESS)
        with pytest.raises(StoreUnavailableError):
            open_store(BACKEND, tmp_path / "other store", durability=Durability.PROCESS)
    open_store(BACKEND, tmp_path / "store").close()
    SqliteChangelog(tmp_path / "log").close()


@pytest.mark.parametrize(
    "foreign",
    [
        "create table theirs (key)",
        "create view theirs as select * from data",
        "create index theirs on data (value)",
        "create trigger theirs after insert on data begin delete from data; end",
    ],
)
def test_a_sqlite_file_with_foreign_tables_is_refused_by_their_names_and_not_changed(
    tmp_path: Path, foreign: str
) -> None:
    file = tmp_path / "store" / "data" / "store.db"
    with open_store(BACKEND, tmp_path / "store") as store:
        store.put(b"key", b"value")
        store.commit()
    connection = sqlite3.connect(file)
    connection.execute("analyze")
    connection.execute(foreign)
    connection.close()
    with pytest.raises(StoreIncompatibleError, match="theirs"):
        open_store(BACKEND, tmp_path / "store")
    connection = sqlite3.connect(file)
    connection.execute(f"drop {foreign.split()[1]} theirs")
    connection.close()
    with open_store(BACKEND, tmp_path / "store") as store:
        assert store.get(b"key") == b"value"


@pytest.mark.parametrize("called", ["open", "meta"])
def test_an_opening_that_does_not_end_is_interrupted_and_counts_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    """The deadline is up at the first look, at the first step; a sound file needs few."""
    open_store(BACKEND, tmp_path / "store").close()
    original = getattr(SqliteEngine, called)

    def hurried(*given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "OPENING_S", -1.0)
            patch.setattr(sqlite, "STEPS_PER_LOOK", 1)
            return original(*given[called == "open" :])

    monkeypatch.setattr(SqliteEngine, called, classmethod(hurried) if called == "open" else hurried)
    with pytest.raises(StoreCorruptedError):
        open_store(BACKEND, tmp_path / "store")
    monkeypatch.undo()
    open_store(BACKEND, tmp_path / "store").close()


@pytest.mark.parametrize("durability", Durability)
def test_a_file_is_written_as_its_level_asks(tmp_path: Path, durability: Durability) -> None:
    connection = sqlite3.connect(tmp_path / "file", isolation_level=None)
    write_ahead(connection, durability)
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    assert connection.execute("pragma synchronous").fetchone() == (FULL[durability],)
    connection.close()


def killed(path: Path) -> Callable[[], AbstractContextManager[object]]:
    """Return the call that opens a store or changelog at ``path`` whose process was killed after its first commit."""
    program = f"""
import os
from stores import Durability, open_store
from stores.changelog.sqlite import SqliteChangelog
if {path.name!r} == "store":
    store = open_store({BACKEND!r}, {str(path)!r}, durability=Durability.DISK)
    store.put(b"key", b"value")
    store.commit()
else:
    log = SqliteChangelog({str(path)!r})
    log.create_topic("topic")
os._exit(0)
"""
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )
    if path.name == "store":
        return lambda: open_store(BACKEND, path, durability=Durability.DISK)
    return lambda: SqliteChangelog(path)


@pytest.mark.parametrize("name", ["store", "log"])
def test_a_log_that_was_left_by_a_kill_is_written_once_more_before_anything_stands_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A sync before the kill may have failed: no later one says so, unless there is something new to write."""
    opened = killed(tmp_path / name)
    [log] = [path for path in tmp_path.rglob("*-wal") if path.stat().st_size]
    whole, status, done = log.read_bytes(), log.stat(), list[tuple[object, int]]()
    pwrite, fsync = os.pwrite, os.fsync

    def seen_pwrite(descriptor: int, data: bytes, at: int) -> int:
        if os.path.samestat(os.fstat(descriptor), status):
            done.append((data, at))
        return pwrite(descriptor, data, at)

    def seen_fsync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), status):
            done.append(("synced", 0))
        fsync(descriptor)

    monkeypatch.setattr(os, "pwrite", seen_pwrite)
    monkeypatch.setattr(os, "fsync", seen_fsync)
    with opened():
        assert done == [(whole, 0), ("synced", 0)]
        assert log.read_bytes() == whole


@pytest.mark.parametrize(("name", "error"), [("store", StoreUnavailableError), ("log", ChangelogError)])
def test_a_log_that_the_disk_refuses_to_keep_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception]
) -> None:
    opened = killed(tmp_path / name)
    [log] = [path for path in tmp_path.rglob("*-wal") if path.stat().st_size]
    fsync, status = os.fsync, log.stat()

    def refuse(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), status):
            raise OSError(errno.EIO, "the disk refuses")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(error):
            opened()
    with opened():
        pass


@pytest.mark.parametrize("backend", ["sqlite-indexed-batch", "sqlite-native"])
def test_damage_that_only_sqlite_itself_finds_is_found_by_verify(tmp_path: Path, backend: str) -> None:
    """All records can be read, and their checksums fit: the count of free pages in the header is wrong."""
    with open_store(backend, tmp_path / "store") as store:
        for number in range(200):
            store.put(b"%d" % number, b"x" * 4_000)
        store.commit({})
        for number in range(1, 200):
            store.delete(b"%d" % number)
        store.commit({})
    with (tmp_path / "store/data/store.db").open("r+b") as file:
        file.seek(36)  # Source: SQLite's manual, "Database File Format", 1.3.
        free = int.from_bytes(file.read(4), "big")
        assert free > 100
        file.seek(36)
        file.write((free - 1).to_bytes(4, "big"))
    with open_store(backend, tmp_path / "store") as store:
        with store.all() as pairs:
            assert dict(pairs) == {b"0": b"x" * 4_000}
        with pytest.raises(StoreCorruptedError, match=r"store\.db"):
            store.verify()
