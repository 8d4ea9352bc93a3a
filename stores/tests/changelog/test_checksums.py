"""Each record of the changelog file has a checksum: what was not written is never read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog import SqliteChangelog
from stores.changelog.sqlite_writer import checksums
from stores.errors import ChangelogError
from stores.interface import TopicPartition

TOPIC = TopicPartition("t", 0)
KEYS = [b"k%d" % number for number in range(40)]
"""More than a statement inserts at once."""


def fill(file: Path, keys: list[bytes] = KEYS) -> None:
    with SqliteChangelog(file) as log:
        log.create_topic(TOPIC.topic)
        with log.producer() as producer:
            for key in keys:
                producer.send(TOPIC, key, b"v" * 100, 1_000_000_000_000, (("h", b"1"),) if key == b"k7" else ())
            producer.send(TOPIC, b"k0", None)
            producer.send(TOPIC, None, b"")
            producer.flush()


def change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(statement)


def test_a_sound_changelog_is_read_and_verified(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    with SqliteChangelog(tmp_path / "log") as log:
        log.verify()
        assert [record.key for record in log.read(TOPIC)] == [*KEYS, b"k0", None]


@pytest.mark.parametrize(
    "damage",
    [
        "key = x'6b38'",
        "key = null",
        "value = x'00'",
        "value = null",
        "value = 17",
        "value = 'text'",
        "timestamp_ms = timestamp_ms + 1",
        "timestamp_ms = timestamp_ms + (1 << 40)",
        "timestamp_ms = 'now'",
        "headers = '[]'",
        "headers = 3",
        "headers = null",
        "checksum = checksum + 1",
    ],
)
def test_a_record_that_differs_from_its_checksum_is_an_error_and_is_not_returned(tmp_path: Path, damage: str) -> None:
    fill(tmp_path / "log")
    change(tmp_path / "log", f"update record set {damage} where offset = 7")
    with SqliteChangelog(tmp_path / "log") as log:
        read = []
        with pytest.raises(ChangelogError):
            for record in log.read(TOPIC):
                read.append(record.key)
        assert read == KEYS[:7]
        with pytest.raises(ChangelogError):
            log.verify()


@pytest.mark.parametrize(
    "damage",
    [
        "value = 0 where value is null",
        "value = '' where value is null",
        "value = 0 where value = x''",
        "value = '' where value = x''",
        "key = 0 where key is null",
    ],
)
def test_what_is_null_or_empty_is_of_no_other_type(tmp_path: Path, damage: str) -> None:
    """SQLite keeps the type of each field: one bit of it makes a number of what is null, and text of an empty value."""
    fill(tmp_path / "log")
    change(tmp_path / "log", f"update record set {damage}")
    with SqliteChangelog(tmp_path / "log") as log:
        with pytest.raises(ChangelogError):
            list(log.read(TOPIC))
        with pytest.raises(ChangelogError):
            log.verify()


@pytest.mark.parametrize("damage", ["key = x'6b39'", "timestamp_ms = 1", "value = x'00'", "checksum = checksum - 1"])
def test_a_damaged_tombstone_is_detected(tmp_path: Path, damage: str) -> None:
    """A restore would delete another key than the one that was deleted."""
    fill(tmp_path / "log")
    change(tmp_path / "log", f"update record set {damage} where value is null")
    with SqliteChangelog(tmp_path / "log") as log:
        with pytest.raises(ChangelogError):
            list(log.read(TOPIC))
        with pytest.raises(ChangelogError):
            log.verify()


def test_a_record_at_another_offset_is_reported(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    change(tmp_path / "log", "delete from record where offset = 9")
    change(tmp_path / "log", "update record set offset = 9 where offset = 8")
    with SqliteChangelog(tmp_path / "log") as log, pytest.raises(ChangelogError):
        list(log.read(TOPIC))


def test_a_record_without_a_checksum_is_reported(tmp_path: Path) -> None:
    """The type of each field is in a byte of the file: one bit of it makes null of a number."""
    fill(tmp_path / "log")
    change(tmp_path / "log", "alter table record drop column checksum")
    change(tmp_path / "log", "alter table record add column checksum integer")
    with SqliteChangelog(tmp_path / "log") as log:
        with pytest.raises(ChangelogError):
            list(log.read(TOPIC))
        with pytest.raises(ChangelogError):
            log.verify()


@pytest.mark.parametrize("headers", ["5", "[5]", "[[1, 2]]", '[["h", 1]]', '[["h", "\u0100"]]', "{", "[" * 30_000])
def test_headers_that_another_program_wrote_are_named_by_their_record(tmp_path: Path, headers: str) -> None:
    fill(tmp_path / "log")
    [checksum] = checksums(9, [b"k9", b"v" * 100, 1_000_000_000_000, headers])
    with closing(sqlite3.connect(tmp_path / "log")) as connection, connection:
        connection.execute("update record set headers = ?, checksum = ? where offset = 9", (headers, checksum))
    with SqliteChangelog(tmp_path / "log") as log, pytest.raises(ChangelogError, match="record 9 of t-0"):
        list(log.read(TOPIC))
