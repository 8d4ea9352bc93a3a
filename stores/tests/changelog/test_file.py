"""Promises of the changelog in a file alone: its file, its crashes, its cost."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from stores.changelog import log_file
from stores.changelog.interface import Record
from stores.changelog.producer import PENDING_BYTES_MAX
from stores.changelog.sqlite import SqliteChangelog
from stores.errors import ChangelogError, StoreClosedError
from stores.interface import Durability, TopicPartition
from stores.tests.changelog.plain_batches import plain_records
from stores.tests.changelog.records import A, filled
from stores.tests.forked_call import was_killed
from stores.tests.store_process import kill_at


def commit_twice(path: Path, point: str, records: int, durability: Durability) -> None:
    """Commit two transactions; in the second, this process is killed."""
    log = SqliteChangelog(path, durability)
    log.create_topic("a", 2)
    producer = log.producer("p")
    for transaction in range(2):
        producer.begin()
        for number in range(records):
            producer.send(TopicPartition("a", number % 2), b"%d" % number, b"%d" % transaction)
        producer.send_offsets("g", {TopicPartition("in", 0): transaction + 1})
        if transaction:
            kill_at(point, 1)
        producer.commit()


@pytest.mark.parametrize("durability", Durability)
def test_everything_is_there_when_the_file_is_opened_again(tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "log.sqlite"
    with SqliteChangelog(path, durability) as log:
        log.create_topic("a", 2)
        with log.producer("p") as producer:
            producer.begin()
            producer.send(A, b"k", b"v", 5, (("h", b"\xff"),))
            producer.send_offsets("g", {A: 9})
            producer.commit()
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.sqlite"]
    with SqliteChangelog(path, durability) as log:
        assert log.topics() == {"a": 2}
        assert list(log.read(A)) == [Record(0, b"k", b"v", 5, (("h", b"\xff"),))]
        assert log.committed_offsets("g") == {A: 9}
        assert log.end_offset(A) == 1


@pytest.mark.parametrize(("durability", "synchronous"), [("CHANGELOG", 0), ("PROCESS", 1), ("DISK", 2)])
def test_a_durability_level_is_sqlites_own_synchronous_mode(tmp_path: Path, durability: str, synchronous: int) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite", Durability(durability)) as log:
        assert log._file.writer.execute("pragma synchronous").fetchone() == (synchronous,)
        assert log._file.writer.execute("pragma journal_mode").fetchone() == ("wal",)


def test_a_human_reads_batches_states_partitions_and_groups_with_sqlite3(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with SqliteChangelog(path) as log:
        log.create_topic("a")
        with log.producer("p") as producer:
            producer.begin()
            producer.send(A, b"k", b"v", 1_700_000_000_123, (("trace", b"abc"),))
            producer.send_offsets("g", {A: 9})
            producer.commit()
            producer.begin()
            producer.send(A, b"big", bytes(PENDING_BYTES_MAX))
            producer.send(A, b"k", None)
            with sqlite3.connect(path) as human:
                assert human.execute(
                    "select topic, partition, base_offset, count, state, time from batches order by batch_id"
                ).fetchall() == [
                    ("a", 0, 0, 1, "COMMITTED", "2023-11-14T22:13:20.123Z"),
                    ("a", 0, 1, 1, "OPEN", None),
                ]
                assert [(record.state, record.key, record.headers) for record in plain_records(human, "a")] == [
                    ("COMMITTED", b"k", [["trace", "abc"]]),
                    ("OPEN", b"big", []),
                ]
                assert human.execute("select topic, partition, batches, records from sizes").fetchall() == [
                    ("a", 0, 2, 2)
                ]
                assert human.execute("select * from partitions").fetchall() == [("a", 0, 0, 2, 1)]
                assert human.execute(
                    "select state, transactional_id, topic, first_offset from transactions"
                ).fetchall() == [("OPEN", "p", "a", 1)]
                assert human.execute("select * from consumer_groups").fetchall() == [("g", "a", 0, 9)]
            human.close()


@pytest.mark.parametrize("durability", [Durability.CHANGELOG, Durability.DISK])
@pytest.mark.parametrize("records", [10, 25_000])
@pytest.mark.parametrize(("point", "committed"), [("changelog.before_commit", 1), ("changelog.after_commit", 2)])
def test_a_killed_process_leaves_all_of_a_transaction_or_nothing(
    tmp_path: Path, point: str, committed: int, records: int, durability: Durability
) -> None:
    path = tmp_path / "log.sqlite"
    assert was_killed(commit_twice, path, point, records, durability)
    with SqliteChangelog(path) as log:
        log.producer("p").close()
        read = [record for partition in (0, 1) for record in log.read(TopicPartition("a", partition))]
        assert len(read) == committed * records
        assert {record.value for record in read} == {b"%d" % transaction for transaction in range(committed)}
        assert log.committed_offsets("g") == {TopicPartition("in", 0): committed}


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_what_a_crash_left_of_a_file_that_was_being_made_is_no_obstacle(tmp_path: Path, call: str) -> None:
    path = tmp_path / "log.sqlite"
    script = f"""
