"""Ctrl-C and SIGTERM end a command at any moment: what was measured is reported, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harness.experiments.registry import kinds
from harness.interruption import termination_interrupts
from harness.report.rows import read_rows
from harness.tests.test_cli import environment

DEADLINE_S = 600.0
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Command:
    """A command of the harness in ``folder``, with a folder of its own for temporary files."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.scratch = folder, folder / "scratch"
        self.scratch.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments, "--runs", "runs"],
            cwd=folder,
            env=environment(TMPDIR=str(self.scratch)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def interrupt(self, how: signal.Signals, when: Callable[[], object]) -> str:
        """Send the signal when it is time to, and return the standard output. It must end quietly."""
        wait_until(lambda: when() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        if how is signal.SIGINT:
            os.killpg(self.process.pid, how)  # As a terminal does: to every process of the foreground group.
        else:
            self.process.send_signal(how)
        out, told = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == STATUS[how], told
        assert "Traceback" not in told
        return out

    def check_nothing_is_left(self) -> None:
        """Wait until no process is left: a fork server ends last, in a session of its own, and removes its folder."""
        wait_until(lambda: not in_session(self.process.pid) + using(self.scratch))
        assert list(self.scratch.iterdir()) == []

    def has_started_spark(self) -> bool:
        """Return True if the JVM of Spark runs."""
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children(recursive=True)
            return any("org.apache.spark.deploy.SparkSubmit" in each.cmdline() for each in below)
        return False

    def has_measured(self) -> bool:
        """Return True if every partition has finished a measurement of throughput: one has finished the next one."""
        files = self.scratch.glob("txstores-harness-throughput-*/progress")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return any('"figures"' in line and '"measurement": 1' in line for line in lines)


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Command]:
    command = Command(folder, *arguments)
    try:
        yield command
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.process.pid, signal.SIGKILL)
        command.process.communicate()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_sigterm_ends_a_command_that_ignores_ctrl_c_as_one_in_the_background_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with termination_interrupts(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("SIGTERM was lost")
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interruption_before_anything_was_measured_leaves_no_run(tmp_path: Path) -> None:
    with running(tmp_path, "bench", "--only", "scale") as command:
        out = command.interrupt(signal.SIGTERM, lambda: list(command.scratch.glob("txstores-harness-scale-*/*")))
        assert "report" not in out
        command.check_nothing_is_left()
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.spark
@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_an_interruption_while_spark_starts_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    with running(tmp_path, "bench", "--only", "throughput") as command:
        command.interrupt(how, command.has_started_spark)
        command.check_nothing_is_left()
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.spark
@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_stage_of_spark_is_reported_with_what_it_measured(tmp_path: Path, how: signal.Signals) -> None:
    with running(tmp_path, "bench", "--only", "throughput") as command:
        out = command.interrupt(how, command.has_measured)
        command.check_nothing_is_left()
    [run] = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    rows = read_rows(run, "throughput", kinds())
    assert rows
    assert {row["end_state"] for row in rows} == {"not compared"}
    assert json.loads((run / "run.json").read_text())["interrupted"] is True
    report = run / "report" / "report.md"
    assert str(report) in out
    assert "This run was interrupted" in report.read_text()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_scenario_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    with running(tmp_path, "scenario", "kill_repeatedly") as command:
        command.interrupt(how, lambda: list(command.scratch.glob("fork-server-*/*")))
        command.check_nothing_is_left()


def using(folder: Path) -> list[str]:
    found = []
    for other in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(other.cmdline())
            if str(folder) in words:
                found.append(words)
    return found


def in_session(leader: int) -> list[str]:
    found = []
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == leader and other.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(other.cmdline()))
        except (ProcessLookupError, psutil.Error):
            continue
    return found
