"""The embedded changelog compacts itself in steps of bounded size, beside readers and through crashes.

Source: Kafka, "Log Compaction".
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores.changelog import SqliteChangelog
from stores.changelog.interface import Producer
from stores.changelog.producer import PENDING_RECORDS_MAX
from stores.changelog.sqlite_writer import Compaction
from stores.errors import ChangelogError, ConfigError
from stores.files.sqlite_library import connect
from stores.tests.changelog.records import A
from stores.tests.tasks.setup import LEFT, counting_task, expected_state, feed, state


def opened(path: Path, records: int = 100) -> SqliteChangelog:
    log = SqliteChangelog(path / "log", compact_from_records=records)
    log.create_topic(A.topic)
    return log


def send(producer: Producer, keys: list[int], first: int = 0) -> None:
    for number, key in enumerate(keys, first):
        producer.send(A, b"%03d" % key, b"%d" % number if number % 7 else None)
    producer.flush()


def begin_open(producer: Producer) -> None:
    """Send more records in a transaction than the producer holds back: 10,000 of them reach the log."""
    producer.begin()
    for _ in range(PENDING_RECORDS_MAX + 1):
        producer.send(A, b"001", b"open")


def contents(log: SqliteChangelog) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {record.key: (record.offset, record.value) for record in log.read(A)}


def test_steps_leave_the_last_record_of_each_key_under_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one ``compact`` of the same records does, tombstones included."""
    monkeypatch.setattr("stores.changelog.sqlite_writer._ROWS", 10)
    monkeypatch.setattr("stores.changelog.batches.RECORDS_MAX", 10)
    monkeypatch.setattr("stores.changelog.sqlite_writer.STEP_RECORDS_MIN", 20)
    keys = [Random(129).randrange(30) for _ in range(300)]
    with opened(tmp_path) as log, log.producer() as producer:
        send(producer, keys)
        before = contents(log)
        steps = [log.compact_step(A) for _ in range(80)]
        assert sum(steps) == 300 - len(before)
        assert max(steps) <= 20
        assert contents(log) == before
        assert len(list(log.read(A))) == len(before)
        assert (log.start_offset(A), log.end_offset(A), log.dirty_share(A)) == (0, 300, 0)
        assert log.compact(A) == 0


def test_a_pass_begins_when_enough_records_and_a_share_of_all_are_new(tmp_path: Path) -> None:
    def run_to_the_end() -> int:
        return sum(log.compact_step(A) for _ in range(10))

    with opened(tmp_path) as log, log.producer() as producer:
        send(producer, [1] * 99)
        assert (run_to_the_end(), log.dirty_share(A)) == (0, 1)
        send(producer, list(range(400)))
        assert (run_to_the_end(), log.dirty_share(A)) == (99, 0)
        send(producer, [1] * 200)
        assert run_to_the_end() == 0
        assert log.dirty_share(A) == pytest.approx(1 / 3)
    with opened(tmp_path) as log, log.producer() as producer:
        # What a pass has done is kept in the file.
        assert log.dirty_share(A) == pytest.approx(1 / 3)
        send(producer, [1] * 200)
        assert (run_to_the_end(), log.dirty_share(A)) == (400, 0)