import os, signal, sys
from stores.changelog import SqliteChangelog
real = os.{call}
def call_and_die(*given, **named):
    real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
os.{call} = call_and_die
SqliteChangelog(sys.argv[1])
"""
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    assert any(entry.name.startswith(".log.sqlite.txstores-") for entry in tmp_path.iterdir())
    filled(path)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"log.sqlite", ".log.sqlite.txstores-lock"}


@pytest.mark.parametrize(
    "name", ["log.sqlite.new", ".log.sqlite.new", ".log.sqlite.txstores-0123456789abcdef", "log.sqlite.new-journal"]
)
def test_what_lies_beside_a_new_file_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"dear")
    filled(tmp_path / "log.sqlite")
    assert (tmp_path / name).read_bytes() == b"dear"
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "log.sqlite"}


@pytest.mark.parametrize("name", ["log.sqlite-wal", "log.sqlite-journal", ".log.sqlite.txstores-lock"])
def test_what_is_in_the_way_of_a_new_file_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"dear")
    with pytest.raises(ChangelogError):
        SqliteChangelog(tmp_path / "log.sqlite")
    assert (tmp_path / name).read_bytes() == b"dear"
    assert {entry.name for entry in tmp_path.iterdir()} == {name}


def test_a_lock_on_the_folder_does_not_block_the_creation_of_a_changelog(tmp_path: Path) -> None:
    above = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(above, fcntl.LOCK_EX)
        program = "import sys; from stores.changelog import SqliteChangelog; SqliteChangelog(sys.argv[1]).close()"
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "log.sqlite")], check=True, timeout=600)
    finally:
        os.close(above)


def test_what_is_left_of_a_file_that_was_removed_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    """Its process was killed and has left a WAL, from which SQLite would write pages into the new file."""
    script = """
import os, signal, sys
from stores.changelog import SqliteChangelog
from stores.interface import TopicPartition
log = SqliteChangelog(sys.argv[1])
log.create_topic("old")
with log.producer() as producer:
    producer.send(TopicPartition("old", 0), b"k", b"v")
    producer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "log.sqlite"
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert path.with_name("log.sqlite-wal").stat().st_size
    path.unlink()
    with SqliteChangelog(path) as log:
        assert log.topics() == {}
        log.create_topic("new")
        log.verify()
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.sqlite"]


def test_processes_that_make_the_same_file_at_once_share_one_log(tmp_path: Path) -> None:
    program = (
        "import sys; from stores.changelog.sqlite import SqliteChangelog; "
        "log = SqliteChangelog(sys.argv[1]); log.create_topic(sys.argv[2]); log.close()"
    )
    path = tmp_path / "log.sqlite"
    processes = [subprocess.Popen([sys.executable, "-c", program, str(path), f"t{number}"]) for number in range(4)]
    assert [process.wait(600) for process in processes] == [0] * 4
    with SqliteChangelog(path) as log:
        assert list(log.topics()) == ["t0", "t1", "t2", "t3"]


