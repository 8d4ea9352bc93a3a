"""A fork server runs each trial in a process of its own, and none of them outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import harness
from harness.processes.fork_server import ForkServer, ForkServerError

WORK = "harness.tests.operations_work:"
STARTER = """
import sys
from harness.processes.fork_server import ForkServer
from pathlib import Path
with ForkServer(preload=False, within=Path(sys.argv[2])) as fork_server:
    fork_server.folder.joinpath("left").touch()
    fork_server.run("harness.tests.operations_work:hang", {"note": sys.argv[1]}, deadline_s=1000)
"""


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """For tests that leave it as it was."""
    with ForkServer(preload=False) as fork_server:
        yield fork_server


def processes_noted(note: Path) -> list[psutil.Process]:
    """The processes that ``hang`` has written down, once it has."""
    end = time.monotonic() + 600
    while not (note.exists() and note.read_text().endswith("\n")):
        assert time.monotonic() < end
        time.sleep(0.01)
    return [psutil.Process(int(number)) for number in note.read_text().split()]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended in some seconds."""
    return list(psutil.wait_procs(processes, timeout=600)[1])


def test_a_child_returns_what_its_function_does(fork_server: ForkServer) -> None:
    outcome = fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=10)
    assert (outcome.status, outcome.signal, outcome.timed_out) == (0, None, False)
    assert (outcome.result, outcome.error, outcome.complaint) == (3, "", "")


def test_a_child_that_raises_reports_its_error_and_output(fork_server: ForkServer) -> None:
    outcome = fork_server.run(WORK + "fail", {"message": "of no use"}, deadline_s=10)
    assert (outcome.status, outcome.signal, outcome.timed_out, outcome.result) == (1, None, False, None)
    assert outcome.error == "ValueError: of no use"
    assert outcome.complaint.startswith("on the way")
    assert "Traceback" in outcome.complaint


def test_one_that_leaves_has_raised(fork_server: ForkServer) -> None:
    outcome = fork_server.run(WORK + "leave", {"status": 0}, deadline_s=10)
    assert (outcome.status, outcome.error) == (1, "SystemExit: 0")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_child_is_distinguished_by_its_signal(fork_server: ForkServer, number: int) -> None:
    outcome = fork_server.run(WORK + "die_by", {"signal": number}, deadline_s=10)
    assert (outcome.status, outcome.signal, outcome.timed_out, outcome.result) == (None, number, False, None)


def test_half_an_answer_is_none(fork_server: ForkServer) -> None:
    outcome = fork_server.run(WORK + "die_while_answering", {}, deadline_s=10)
    assert (outcome.status, outcome.signal, outcome.result, outcome.error) == (None, signal.SIGKILL, None, "")


def test_one_that_hangs_is_killed_at_its_deadline_with_all_it_started(fork_server: ForkServer, tmp_path: Path) -> None:
    note = tmp_path / "note"
    outcome = fork_server.run(WORK + "hang", {"note": str(note)}, deadline_s=0.3)
    assert (outcome.status, outcome.signal, outcome.timed_out) == (None, signal.SIGKILL, True)
    numbers = [int(number) for number in note.read_text().split()]
    assert len(numbers) == 2
    end = time.monotonic() + 600
    while any(psutil.pid_exists(number) for number in numbers) and time.monotonic() < end:
        time.sleep(0.01)
    assert [number for number in numbers if psutil.pid_exists(number)] == []
    assert fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=10).result == 3


def test_one_that_spins_is_killed_when_it_has_used_up_its_own_time(fork_server: ForkServer) -> None:
    begun = time.monotonic()
    outcome = fork_server.run(WORK + "spin", {}, deadline_s=0.5)
    assert (outcome.status, outcome.signal, outcome.timed_out) == (None, signal.SIGKILL, True)
    assert time.monotonic() - begun >= 0.5
    assert fork_server.run(WORK + "spin", {}, deadline_s=0.2, shared=True).timed_out


def test_one_that_only_waits_longer_than_its_own_time_is_not_late(fork_server: ForkServer) -> None:
    outcome = fork_server.run(WORK + "sleep", {"seconds": 1.5}, deadline_s=0.5)
    assert (outcome.status, outcome.timed_out, outcome.result) == (0, False, "awake")


def test_what_is_prepared_every_later_child_begins_with() -> None:
    with ForkServer(preload=False) as fork_server:
        fork_server.prepare(WORK + "prepare", {"what": "this"})
        for shared in (False, True):
            assert fork_server.run(WORK + "what_is_prepared", {}, deadline_s=10, shared=shared).result == ["this"]
        with pytest.raises(ForkServerError):
            fork_server.prepare(WORK + "fail", {"message": "of no use"})
        assert fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=10).result == 3


def test_a_deadline_begins_with_each_shared_call(fork_server: ForkServer) -> None:
    for _ in range(3):
        assert fork_server.run(WORK + "sleep", {"seconds": 1.0}, deadline_s=0.4, shared=True).result == "awake"


def test_a_long_answer_comes_whole(fork_server: ForkServer) -> None:
    outcome = fork_server.run(WORK + "answer_at_length", {"num_bytes": 3 << 20}, deadline_s=30)
    assert outcome.result == "x" * (3 << 20)