def test_compaction_keeps_open_transactions_and_removes_aborted_records(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer() as producer, log.producer("id") as other:
        send(producer, [1] * 150)
        begin_open(other)
        send(producer, [1] * 150)
        assert sum(log.compact_step(A) for _ in range(40)) == 149
        assert [(record.offset, record.value) for record in log.read(A)] == [(149, b"149")]
        other.abort()
        begin_open(other)
        other.abort()
        assert sum(log.compact_step(A) for _ in range(80)) == 1 + 10_000 + 149 + 10_000
        assert [record.offset for record in log.read(A)] == [149 + 10_000 + 150]
    with closing(sqlite3.connect(tmp_path / "log")) as file:
        assert file.execute("select records from sizes").fetchall() == [(1,)]


def test_a_failed_compaction_step_leaves_no_superseded_record_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removed records are there again, so the pass examines them again."""
    monkeypatch.setattr("stores.changelog.sqlite_writer._ROWS", 10)
    monkeypatch.setattr("stores.changelog.batches.RECORDS_MAX", 10)
    monkeypatch.setattr("stores.changelog.sqlite_writer.STEP_RECORDS_MIN", 20)
    sweep = Compaction._sweep
    failures: list[int] = []

    def failing(compaction: Compaction, *given: Any) -> int:
        num_removed = sweep(compaction, *given)
        if num_removed and not failures:
            failures.append(num_removed)
            raise sqlite3.OperationalError("disk I/O error")
        return num_removed

    monkeypatch.setattr(Compaction, "_sweep", failing)
    with opened(tmp_path) as log, log.producer() as producer:
        send(producer, [number % 30 for number in range(300)])
        before = contents(log)
        num_removed = 0
        for _ in range(100):
            with suppress(ChangelogError):
                num_removed += log.compact_step(A)
        assert (failures, num_removed, contents(log)) == ([10], 270, before)


def test_a_pass_that_can_not_note_all_keys_leaves_the_others_to_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.changelog.sqlite_writer._ROWS", 10)
    monkeypatch.setattr("stores.changelog.batches.RECORDS_MAX", 10)
    monkeypatch.setattr("stores.changelog.sqlite_writer.NOTED_KEYS_MAX", 20)
    with opened(tmp_path, records=1) as log, log.producer() as producer:
        send(producer, [number % 50 for number in range(200)])
        before = contents(log)
        # Passes that begin while less than half of the log is new are not asked for: the bounds are set aside.
        monkeypatch.setattr(Compaction, "due_at", lambda *_: 0)
        assert sum(log.compact_step(A) for _ in range(60)) == 150
        assert contents(log) == before


def test_records_that_were_truncated_do_not_count_as_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer() as producer:
        send(producer, list(range(200)))
        assert [log.compact_step(A) for _ in range(10)] == [0] * 10
        log.truncate(A, 150)
        send(producer, list(range(50)))
        assert log.dirty_share(A) == pytest.approx(1 / 2)


def test_a_reader_sees_the_records_of_its_start_during_compaction(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer() as producer:
        send(producer, [1] * 200)
        reading = log.read(A)
        assert sum(log.compact_step(A) for _ in range(10)) == 199
        assert len(list(reading)) == 200
        assert len(list(log.read(A, 50))) == 1


def sizes(log: SqliteChangelog) -> tuple[int, int]:
    """Return the numbers of batches and of records in the file.

    The log is open, so this takes the same SQLite: another one in this process would drop its locks.
    """
    with closing(connect(log.path)) as file:
        [row] = file.execute("select batches, records from sizes").fetchall()
    return row[0], row[1]


def test_compaction_puts_the_records_of_small_batches_together(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer() as producer:
        for key in range(2_000):
            send(producer, [key], key)
        before = contents(log)
        assert sizes(log) == (2_000, 2_000)
        assert (log.compact(A), sizes(log)) == (0, (2, 2_000))
        send(producer, list(range(500, 1_500)), 2_000)
        assert (log.compact(A), sizes(log)) == (1_000, (3, 2_000))
        after: dict[bytes | None, tuple[int, bytes | None]] = {
            b"%03d" % key: (1_500 + key, log_value(1_500 + key)) for key in range(500, 1_500)
        }
        assert contents(log) == {**before, **after}
        for offset in (0, 499, 500, 1_499, 1_500, 1_501, 2_999, 3_000):
            assert [record.offset for record in log.read(A, offset)] == [
                number for number in (*range(500), *range(1_500, 3_000)) if number >= offset
            ]


def log_value(number: int) -> bytes | None:
    return b"%d" % number if number % 7 else None


def test_a_pass_that_did_not_end_leaves_nothing_superseded_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have put compacted and new records into one batch before its process ended."""
    monkeypatch.setattr("stores.changelog.sqlite_writer.STEP_RECORDS_MIN", 1)
    monkeypatch.setattr("stores.changelog.sqlite_writer.RECORDS_PER_APPENDED", 0)
    with opened(tmp_path, records=1) as log, log.producer() as producer:
        for number in range(100):
            send(producer, [number], number)
        while log.dirty_share(A):
            log.compact_step(A)
        for number in range(100, 200):
            send(producer, [number % 150], number)
        monkeypatch.setattr(Compaction, "due_at", lambda *_: 0)
        while sizes(log)[0] > 1:
            log.compact_step(A)
        assert log.dirty_share(A)
    with opened(tmp_path, records=1) as log, log.producer() as producer:
        send(producer, [120, 5], 200)
        before = contents(log)
        log.compact(A)
        assert contents(log) == before
        assert len(list(log.read(A))) == len(before)


@pytest.mark.parametrize(
    "options",
    [{"dirty_ratio": 1.5}, {"dirty_ratio": "half"}, {"compact_from_records": -2}, {"compact_from_records": 0.5}],
)
def test_what_is_no_threshold_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SqliteChangelog(tmp_path / "log", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_task_compacts_the_changelogs_of_its_stores_and_nothing_else(tmp_path: Path) -> None:
    keys = [number % 5 for number in range(600)]
    with SqliteChangelog(tmp_path / "log", compact_from_records=100) as log:
        feed(log, keys)
        task = counting_task(tmp_path, log, "memory-indexed-batch", commit_every_records=20)
        task.open()
        task.run()
        task.close()
        assert len(list(log.read(LEFT))) < 250
        for topic in ("input", "output"):
            assert len(list(log.read(LEFT._replace(topic=topic)))) == 600
        reports = task.open()
        assert all(report.records < 250 for report in reports)
        assert state(task, "left") == expected_state(keys)
        task.close()
