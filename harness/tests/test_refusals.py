"""A folder or a file that a run cannot use is refused before anything is measured; runs do not disturb each other."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness.cli import main
from harness.folders import remove_abandoned
from harness.report.rows import LATEST
from harness.spark.session import check_master
from harness.tests.test_cli import ROOT, environment
from harness.tests.test_interruption import using
from harness.workloads.event_log import EventLog, EventLogError
from stores.errors import ConfigError

BENCH = ("bench", "--profile", "smoke", "--only", "opening", "--backends", "memory")
COLD_OPENING = '{"backend":"sqlite","seed":1,"records":1000}'


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("missing.csv")


@pytest.mark.parametrize("make", [pipe, link_to_itself, link_to_nothing])
@pytest.mark.parametrize("place", ["events.csv", "events/1.csv", "events.csv/1.csv"])
def test_events_that_are_no_file_are_refused_without_being_opened(
    tmp_path: Path, place: str, make: Callable[[Path], None]
) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    make(tmp_path / place)
    log = EventLog(str(tmp_path / place.partition("/")[0]), "user")
    with pytest.raises(EventLogError) as refusal:
        log.format()
    assert place in str(refusal.value)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command that must end with status 2 and one sentence before it measures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.run.new_run", lambda *given: pytest.fail("it measured"))

    def run(*arguments: str) -> str:
        assert main(arguments) == 2
        told = capsys.readouterr()
        assert told.out == ""
        [sentence] = told.err.splitlines()
        return sentence

    return run


MASTERS_THAT_DO_NOT_ANSWER = ["spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2", "spark://127.0.0.1", "spark://"]


@pytest.mark.parametrize("master", MASTERS_THAT_DO_NOT_ANSWER)
def test_a_master_that_does_not_answer_is_refused_and_leaves_no_run(
    tmp_path: Path, refused: Callable[..., str], master: str
) -> None:
    for command in (BENCH, ("scenario", "kill_during_commit")):
        assert f"no master answers at {master}" in refused(*command, "--runs", "runs", "--master", master)
    assert not (tmp_path / "runs").exists()


@contextmanager
def listening(answer: Callable[[bytes], bytes | None]) -> Iterator[str]:
    """Listen on loopback, and answer one request; None closes the connection at once. Yield the address."""

    def serve() -> None:
        connection, _ = server.accept()
        # The other side may close before it has read all of the answer.
        with connection, suppress(ConnectionResetError):
            reply = answer(connection.recv(100))
            if reply is not None:
                connection.sendall(reply)
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        served = thread.submit(serve)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        served.result()


def failure_of(request: bytes) -> bytes:
    """Return the frame of Spark's RpcFailure for a frame of an RpcRequest: type 5, and the same number."""
    return struct.pack(">qb", 22, 5) + request[9:17] + struct.pack(">i", 1) + b"!"


def test_one_of_several_masters_that_answers_is_enough() -> None:
    with listening(failure_of) as address:
        check_master(f"spark://127.0.0.1:1,{address}")
    check_master("local[2]")
    check_master(None)


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: b"",
        lambda request: None,
        lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda request: request,
        lambda request: failure_of(bytes(100)),
    ],
    ids=["silent", "closes", "http", "echo", "another number"],
)
def test_a_port_where_something_else_than_spark_listens_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[bytes], bytes | None]
) -> None:
    monkeypatch.setattr("harness.spark.session.ANSWER_TIMEOUT_S", 0.3)
    with listening(answer) as address, pytest.raises(ConfigError, match="no master answers"):
        check_master(f"spark://{address}")


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_the_newest_run_is_not_named_over_a_users_own_file(
    tmp_path: Path, refused: Callable[..., str], make: Callable[[Path], None]
) -> None:
    (tmp_path / "runs").mkdir()
    make(tmp_path / "runs" / LATEST)
    assert f"runs/{LATEST}" in refused(*BENCH, "--runs", "runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [LATEST]


@pytest.mark.parametrize("results", ["/sys", "/proc/missing", "file", "file/inside", "loop"])
def test_results_that_cannot_be_written_are_refused_before_the_run(
    tmp_path: Path, refused: Callable[..., str], results: str
) -> None:
    (tmp_path / "file").touch()
    link_to_itself(tmp_path / "loop")
    assert results in refused(*BENCH, "--runs", "runs", "--results", results)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_read_only_folder_of_results_is_refused_before_the_run(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "results").mkdir(mode=0o555)
    assert "results" in refused(*BENCH, "--runs", "runs", "--results", "results")


@pytest.mark.parametrize("folder", ["file", "file/inside", "/proc/missing", "loop"])
def test_a_folder_to_keep_that_cannot_be_created_is_refused(
    tmp_path: Path, refused: Callable[..., str], folder: str
) -> None:
    (tmp_path / "file").touch()
    link_to_itself(tmp_path / "loop")
    assert folder in refused("repeat", "cold_cache", COLD_OPENING, "--keep", folder)


def test_a_trial_can_be_kept_in_an_empty_folder(tmp_path: Path) -> None:
    trial = '{"backend":"memory","durability":"CHANGELOG","seconds":0.2}'
    assert main(["repeat", "readers", trial, "--keep", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir())


NEW_RUN = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from harness.report.rows import name_latest, new_run
sys.stdin.readline()
run = new_run(Path(sys.argv[1]), "smoke", {"own": sys.argv[2]}, datetime(2026, 1, 1, tzinfo=UTC))
name_latest(run)
print(run.name, flush=True)
"""


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", NEW_RUN, str(tmp_path), str(number)],
            env=environment(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    names = [run.communicate(timeout=600)[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0] * 4
    assert len(set(names)) == 4
    for number, name in enumerate(names):
        assert f'"own": "{number}"' in (tmp_path / name / "run.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, LATEST])
    assert (tmp_path / LATEST).readlink().name in names


@pytest.mark.long
def test_a_killed_run_leaves_no_process_and_the_next_one_removes_its_folders(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "harness", "scenario", "kill_repeatedly", "--runs", "runs"],
        cwd=tmp_path,
        env=environment(TMPDIR=str(scratch)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 600
        while not list(scratch.glob("fork-server-*/*")) and time.monotonic() < deadline:
            time.sleep(0.2)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    _, alive = psutil.wait_procs(children, timeout=600)
    assert alive == []
    gone = time.monotonic() + 600
    while (left := using(scratch)) and time.monotonic() < gone:
        time.sleep(0.2)
    assert left == []
    assert list(scratch.iterdir()) != []
    remove_abandoned(scratch)
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "runs" / LATEST).exists()
