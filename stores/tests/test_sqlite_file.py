"""A file that can't be written as its level of durability asks is refused, by the store and by the changelog alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import ChangelogError, Durability, StoreUnavailableError, open_store
from stores.changelog.sqlite import SqliteChangelog
from stores.sqlite_file import write_ahead

BACKEND = "sqlite-indexed-batch"
FULL = {Durability.CHANGELOG: 0, Durability.PROCESS: 1, Durability.DISK: 2}


def deaf(pragma: str) -> type[sqlite3.Connection]:
    """A connection that passes over every setting of ``pragma`` without a word, as SQLite does where it can't."""

    class Deaf(sqlite3.Connection):
        def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
            if pragma in statement and "=" in statement:
                statement = f"pragma {pragma}"
            return super().execute(statement, *given)

    return Deaf


@pytest.mark.parametrize("pragma", ["journal_mode", "synchronous"])
def test_a_mode_that_is_not_taken_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pragma: str) -> None:
    with open_store(BACKEND, tmp_path / "store"), SqliteChangelog(tmp_path / "log"):
        pass
    for database in (tmp_path / "store" / "data" / "store.db", tmp_path / "log"):
        connection = sqlite3.connect(database)
        assert connection.execute("pragma journal_mode = delete").fetchone() == ("delete",)
        connection.close()
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, factory=deaf(pragma), **named))
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


@pytest.mark.parametrize("durability", Durability)
def test_a_file_is_written_as_its_level_asks(tmp_path: Path, durability: Durability) -> None:
    connection = sqlite3.connect(tmp_path / "file", isolation_level=None)
    write_ahead(connection, durability)
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    assert connection.execute("pragma synchronous").fetchone() == (FULL[durability],)
    connection.close()
