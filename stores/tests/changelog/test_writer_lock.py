"""Processes write to a changelog one after the other: SQLite before 3.51.3 may corrupt a WAL otherwise."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stores import ChangelogError, ChangelogTimeoutError, TopicPartition
from stores.changelog import SqliteChangelog
from stores.changelog.log_file import LogFile, WriterLock
from stores.files.sqlite_library import Connection

A = TopicPartition("a", 0)
WRITING = """
import sys
from stores import TopicPartition
from stores.changelog import SqliteChangelog
with SqliteChangelog(sys.argv[1], "CHANGELOG") as log:
    log._file.writer.execute("pragma wal_autocheckpoint = 4").fetchall()
    log.create_topic("a")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(200):
        with log.producer() as producer:
            producer.send(TopicPartition("a", 0), sys.argv[2].encode(), b"%d" % number + bytes(3_000))
            producer.flush()
"""


def lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.txstores-writer")


def is_free(path: Path) -> bool:
    """True if another process could take the lock now."""
    descriptor = os.open(lock_of(path), os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


class Watched:
    """A connection that notes for each of its calls whether the lock was held."""

    def __init__(self, connection: Connection, path: Path, calls: list[tuple[str, bool]]) -> None:
        self._connection, self._path, self._calls = connection, path, calls

    def execute(self, statement: str, *given: Any) -> Any:
        self._calls.append((statement.split(maxsplit=1)[0], not is_free(self._path)))
        return self._connection.execute(statement, *given)

    def close(self) -> None:
        self._calls.append(("close", not is_free(self._path)))
        self._connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_process_holds_the_lock_while_it_writes_commits_and_closes(tmp_path: Path) -> None:
    path, calls = tmp_path / "log", list[tuple[str, bool]]()
    log = SqliteChangelog(path)
    log._file.writer = Watched(log._file.writer, path, calls)
    log.create_topic("a")
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"k", b"v")
        producer.commit()
    assert is_free(path)
    assert list(log.read(A)) != []
    log.close()
    assert {name for name, _ in calls} >= {"begin", "insert", "commit", "close"}
    assert [name for name, has_lock in calls if not has_lock] == []
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_a_process_holds_the_lock_while_it_opens_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, overlaps = tmp_path / "log", list[bool]()
    SqliteChangelog(path).close()
    connected = LogFile._connect

    def connect(file: LogFile) -> Connection:
        overlaps.append(not is_free(path))
        return connected(file)

    monkeypatch.setattr(LogFile, "_connect", connect)
    SqliteChangelog(path).close()
    assert overlaps == [True]


def test_two_processes_that_write_and_checkpoint_together_keep_every_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    SqliteChangelog(path).close()
    command = [sys.executable, "-c", WRITING, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen([*command, name], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("x", "y")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n", timeout=600)
        assert process.returncode == 0
    with SqliteChangelog(path) as log:
        log.verify()
        pairs = [(record.key, record.value) for record in log.read(A)]
    for name in (b"x", b"y"):
        assert [value for key, value in pairs if key == name] == [
            b"%d" % number + bytes(3_000) for number in range(200)
        ]


def test_a_write_waits_for_another_process_and_gives_up_after_its_timeout(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with SqliteChangelog(path, timeout_s=0.05) as log:
        descriptor = os.open(lock_of(path), os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ChangelogTimeoutError):
            log.create_topic("a")
        assert log.topics() == {}
        os.close(descriptor)
        log.create_topic("a")
        assert log.topics() == {"a": 1}


def test_a_file_can_be_closed_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = SqliteChangelog(path, timeout_s=0.05)
    descriptor = os.open(lock_of(path), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    log.close()
    assert lock_of(path).exists()
    os.close(descriptor)


def test_an_error_in_a_block_that_holds_the_lock_releases_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lock = WriterLock(path, timeout_s=0)
    with pytest.raises(KeyError), lock.held():
        assert not is_free(path)
        raise KeyError
    assert is_free(path)
    lock.close()


def test_a_lock_that_another_process_has_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with SqliteChangelog(path, timeout_s=0) as one, SqliteChangelog(path) as other:
        other.close()
        assert not lock_of(path).exists()
        with one._file.write():
            assert not is_free(path)


def test_a_changelog_whose_folder_was_removed_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = SqliteChangelog(folder / "log")
    shutil.rmtree(folder)
    with pytest.raises(ChangelogError):
        log.create_topic("a")
    with pytest.raises(ChangelogError):
        log.create_topic("a")
    log.close()
    assert not log._file.is_open
    assert list(tmp_path.iterdir()) == []


def test_one_waits_for_the_other_also_within_a_process(tmp_path: Path) -> None:
    path, order = tmp_path / "log", list[str]()
    with SqliteChangelog(path) as one, SqliteChangelog(path) as other:

        def write() -> None:
            with other._file.write():
                order.append("second")

        with one._file.write():
            thread = threading.Thread(target=write)
            thread.start()
            time.sleep(0.05)
            order.append("first")
        thread.join()
    assert order == ["first", "second"]


def test_a_foreign_file_with_the_name_of_the_lock_is_left_alone(tmp_path: Path) -> None:
    lock_of(tmp_path / "log").write_text("mine")
    with pytest.raises(ChangelogError, match="txstores-writer"):
        SqliteChangelog(tmp_path / "log")
    assert lock_of(tmp_path / "log").read_text() == "mine"
