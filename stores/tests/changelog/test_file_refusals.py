"""Foreign files, a full disk and corruption: each is a ChangelogError that names the file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from stores.changelog.sqlite import SqliteChangelog
from stores.errors import ChangelogError, ConfigError
from stores.tests.changelog.records import A, filled, send_many


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database " * 1_000)


def empty(path: Path) -> None:
    path.touch()


def folder(path: Path) -> None:
    path.mkdir()


def cut_short(path: Path) -> None:
    filled(path, 10_000)
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    filled(path, 10_000)
    with path.open("rb+") as file:
        file.seek(100)
        file.write(b"\xff" * 3_000)


def other_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table t (a)")
    connection.commit()
    connection.close()


def older_version(path: Path) -> None:
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 0")
    connection.close()


def newer_version(path: Path) -> None:
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    "make", [garbage, empty, folder, cut_short, overwritten, other_database, older_version, newer_version]
)
def test_what_is_no_changelog_is_refused_by_name_and_left_as_it_is(tmp_path: Path, make: object) -> None:
    path = tmp_path / "log.sqlite"
    assert callable(make)
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ChangelogError) as error:
        SqliteChangelog(path)
    assert str(path) in str(error.value)
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("name", ["nul\0", "lone \ud800"])
def test_text_that_is_no_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        SqliteChangelog(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError) as error:
        SqliteChangelog(tmp_path / "nowhere" / "log.sqlite")
    assert str(tmp_path / "nowhere") in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anything, so the system's answer is given here."""
    path = filled(tmp_path / "log.sqlite")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ChangelogError):
        SqliteChangelog(path)


def test_damage_that_shows_only_in_reading_is_a_changelog_error(tmp_path: Path) -> None:
    path = filled(tmp_path / "log.sqlite", 20_000)
    with path.open("rb+") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 500_000)
    with SqliteChangelog(path) as log, pytest.raises(ChangelogError):
        list(log.read(A))


def test_disk_full_in_a_commit_changes_nothing_and_the_commit_can_be_tried_again(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        log.create_topic("a")
        producer = log.producer("p")
        producer.begin()
        for number in range(2_000):
            producer.send(A, b"%d" % number, bytes(1_000))
        producer.send_offsets("g", {A: 1})
        [pages] = log._file.writer.execute("pragma page_count").fetchone()
        log._file.writer.execute(f"pragma max_page_count = {pages + 2}").fetchone()
        with pytest.raises(ChangelogError):
            producer.commit()
        assert (list(log.read(A)), log.end_offset(A), log.committed_offsets("g")) == ([], 0, {})
        log._file.writer.execute("pragma max_page_count = 1000000").fetchone()
        assert producer.commit() == {A: 1_999}
        assert len(list(log.read(A))) == 2_000


def test_disk_full_in_a_long_transaction_refuses_the_record_and_the_transaction_can_be_aborted(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        log.create_topic("a")
        producer = log.producer("p")
        producer.begin()
        send_many(producer, 12_000, bytes(100))
        [pages] = log._file.writer.execute("pragma page_count").fetchone()
        log._file.writer.execute(f"pragma max_page_count = {pages + 2}").fetchone()
        with pytest.raises(ChangelogError):
            send_many(producer, 28_000, bytes(100))
        producer.abort()
        log._file.writer.execute("pragma max_page_count = 1000000").fetchone()
        assert list(log.read(A)) == []
        producer.begin()
        producer.send(A, b"k", b"v")
        last = producer.commit()[A]
        assert [record.offset for record in log.read(A)] == [last]


@pytest.mark.parametrize(
    "statement",
    ["update topic_partition set partition_id = (1 << 17) - 1", "update topic_partition set next_offset = 1 << 46"],
)
def test_a_changelog_that_has_no_numbers_left_refuses_more_and_says_so(tmp_path: Path, statement: str) -> None:
    path = filled(tmp_path / "log.sqlite")
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with SqliteChangelog(path) as log, log.producer() as producer:
        with pytest.raises(ChangelogError, match="up to"):
            log.create_topic("more")
            producer.send(A, b"k", b"v")
            producer.flush()
        producer.abort()