def test_children_see_a_clean_environment_and_a_folder_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    monkeypatch.setenv("LD_PRELOAD_NOT", "x")
    with ForkServer(preload=False) as fork_server:
        folder, *names = fork_server.run(WORK + "where", {}, deadline_s=10).result
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
    assert not {"PYTHONSTARTUP", "LD_PRELOAD_NOT", "LD_PRELOAD", "HOME"} & set(names)


def test_importing_all_engines_has_started_no_thread(fork_server: ForkServer) -> None:
    assert fork_server.run(WORK + "threads_that_run", {}, deadline_s=10).result == 1


def test_a_function_that_cannot_be_imported_is_no_trial(fork_server: ForkServer) -> None:
    for function in ("harness.tests.no_such_module:work", WORK + "no_such_function"):
        with pytest.raises(ForkServerError):
            fork_server.run(function, {}, deadline_s=10)
    assert fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=10).result == 3


def test_when_the_starter_is_killed_nothing_is_left(tmp_path: Path) -> None:
    note, temporary, within = (tmp_path / name for name in ("note", "temporary", "within"))
    temporary.mkdir()
    within.mkdir()
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(note), str(within)], env={**os.environ, "TMPDIR": str(temporary)}
    )
    try:
        noted = processes_noted(note)
        warm = psutil.Process(noted[0].ppid())
    finally:
        starter.kill()
        starter.wait()
    assert alive([warm, *noted]) == []
    assert list(within.iterdir()) == []
    assert list(temporary.iterdir()) == []


def test_a_killed_fork_server_takes_its_child_along_and_the_caller_gets_an_error(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with ForkServer(preload=False) as fork_server:
        fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=10)
        warm = warm_parent(fork_server)
        killer = subprocess.Popen(
            ["/bin/sh", "-c", f"while [ ! -s {note} ]; do sleep 0.05; done; kill -9 {warm.pid}"],
            stdin=subprocess.DEVNULL,
        )
        try:
            with pytest.raises(ForkServerError):
                fork_server.run(WORK + "hang", {"note": str(note)}, deadline_s=30)
        finally:
            killer.wait()
    child, other = (int(number) for number in note.read_text().split())
    end = time.monotonic() + 600
    while psutil.pid_exists(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not psutil.pid_exists(child)
    # Nobody is left who knew of the other one.
    os.kill(other, signal.SIGKILL)


def warm_parent(fork_server: ForkServer) -> psutil.Process:
    """The process whose children are forked."""
    return psutil.Process(fork_server._parent.pid)


@pytest.mark.parametrize("begun", [False, True])
def test_a_stopped_fork_server_is_killed_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch, begun: bool, tmp_path: Path
) -> None:
    monkeypatch.setattr("harness.processes.fork_server._END_S", 0.5)
    with pytest.raises(ForkServerError), ForkServer(preload=False, within=tmp_path) as fork_server:
        warm = warm_parent(fork_server)
        if begun:
            assert fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=10).result == 3
        warm.suspend()
        monkeypatch.setattr("harness.processes.fork_server._ANSWER_S", 0.5)
        fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=0.1)
    assert not warm.is_running()
    monkeypatch.setattr("harness.processes.fork_server._ANSWER_S", 60.0)
    with ForkServer(preload=False, within=tmp_path) as fork_server:
        warm = warm_parent(fork_server)
        folder = fork_server.folder
        warm.suspend()
    assert not warm.is_running()
    assert not folder.exists()


@pytest.mark.parametrize("said", [b"", b'{"function": "half a request', b"no request\n"])
def test_the_folder_of_a_fork_server_is_removed_however_it_ends(tmp_path: Path, said: bytes) -> None:
    command = [sys.executable, "-P", "-m", "harness.processes.fork_server_main", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(harness.__file__).parents[1])}
    done = subprocess.run(command, input=said, env=environment, capture_output=True, timeout=600, check=False)
    assert done.stdout.startswith(os.fsencode(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_shared_calls_follow_each_other_in_one_process_until_one_fails_or_is_retired(fork_server: ForkServer) -> None:
    def process() -> int:
        return int(fork_server.run(WORK + "process", {}, deadline_s=10, shared=True).result)

    first = process()
    assert process() == first
    alone = fork_server.run(WORK + "process", {}, deadline_s=10).result
    assert alone != first
    assert process() == first
    failed = fork_server.run(WORK + "fail", {"message": "of no use"}, deadline_s=10, shared=True)
    assert (failed.status, failed.error) == (1, "ValueError: of no use")
    assert failed.complaint.startswith("on the way")
    second = process()
    assert second != first
    killed = fork_server.run(WORK + "die_by", {"signal": signal.SIGSEGV}, deadline_s=10, shared=True)
    assert (killed.status, killed.signal) == (None, signal.SIGSEGV)
    third = process()
    fork_server.retire()
    fourth = process()
    assert len({first, second, third, fourth}) == 4
    assert alive([psutil.Process(number) for number in (first, second, third) if psutil.pid_exists(number)]) == []


def test_a_shared_call_that_hangs_is_killed_at_its_deadline(fork_server: ForkServer, tmp_path: Path) -> None:
    outcome = fork_server.run(WORK + "hang", {"note": str(tmp_path / "note")}, deadline_s=0.3, shared=True)
    assert (outcome.status, outcome.signal, outcome.timed_out) == (None, signal.SIGKILL, True)
    assert fork_server.run(WORK + "add", {"one": 1, "other": 2}, deadline_s=10, shared=True).result == 3