def test_a_transaction_far_larger_than_its_buffer_and_its_reading_need_bounded_memory(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite", Durability.CHANGELOG) as log:
        log.create_topic("a")
        tracemalloc.start()
        with log.producer("p") as producer:
            producer.begin()
            for number in range(40_000):
                producer.send(A, b"%d" % number, number.to_bytes(2, "big") * 1_000)
            producer.commit()
        read = sum(len(record.value or b"") for record in log.read(A))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert read == 80_000_000
    assert peak < 5 * PENDING_BYTES_MAX


def test_closing_the_log_closes_its_producers_and_ends_its_readers(tmp_path: Path) -> None:
    path = filled(tmp_path / "log.sqlite", 5_000)
    log = SqliteChangelog(path)
    scan = log.read(A)
    next(scan)
    producer = log.producer("p")
    producer.begin()
    producer.send(A, b"k", bytes(PENDING_BYTES_MAX))
    producer.send(A, b"k", b"v")
    log.close()
    with pytest.raises(StoreClosedError):
        producer.commit()
    with pytest.raises(StoreClosedError):
        list(scan)
    with SqliteChangelog(path) as again:
        assert again.end_offset(A) == 5_001
        assert len(list(again.read(A))) == 5_000


def test_aborted_transactions_are_forgotten_with_their_last_record(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        log.create_topic("a")
        with log.producer("p") as producer:
            for _ in range(2):
                producer.begin()
                producer.send(A, b"k", bytes(PENDING_BYTES_MAX))
                producer.send(A, b"k", b"v")
                producer.abort()
        assert log._file.writer.execute("select count(*) from log_transaction").fetchone() == (2,)
        assert log.truncate(A, 1) == 1
        assert log._file.writer.execute("select count(*) from log_transaction").fetchone() == (1,)
        assert log.compact(A) == 1
        for table in ("log_transaction", "transaction_range", "batch"):
            assert log._file.writer.execute(f"select count(*) from {table}").fetchone() == (0,)


def test_the_end_of_a_changelog_is_known_without_scanning_it(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        log.create_topic("a")
        plan = log._file.writer.execute("explain query plan select * from partitions where topic = 'a'").fetchall()
        assert not [step for step in plan if "SCAN" in step[3] and "open_transaction" not in step[3]]


def test_a_copy_of_the_closed_file_is_a_whole_changelog(tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    shutil.copy(filled(tmp_path / "log.sqlite"), copy)
    with SqliteChangelog(copy) as log:
        assert len(list(log.read(A))) == 3


def test_two_handles_of_one_process_keep_others_from_removing_the_log_they_write_to(tmp_path: Path) -> None:
    """Closing any descriptor of a file lets go of all the locks that the process has on it."""
    path = tmp_path / "log.sqlite"
    with SqliteChangelog(path) as log:
        log.create_topic("a")
        producer = log.producer()
        producer.send(A, b"first", b"value")
        producer.flush()
        SqliteChangelog(path).close()
        run_elsewhere(f"SqliteChangelog({str(path)!r}).close()")
        producer.send(A, b"second", b"value")
        producer.flush()
        output = run_elsewhere(f"print([record.key for record in SqliteChangelog({str(path)!r}).read(A)])")
    assert output == "[b'first', b'second']"


def run_elsewhere(line: str) -> str:
    """Return what ``line`` prints in another process."""
    program = f"from stores.changelog import SqliteChangelog\nfrom stores.tests.changelog.records import A\n{line}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def test_a_file_that_could_not_be_opened_is_looked_at_again_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.sqlite"
    SqliteChangelog(path).close()
    with monkeypatch.context() as patch:
        patch.setattr(log_file, "write_ahead", refuse)
        with pytest.raises(ChangelogError) as error:
            SqliteChangelog(path)
    looked_at: list[Path] = []
    monkeypatch.setattr(log_file, "check_file", looked_at.append)
    SqliteChangelog(path).close()
    assert looked_at == [path]
    assert error.value.__traceback__ is not None


def refuse(*_: object) -> None:
    """Raise the error of a broken disk."""
    raise sqlite3.OperationalError("disk I/O error")
