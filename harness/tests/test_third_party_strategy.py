"""An engine and a strategy of another package: the crash matrix, a scenario and a bench take them as they are."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.faults import Kill, KillInRecovery
from harness.replay import read_fault
from harness.tests.shared_jvm import SharedJvm
from stores.tests import journaled_store
from stores.tests.installed import install
from stores.tests.journaled_store import APPLIED, NOTED, OPENED, REPEATED

ROOT = Path(__file__).parents[2]
THEIRS = "their-journaled"
PLAN = """
from harness.experiments.crash.trial import admitted
from harness.experiments.crash.plan import crash_matrix
for trial in crash_matrix(["their-journaled"], seeds=(1,)):
    print(admitted(trial).text)
"""
REPEATS = """
import sys
from harness.cli import main
from harness.experiments.crash.experiment import Crash
from harness.experiments.crash.run import examine
from harness.processes.fork_server import fork_server
first, *others = sys.argv[1:]
status = main(["repeat", "crash", first])
with fork_server(preload=False) as server:
    for text in others:
        outcome = examine(Crash().read(text), fork_server=server)
        print(outcome.result, outcome.verdicts, outcome.complaint)
        status = status or outcome.result != "valid"
sys.exit(status)
"""
"""One trial by the command, whose processes are started, and the others with forked ones."""
SCENARIO = '''"""Their store dies in its commit and in its recovery, and is found at some commit."""
from stores.failpoints import Part
from harness.scenario import KillAtEach, Scenario

FAULTS = (KillAtEach(Part.COMMIT), KillAtEach(Part.RECOVERY))
SCENARIO = Scenario("crash", faults=FAULTS, backends=("their-journaled",), seeds=1)
'''


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv that has their package."""
    return install(tmp_path_factory.mktemp("venv"), Path(journaled_store.__file__), THEIRS, "BACKEND")


def run(python: Path, folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return subprocess.run(
        [python, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), **more, "PYSPARK_PYTHON": str(python)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def planned(python: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The crash matrix of their backend, every trial of it admitted."""
    done = run(python, tmp_path_factory.mktemp("plan"), "-c", PLAN)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_crash_matrix_kills_a_strategy_at_each_failpoint_that_it_declares(planned: list[str]) -> None:
    faults = [read_fault(json.loads(text)["fault"]) for text in planned]
    killed = {step.failpoint for fault in faults for step in fault.steps if isinstance(step, Kill)}
    assert killed >= {NOTED, APPLIED, OPENED, REPEATED}
    assert not {name for name in killed if name.startswith(("dual_store.", "native."))}


def test_a_recovery_is_killed_twice_where_its_declaration_says_so(planned: list[str]) -> None:
    faults = [read_fault(json.loads(text)["fault"]) for text in planned]
    for failpoint in (OPENED, REPEATED):
        [fault] = [fault for fault in faults if isinstance(fault, KillInRecovery) and Kill(failpoint) in fault.again]
        assert isinstance(fault.first, Kill)
        assert fault.first.failpoint == NOTED
        assert fault.again == (Kill(failpoint), Kill(failpoint))


def test_a_trial_with_each_failpoint_of_their_strategy_ends_valid(
    python: Path, tmp_path: Path, planned: list[str]
) -> None:
    trials = [next(text for text in planned if failpoint in text) for failpoint in (NOTED, APPLIED, OPENED, REPEATED)]
    done = run(python, tmp_path, "-c", REPEATS, *trials)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_scenario_that_kills_at_each_failpoint_of_a_part_has_theirs(
    python: Path, tmp_path: Path, shared_jvm: SharedJvm
) -> None:
    (tmp_path / "theirs.py").write_text(SCENARIO)
    arguments = ("-m", "harness", "scenario", "theirs.py", "--runs", "runs")
    done = run(python, tmp_path, *arguments, **shared_jvm.variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "theirs holds (seed 1)."


@pytest.mark.long
def test_a_bench_measures_their_backend_and_reports_it(python: Path, tmp_path: Path, shared_jvm: SharedJvm) -> None:
    arguments = ("--profile", "smoke", "--backends", THEIRS, "--only", "store,opening,crash", "--runs", "runs")
    done = run(python, tmp_path, "-m", "harness", "bench", *arguments, **shared_jvm.variables)
    assert done.returncode == 0, done.stdout + done.stderr
    report = tmp_path / "runs" / "latest" / "report"
    assert THEIRS in (report / "report.md").read_text()
    crashes = (report / "crashes.md").read_text()
    assert THEIRS in crashes
    assert all(failpoint in crashes for failpoint in (NOTED, APPLIED, OPENED, REPEATED))
