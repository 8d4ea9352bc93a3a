"""Each batch of the changelog file has a checksum: what was not written is never read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog import SqliteChangelog
from stores.changelog.batches import sealed
from stores.errors import ChangelogError
from stores.interface import TopicPartition

TOPIC = TopicPartition("t", 0)
KEYS = [b"k%d" % number for number in range(40)]
TOMBSTONE = 40
"""The offset of a batch with a tombstone alone."""


def fill(file: Path) -> None:
    """Write batches of ten keys, and of one record."""
    with SqliteChangelog(file) as log:
        log.create_topic(TOPIC.topic)
        with log.producer() as producer:
            for first in range(0, len(KEYS), 10):
                for key in KEYS[first : first + 10]:
                    producer.send(TOPIC, key, b"v" * 100, 1_000_000_000_000)
                producer.flush()
            producer.send(TOPIC, b"k0", None)
            producer.flush()
            producer.send(TOPIC, None, b"")
            producer.flush()


def change(file: Path, statement: str, values: tuple[object, ...] = ()) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(statement, values)


def test_a_sound_changelog_is_read_and_verified(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    with SqliteChangelog(tmp_path / "log") as log:
        log.verify()
        assert [record.key for record in log.read(TOPIC)] == [*KEYS, b"k0", None]


DAMAGES = [
    "count = count + 1",
    "count = 0",
    "count = 'ten'",
    "transaction_id = 1",
    "time_ms = 1",
    "time_ms = time_ms + (1 << 40)",
    "time_ms = 'now'",
    "content = 17",
    "content = 'text'",
    "content = x''",
    "content = x'00000000'",
    "content = cast(content || x'00' as blob)",
    "content = (select content from batch where batch_id & 1023 = 20)",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_batch_that_differs_from_its_checksum_is_an_error_and_is_not_returned(tmp_path: Path, damage: str) -> None:
    fill(tmp_path / "log")
    change(tmp_path / "log", f"update batch set {damage} where batch_id & 1023 = 10")
    with SqliteChangelog(tmp_path / "log") as log:
        read = []
        with pytest.raises(ChangelogError, match="records 10 to 19 of t-0"):
            for record in log.read(TOPIC):
                read.append(record.key)
        assert read == KEYS[:10]
        for call in (log.verify, lambda: log.compact(TOPIC), lambda: log.truncate(TOPIC, 11)):
            with pytest.raises(ChangelogError, match="records 10 to 19 of t-0"):
                call()
        assert [record.key for record in log.read(TOPIC, 20)] == [*KEYS[20:], b"k0", None]
        assert log.start_offset(TOPIC) == 0


def test_content_that_has_become_text_is_reported(tmp_path: Path) -> None:
    """SQLite keeps the type of each field: one bit of it makes text of bytes."""
    fill(tmp_path / "log")
    change(tmp_path / "log", "update batch set content = cast(content as text) where batch_id & 1023 = 10")
    with SqliteChangelog(tmp_path / "log") as log:
        for call in (lambda: list(log.read(TOPIC)), log.verify, lambda: log.compact(TOPIC)):
            with pytest.raises(ChangelogError):
                call()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_tombstone_is_detected(tmp_path: Path, damage: str) -> None:
    """A restore would delete another key than the one that was deleted."""
    fill(tmp_path / "log")
    change(tmp_path / "log", f"update batch set {damage} where batch_id & 1023 = {TOMBSTONE}")
    with SqliteChangelog(tmp_path / "log") as log:
        for call in (lambda: list(log.read(TOPIC)), log.verify):
            with pytest.raises(ChangelogError, match="records 40 to 40 of t-0"):
                call()


@pytest.mark.parametrize("to", ["batch_id + 1", "batch_id + (1 << 46)", "batch_id + (2 << 46)", "30 - batch_id"])
def test_a_batch_at_another_place_is_reported(tmp_path: Path, to: str) -> None:
    fill(tmp_path / "log")
    with SqliteChangelog(tmp_path / "log") as log:
        log.create_topic("other")
    change(tmp_path / "log", "delete from batch where batch_id & 1023 = 20")
    change(tmp_path / "log", f"update batch set batch_id = {to} where batch_id & 1023 = 10")
    with SqliteChangelog(tmp_path / "log") as log, pytest.raises(ChangelogError):
        log.verify()


def test_what_an_aborted_transaction_wrote_is_verified_as_well(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log") as log:
        log.create_topic(TOPIC.topic)
        with log.producer("p") as producer:
            producer.begin()
            for _ in range(10_001):
                producer.send(TOPIC, b"k", b"v")
            producer.abort()
        log.verify()
        change(tmp_path / "log", "update batch set time_ms = 1 where batch_id & 16383 = 9000")
        assert list(log.read(TOPIC)) == []
        with pytest.raises(ChangelogError, match="records 9000 to 9999 of t-0"):
            log.verify()


@pytest.mark.parametrize(
    "headers",
    [
        "5",
        "[5]",
        "[[10, 2]]",
        "[[10, [[1, 2]]]]",
        '[[10, [["h", 1]]]]',
        '[[10, [["h", "\u0100"]]]]',
        "[[9, []]]",
        "{",
        "[" * 30_000,
    ],
)
def test_headers_that_another_program_wrote_are_named_by_their_records(tmp_path: Path, headers: str) -> None:
    write_content(tmp_path / "log", lambda body: body + headers.encode())
    with SqliteChangelog(tmp_path / "log") as log, pytest.raises(ChangelogError, match="records 10 to 19 of t-0"):
        list(log.read(TOPIC))


@pytest.mark.parametrize("length", [0, 1, 2, 10, 12, 500])
def test_a_batch_that_another_program_wrote_too_short_is_named_by_its_records(tmp_path: Path, length: int) -> None:
    write_content(tmp_path / "log", lambda body: body[:length])
    with SqliteChangelog(tmp_path / "log") as log, pytest.raises(ChangelogError, match="records 10 to 19 of t-0"):
        list(log.read(TOPIC))


def write_content(file: Path, changed: Callable[[bytes], bytes]) -> None:
    """Give the second batch another content, and the checksum of that."""
    fill(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        [row] = connection.execute("select * from batch where batch_id & 1023 = 10").fetchall()
        number, count, transaction, time_ms, content = row
        changed_row = sealed(number, count, transaction, time_ms, changed(content[4:]))
        connection.execute("update batch set content = ? where batch_id = ?", (changed_row.content, number))
