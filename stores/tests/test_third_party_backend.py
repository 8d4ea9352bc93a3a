"""Another package's backend: found by its entry point, opened by its name, tested by the same suite in one command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stores.tests import journaled_store
from stores.tests.installed import install as install_package

BACKEND = """
from stores.engines.memory import MemoryEngine
from stores.registry import Backend
from stores.strategies.indexed_batch import IndexedBatchStaging


class TheirEngine(MemoryEngine):
    name = "their"


class Theirs(IndexedBatchStaging):
    strategy = "own"
    {body}


backend = Backend("their-own", lambda: TheirEngine, lambda: Theirs)
"""
FORGETFUL = '''
    def rollback(self) -> None:
        """Forgets to roll back."""
'''
UNTRUTHFUL = """
    @property
    def transactional(self) -> bool:
        return False
"""


def install(folder: Path, body: str) -> dict[str, str]:
    """A distribution with one backend, and the environment in which it is installed."""
    (folder / "theirs.py").write_text(BACKEND.replace("{body}", body.strip() or "pass"))
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stores.backends]\ntheir-own = theirs:backend\n")
    ours = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), ours])}


def conformance(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The suite, run by its command from a folder that is not ours."""
    command = [sys.executable, "-m", "stores.tests.conformance", "--backend", "their-own", "-q", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


SOME = ("-k", "test_transactions or test_offsets or test_typed_values or test_arguments")
"""Quick files of the suite. The first of them detects the defects of the backends below."""
SOME_OF_KILLS = ("-k", "test_kills and PROCESS or test_opening")
"""The kills at each failpoint, at one level, and the file of openings."""
EXTENTS = pytest.mark.parametrize("part", [True, pytest.param(False, marks=pytest.mark.long)], ids=["part", "whole"])


@EXTENTS
def test_the_suite_passes_for_a_backend_that_keeps_its_promises(tmp_path: Path, part: bool) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    process = conformance(tmp_path, install(tmp_path, ""), *(SOME if part else ()))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "skipped" not in process.stdout


def test_the_suite_holds_an_engine_with_one_data_family_to_a_refusal(tmp_path: Path) -> None:
    """A gap that the suite knows: nothing is skipped for it."""
    environment = install(tmp_path, "")
    theirs = tmp_path / "theirs.py"
    theirs.write_text(theirs.read_text().replace('name = "their"', 'name = "their"\n    splits = False'))
    process = conformance(tmp_path, environment, "-k", "test_upgrades")
    assert process.returncode == 0, process.stdout + process.stderr
    assert "skipped" not in process.stdout


@EXTENTS
def test_the_suite_passes_for_a_strategy_with_a_commit_protocol_of_its_own(tmp_path: Path, part: bool) -> None:
    """Each failpoint that it declares is killed at, and reached again by opening where it is one of recovery."""
    python = install_package(tmp_path / "venv", Path(journaled_store.__file__), "their-journaled", "BACKEND")
    process = subprocess.run(
        [
            python,
            "-m",
            "stores.tests.conformance",
            "--backend",
            "their-journaled",
            "-q",
            *(SOME_OF_KILLS if part else ()),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "skipped" not in process.stdout


@pytest.mark.parametrize("body", [FORGETFUL, UNTRUTHFUL], ids=["forgets to roll back", "denies to be transactional"])
def test_the_suite_fails_for_a_backend_that_breaks_a_promise(tmp_path: Path, body: str) -> None:
    """Saying that it is not transactional takes no test away: another promise is tested instead."""
    process = conformance(tmp_path, install(tmp_path, body), "-x", "-k", "test_transactions")
    assert process.returncode == 1, process.stdout + process.stderr


def test_a_backend_that_is_not_there_is_named_and_no_test_runs(tmp_path: Path) -> None:
    environment = install(tmp_path, "")
    command = [sys.executable, "-m", "stores.tests.conformance", "--backend", "their-won"]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert process.returncode == 2
    assert "their-own" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_package_whose_entry_point_does_not_load_is_named(tmp_path: Path) -> None:
    environment = install(tmp_path, "")
    (tmp_path / "theirs.py").write_text("raise ImportError('no engine')\n")
    process = conformance(tmp_path, environment)
    assert process.returncode == 2
    assert "theirs:backend" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_store_of_another_package_that_only_keeps_the_contract_works_in_a_task_and_beside_a_fork(
    tmp_path: Path,
) -> None:
    environment = install(tmp_path, "")
    (tmp_path / "theirs.py").write_text(
        "from stores.registry import StoreBackend\n"
        "from stores.tests.minimal_store import TransactionalWithOffsets\n"
        "backend = StoreBackend('their-own', load_store=lambda: TransactionalWithOffsets)\n"
    )
    program = """
import os
from pathlib import Path
from stores.changelog import MemoryChangelog
from stores.tests.tasks.setup import counting_task, expected_state, feed, state

with MemoryChangelog() as log:
    feed(log, [1, 2, 1])
    task = counting_task(Path("."), log, "their-own")
    task.open()
    task.run(commit=True)
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    task.close()
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    assert state(task, "left") == expected_state([1, 2, 1])
    task.close()
"""
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
