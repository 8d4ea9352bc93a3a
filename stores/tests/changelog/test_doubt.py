"""A commit that the log can't tell of: nothing goes on as if it had been made, or had not, until that is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stores.changelog import Producer, SqliteChangelog
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError
from stores.tests.changelog.failing import Failing
from stores.tests.changelog.records import A


def sent(log: SqliteChangelog, transactional_id: str | None) -> Producer:
    """A producer that has sent one record, and is about to commit it."""
    log.create_topic("a")
    producer = log.producer(transactional_id)
    if transactional_id is not None:
        producer.begin()
    producer.send(A, b"key", b"value")
    return producer


@pytest.mark.parametrize("taken", [False, True])
def test_after_a_commit_in_doubt_only_another_producer_goes_on(tmp_path: Path, taken: bool) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        producer = sent(log, "p")
        with Failing(log, "commit", "SQLITE_IOERR_FSYNC", done=taken), pytest.raises(CommitInDoubtError):
            producer.commit()
        for call in (producer.commit, producer.begin, lambda: producer.send(A, b"other", b"value")):
            with pytest.raises(CommitInDoubtError):
                call()
        producer.abort()
        with pytest.raises(CommitInDoubtError):
            producer.begin()
        producer.close()
        other = log.producer("p")
        assert [record.key for record in log.read(A)] == ([b"key"] if taken else [])
        other.begin()
        other.send(A, b"later", b"value")
        other.commit()
        assert [record.key for record in log.read(A)] == ([b"key", b"later"] if taken else [b"later"])


@pytest.mark.parametrize("taken", [False, True])
def test_a_flush_in_doubt_is_made_again_once_it_was_given_up(tmp_path: Path, taken: bool) -> None:
    """Twice is better than never: there is no transaction. Source: KIP-129, at_least_once."""
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        producer = sent(log, None)
        with Failing(log, "commit", "SQLITE_IOERR_WRITE", done=taken), pytest.raises(CommitInDoubtError):
            producer.flush()
        for call in (producer.flush, lambda: producer.send(A, b"other", b"value")):
            with pytest.raises(CommitInDoubtError):
                call()
        producer.abort()
        producer.send(A, b"key", b"value")
        producer.flush()
        assert [record.key for record in log.read(A)] == [b"key"] * (2 if taken else 1)


@pytest.mark.parametrize(
    ("statement", "error", "told"),
    [("commit", "SQLITE_BUSY", ChangelogTimeoutError), ("insert into batch", "SQLITE_FULL", ChangelogError)],
)
def test_where_nothing_was_written_there_is_no_doubt_and_the_commit_is_tried_again(
    tmp_path: Path, statement: str, error: str, told: type[ChangelogError]
) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        producer = sent(log, "p")
        with Failing(log, statement, error), pytest.raises(ChangelogError) as failure:
            producer.commit()
        assert type(failure.value) is told
        assert list(log.read(A)) == []
        producer.commit()
        assert [record.key for record in log.read(A)] == [b"key"]


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("error", ["SQLITE_FULL", "SQLITE_IOERR_WRITE"])
@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.compact(A),
        lambda log: log.truncate(A, 3),
        lambda log: log.create_topic("b"),
        lambda log: log.producer("other").close(),
    ],
    ids=["compact", "truncate", "create_topic", "producer"],
)
def test_a_change_that_may_be_made_twice_is_never_in_doubt_and_is_tried_again(
    tmp_path: Path, change: Callable[[SqliteChangelog], object], error: str, taken: bool
) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        filled(log)
        live = last_values(log)
        with Failing(log, "commit", error, done=taken), pytest.raises(ChangelogError) as failure:
            change(log)
        assert type(failure.value) is ChangelogError
        assert last_values(log) == live
        change(log)
        assert last_values(log) == live
        log.verify()


def last_values(log: SqliteChangelog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in log.read(A, log.start_offset(A))}


def filled(log: SqliteChangelog) -> None:
    """Two keys, each with four records."""
    log.create_topic("a")
    with log.producer() as producer:
        for number in range(8):
            producer.send(A, b"%d" % (number % 2), b"%d" % number)
        producer.flush()


def test_a_step_of_compaction_whose_commit_failed_is_made_again(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite", compact_from_records=1) as log:
        filled(log)
        with Failing(log, "commit", "SQLITE_FULL"), pytest.raises(ChangelogError):
            log.compact_step(A)
        assert len(list(log.read(A))) == 8
        while log.compact_step(A):
            pass
        assert [record.value for record in log.read(A)] == [b"6", b"7"]
