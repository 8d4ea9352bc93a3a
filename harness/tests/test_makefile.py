"""The variables of the Makefile: each reaches the command that it is for, and a wrong one is refused by its name.

``make -n`` prints the commands and runs none of them.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from harness.folders import ROOT


def make(*arguments: str, dry: bool = True) -> subprocess.CompletedProcess[str]:
    # `make test ARGS=...` hands its variables to this process; the command has its own.
    inherited = ("MAKE", "MFLAGS", "ARGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    command = ["make", "-C", str(ROOT), "--no-print-directory", *(["-n"] if dry else []), *arguments]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
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
        (("soak", "MINUTES=2", "SEED=4"), "readers --seconds $(( 60 * 2 )) --seed '4'"),
        (("test", "ARGS=-k 'rolls_back'"), """-m "not long and not kafka and not stateful" -k 'rolls_back'"""),
        (("test-long", "WORKERS=1"), "-n 1 --dist loadfile --no-loadscope-reorder -m long"),
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
