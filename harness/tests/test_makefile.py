"""The Makefile: each variable reaches the command that it is for, and a wrong one is refused by its name; set-ups.

``make -n`` prints the commands and runs none of them. A set-up is tried with an interpreter that installs nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.folders import ROOT

DEADLINE_S = 600.0
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def make(*arguments: str, dry: bool = True) -> subprocess.CompletedProcess[str]:
    # `make test ARGS=...` hands its variables to this process; the command has its own.
    inherited = ("MAKE", "MFLAGS", "ARGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    command = ["make", "-C", str(ROOT), "--no-print-directory", *(["-n"] if dry else []), *arguments]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (("report",), "-m harness report"),
        (("report", "RUN=runs/some run"), "-m harness report --run 'runs/some run'"),
        (("bench", "SEED=7", "BACKENDS=lmdb,sqlite"), "bench --profile default --seed '7' --backends 'lmdb,sqlite'"),
        (
            ("bench", "EVENTS=a b.csv", "KEY=it's", "TIME=at"),
            r"--events 'a b.csv' --key 'it'\''s' --time 'at'",
        ),
        (("bench", "EVENTS=a.csv", "DROP_BAD=1"), "--events 'a.csv' --drop-bad"),
        (("bench", "KEY=customer"), "--key 'customer'"),
        (("scenario", "S=your_event_log", "EVENTS=a.csv", "KEY=k"), "--profile default --events 'a.csv' --key 'k'"),
        (("scenario", "S=read_process_write", "SEED=3"), "scenario 'read_process_write' --profile default --seed '3'"),
        (("bench-kafka", "PROFILE=smoke"), "for name in throughput_over_kafka nexmark_over_kafka; do"),
        (("explore", "HOURS=0.5", "BACKENDS=lmdb"), "explore --hours 0.5 --backends 'lmdb'"),
        (("soak", "MINUTES=2", "SEED=4"), "readers --seconds $(( 60 * 2 )) --seed '4'"),
        (("test", "ARGS=-k 'rolls_back'"), """-m "not long and not kafka and not spark" -k 'rolls_back'"""),
        (
            ("test-long", "WORKERS=1"),
            "-n 1 --dist loadfile --no-loadscope-reorder --dist worksteal -m long",
        ),
        (("many-stores", "BACKENDS=lmdb"), "many-stores --backends 'lmdb'"),
    ],
)
def test_a_variable_reaches_its_command(given: tuple[str, ...], command: str) -> None:
    done = make(*given)
    assert done.returncode == 0, done.stderr
    assert command in " ".join(done.stdout.split())


def test_drop_bad_0_drops_nothing() -> None:
    assert "--drop-bad" not in make("bench", "EVENTS=a.csv", "KEY=k", "DROP_BAD=0").stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("bench", "profile=smoke"), "No variable profile here"),
        (("bench", "PROFILE=smok"), "PROFILE=smok does not exist"),
        (("soak", "MINUTES=abc"), "MINUTES=abc is no number of minutes"),
        (("explore", "HOURS=1.2.3"), "HOURS=1.2.3 is no number of hours"),
        (("explore", "HOURS=all"), "HOURS=all is no number of hours"),
        (("soak", "MINUTES=0"), "MINUTES=0 is no number of minutes"),
        (("soak", "MINUTES=99999999999999999999"), "is no number of minutes"),
        (("soak", "MINUTES=$$(echo 1)"), "MINUTES=$(echo 1) is no number of minutes"),
        (("bench", "PROFILE=$$(echo smoke)"), "PROFILE=$(echo smoke) does not exist"),
        (("scenario",), "Which scenario?"),
        (("compare", "A=runs/one"), "Which runs?"),
        (("compare", 'A=o"ne', "B=two"), 'o"ne'),
    ],
)
def test_a_wrong_variable_is_refused_with_a_sentence(given: tuple[str, ...], said: str) -> None:
    done = make(*given, dry=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_without_events_is_refused() -> None:
    done = make("bench", "KEY=customer", dry=False)
    assert done.returncode == 2
    assert "--events" in done.stderr


def test_clean_leaves_the_rows_of_runs() -> None:
    cleaned = make("clean").stdout.split()
    assert ".venv" in cleaned
    assert "runs" not in cleaned
    assert "runs" in make("clean-runs").stdout.split()


FAKE_PYTHON = f"""#!/usr/bin/env bash
case "$1 $2" in
  "-m venv") if [ "$3" = --clear ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo tools >> steps; exit; fi
    mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo venv >> steps;;
  "-m pip") echo "pip $$" >> steps; while [ -e hold ]; do sleep 0.02; done; [ -x .venv/bin/python ];;
  "-m harness.spark.installation") ;;
  *) exec {sys.executable} "$@";;
