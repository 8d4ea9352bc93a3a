"""Log messages at INFO: what was recovered, restored and wiped, and why; never a value of the user's."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stores import Durability, open_store
from stores.changelog import MemoryChangelog, Record
from stores.tasks import TaskContext
from stores.tasks.stores import log_follower
from stores.tests.store_process import StoreProcess
from stores.tests.tasks.setup import DIRECT, INDEXED, Crash, begun, feed, raising_at, single, store_folder

Messages = Callable[[], list[str]]


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Messages:
    """The messages of the library at INFO since the last call."""
    caplog.set_level(logging.INFO, "stores")

    def taken() -> list[str]:
        messages = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
        caplog.clear()
        return messages

    return taken


def secret(record: Record, context: TaskContext) -> None:
    context.store("s").put(b"%d" % record.offset, b"secret")


def test_an_ordinary_life_says_nothing(tmp_path: Path, log: MemoryChangelog, messages: Messages) -> None:
    feed(log, range(5))
    task = begun(single(tmp_path, log, secret, INDEXED))
    task.run(commit=True)
    task.close()
    task.open()
    task.close()
    assert messages() == []


def test_a_restore_says_how_much_and_from_where(tmp_path: Path, log: MemoryChangelog, messages: Messages) -> None:
    feed(log, range(5))
    task = single(tmp_path / "first", log, secret, INDEXED)
    task.open()
    task.run(commit=True)
    task.close()
    messages()
    task = single(tmp_path / "second", log, secret, INDEXED)
    task.open()
    task.close()
    [message] = messages()
    assert all(part in message for part in ("'s'", "restored 5 records", "app-s-changelog-0", "offset 0 to before 5"))


def test_a_long_restore_says_how_far_it_is_at_most_once_per_interval(
    tmp_path: Path, log: MemoryChangelog, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, range(50))
    task = single(tmp_path / "first", log, secret, INDEXED)
    task.open()
    task.run(commit=True)
    task.close()
    messages()
    monkeypatch.setattr(log_follower, "PIECE_RECORDS_MAX", 5)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.5
        return now

    monkeypatch.setattr(log_follower, "perf_counter", clock)
    task = single(tmp_path / "second", log, secret, INDEXED)
    task.open()
    task.close()
    # Ten pieces, one reading of the clock each, 1.5 s apart: one message in 10.5 s.
    [progress, done] = messages()
    assert all(part in progress for part in ("offset 34", "before 50", "35 records"))
    assert "restored 50 records" in done


def test_a_wipe_says_why(tmp_path: Path, log: MemoryChangelog, messages: Messages) -> None:
    feed(log, range(5))
    task = single(tmp_path, log, raising_at({3}, secret), DIRECT)
    task.open()
    task.run(2)
    task.commit()
    messages()
    with pytest.raises(Crash):
        task.run()
    rolled_back, wiped, restored = messages()
    assert "task 0_0 rolls back 1 records" in rolled_back
    assert "Crash" in rolled_back
    assert all(part in wiped for part in ("'s'", str(store_folder(tmp_path, DIRECT, "s")), "wiped"))
    assert str(task.restore_reports()[0].reason) in wiped
    assert "restored 2 records" in restored
    task.close()


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch"])
def test_an_opening_after_a_kill_says_so(tmp_path: Path, messages: Messages, backend: str) -> None:
    with StoreProcess() as process:
        process.call("open", backend, tmp_path / "store", Durability.PROCESS, {})
        process.kill()
    with open_store(backend, tmp_path / "store", durability="PROCESS"):
        [message] = messages()
    assert str(tmp_path / "store") in message
    assert "not closed cleanly" in message


def test_no_message_contains_a_value(tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "stores")

    def failing(record: Record, context: TaskContext) -> None:
        secret(record, context)
        if record.offset == 2:
            raise ValueError("a secret of the user")

    feed(log, range(4))
    task = begun(single(tmp_path, log, failing, DIRECT))
    with pytest.raises(ValueError):
        task.run()
    task.close()
    assert caplog.records
    assert not any("secret" in each.getMessage() for each in caplog.records)


def test_without_a_handler_nothing_is_printed() -> None:
    """Python prints warnings of loggers without a handler to its standard error."""
    code = "import logging, stores; logging.getLogger('stores.tasks').warning('heard')"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert (process.stdout, process.stderr) == ("", "")