esac
"""
"""An interpreter whose pip installs nothing, and takes until there is no file ``hold``."""


class Clone:
    """A folder with the Makefile, in which ``make setup`` takes no time but that of ``hold``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "python"
        self.begun: list[subprocess.Popen[str]] = []
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    @property
    def steps(self) -> list[str]:
        """The steps of all set-ups so far: ``venv``, and ``pip`` with its process ID."""
        path = self.folder / "steps"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    @property
    def set_ups(self) -> int:
        """The number of set-ups that have begun."""
        return self.steps.count("venv")

    def begin(self) -> subprocess.Popen[str]:
        """Begin ``make setup``, in a process group of its own."""
        process = subprocess.Popen(
            ["make", "setup", f"PYTHON={self.python}"],
            cwd=self.folder,
            env=CLEAN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.begun.append(process)
        return process

    def await_pip(self, number: int = 1) -> None:
        """Wait until pip has begun so often."""
        deadline = time.monotonic() + DEADLINE_S
        while sum(step.startswith("pip") for step in self.steps) < number:
            assert time.monotonic() < deadline, self.steps
            time.sleep(0.02)

    def check_whole(self) -> None:
        assert (self.folder / ".venv/.complete").read_text().strip() == str(self.folder)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    made = Clone(tmp_path)
    yield made
    for process in made.begun:
        # Also a child that has outlived it, and a make that waits for ever.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    """Wait until it ends with status 0; return its standard error."""
    said, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said + errors
    return errors


def awaited_line(process: subprocess.Popen[str]) -> str:
    """Return the line about waiting of its standard error, and skip notes before it."""
    assert process.stderr is not None
    deadline = threading.Timer(DEADLINE_S, os.killpg, (process.pid, signal.SIGKILL))
    deadline.start()
    try:
        return next((line for line in process.stderr if "Waiting" in line), "")
    finally:
        deadline.cancel()


def test_a_second_set_up_at_the_same_time_waits_for_the_first_one_and_names_it(clone: Clone) -> None:
    clone.hold()
    first = clone.begin()
    clone.await_pip()
    second = clone.begin()
    line = awaited_line(second)
    assert ".venv" in line
    assert f"process {first.pid}" in line
    assert second.poll() is None
    clone.let_go()
    assert "Waiting" not in ended(first)
    ended(second)
    assert clone.set_ups == 1
    clone.check_whole()


def test_a_killed_setup_is_repeated_and_its_lock_does_not_block_it(clone: Clone) -> None:
    clone.hold()
    first = clone.begin()
    clone.await_pip()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    clone.let_go()
    assert "Waiting" not in ended(clone.begin())
    assert clone.set_ups == 2
    clone.check_whole()


def test_an_install_that_outlives_its_make_is_waited_for(clone: Clone) -> None:
    """Another one would remove .venv below it."""
    clone.hold()
    first = clone.begin()
    clone.await_pip()
    first.kill()
    second = clone.begin()
    assert "Waiting" in awaited_line(second)
    clone.let_go()
    ended(second)
    first.communicate()
    clone.check_whole()


def test_a_leftover_lock_file_does_not_block_a_run(clone: Clone) -> None:
    (clone.folder / ".venv.lock").write_text("process 4194305, since 00:00:00\n")
    assert "Waiting" not in ended(clone.begin())
    clone.check_whole()


def test_several_makes_after_a_change_of_the_constraints_set_up_once(clone: Clone) -> None:
    ended(clone.begin())
    ended(clone.begin())
    assert clone.set_ups == 1
    os.utime(clone.folder / ".venv/.complete", (1, 1))
    clone.hold()
    first = clone.begin()
    clone.await_pip(3)  # Each set-up calls pip twice.
    others = [clone.begin() for _ in range(2)]
    assert all("Waiting" in awaited_line(each) for each in others)
    clone.let_go()
    assert "Waiting" not in ended(first)
    for each in others:
        ended(each)
    assert clone.set_ups == 2
    clone.check_whole()


UNREACHABLE = """\
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError': /simple/setuptools/
ERROR: Could not find a version that satisfies the requirement setuptools (from versions: none)
"""


@pytest.mark.parametrize(
    ("pip_says", "named", "not_named"),
    [(UNREACHABLE, "PIP_INDEX_URL", "from versions"), ("ERROR: No space left", "No space left", "PIP_INDEX_URL")],
)
def test_a_set_up_without_a_network_says_that_the_index_is_not_reachable(
    clone: Clone, pip_says: str, named: str, not_named: str
) -> None:
    (clone.folder / "said").write_text(pip_says)
    clone.python.write_text(FAKE_PYTHON.replace("[ -x .venv/bin/python ];;", "cat said >&2; exit 1;;"))
    process = clone.begin()
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert named in errors
    assert not_named not in errors


def test_an_environment_of_tools_is_made_once_and_completed_in_place_after_a_change(clone: Clone) -> None:
    ended(clone.begin())
    steps = clone.steps
    lint = ["make", "-s", ".venv-lint/.complete"]
    for _ in range(2):
        subprocess.run(lint, cwd=clone.folder, check=True, env=CLEAN, stdout=subprocess.DEVNULL)
    assert [step.split()[0] for step in clone.steps] == [*(step.split()[0] for step in steps), "tools", "pip"]
    os.utime(clone.folder / ".venv-lint/.complete", (1, 1))
    subprocess.run(lint, cwd=clone.folder, check=True, env=CLEAN, stdout=subprocess.DEVNULL)
    assert [step.split()[0] for step in clone.steps][-3:] == ["tools", "pip", "pip"]
    assert (clone.folder / ".venv-lint/requirements.txt").read_text().startswith("ruff")
    # A new .venv may be of another Python than the one that has gone.
    (clone.folder / ".venv-lint/bin/python").unlink()
    os.utime(clone.folder / ".venv/.complete", (later := time.time() + 60, later))
    subprocess.run(lint, cwd=clone.folder, check=True, env=CLEAN, stdout=subprocess.DEVNULL)
    assert [step.split()[0] for step in clone.steps][-3:] == ["pip", "tools", "pip"]


@pytest.mark.long
def test_the_environment_of_the_tests_needs_less_than_a_gigabyte() -> None:
    """Without ziglang, which ``.ci/run`` adds, and as it is after tests, which write compiled modules."""
    files = [file for file in (ROOT / ".venv").rglob("*") if not file.is_symlink() and "ziglang" not in file.parts]
    assert sum(file.stat().st_blocks * 512 for file in files) < 1 << 30


def test_a_set_up_that_fails_leaves_nothing_that_counts_as_one(clone: Clone) -> None:
    clone.python.write_text(FAKE_PYTHON.replace("[ -x .venv/bin/python ];;", "exit 1;;"))
    process = clone.begin()
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "Installing failed" in errors
    clone.python.write_text(FAKE_PYTHON)
    ended(clone.begin())
    assert clone.set_ups == 2
