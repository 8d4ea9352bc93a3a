"""``make mutate``: which changes are drawn, which tests are near a file, and what is said of a change."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.folders import ROOT
from harness.mutation import changes_of, drawn, main, nearest_tests

SOURCE = '''
"""A docstring."""
def put(self, key: int = 3, *, sync: bool = True) -> bool:
    """Another."""
    assert key, "message"
    if key < 4 and not self.closed:
        raise ValueError(f"message {key + 1}")
    self.size += 1
    self.write(key, sync=True)
    return [each for each in self.all if each]
'''


def results_of(text: str) -> dict[str, str]:
    source = text.encode()
    return {change.what: change.applied(source).decode() for change in changes_of("a.py", source)}


def test_each_kind_of_statement_can_be_changed() -> None:
    assert set(results_of(SOURCE)) == {
        "3 + 1",
        "False in place of True",
        "turned round: key < 4 and not self.closed",
        "<= in place of <",
        "4 + 1",
        "or in place of and",
        "True in place of key < 4",
        "True in place of not self.closed",
        "without not: not self.closed",
        'left out: raise ValueError(f"message {key + 1}")',
        "left out: self.size += 1",
        "1 + 1",
        "left out: self.write(key, sync=True)",
        "without the argument sync",
        "None in place of [each for each in self.all if each]",
        "no filter: each",
    }


def test_a_change_edits_its_own_place_only_and_stays_python() -> None:
    results = results_of(SOURCE)
    assert "self.write(key)" in results["without the argument sync"]
    assert "if key <= 4 and not self.closed" in results["<= in place of <"]
    for text in results.values():
        ast.parse(text)
        assert sum(a != b for a, b in zip(text.splitlines(), SOURCE.splitlines(), strict=True)) == 1


def test_text_that_is_not_ascii_moves_no_edit() -> None:
    assert results_of('x = "größer"; y(z < 1)\n')["<= in place of <"] == 'x = "größer"; y(z <= 1)\n'


def test_the_same_seed_draws_the_same_changes_and_another_others() -> None:
    files = ["stores/meta_entries.py", "stores/registry.py"]
    assert drawn(ROOT, files, 10, 1) == drawn(ROOT, files[::-1], 10, 1)
    assert drawn(ROOT, files, 10, 1) != drawn(ROOT, files, 10, 2)


def test_the_tests_that_name_a_module_come_before_those_of_its_folder() -> None:
    tests = nearest_tests(ROOT, "stores/tasks/directory/task_lock.py")
    assert all((ROOT / test).is_file() for test in tests)
    naming = [test for test in tests if "task_lock" in (ROOT / test).read_text(encoding="utf-8")]
    assert tests[: len(naming)] == naming != []
    assert "stores/tests/tasks/directory/test_relocation.py" in tests[len(naming) :]
    above = tests.index("stores/tests/tasks/test_metrics.py")
    assert above > tests.index("stores/tests/tasks/directory/test_relocation.py")
    assert not [test for test in tests[above:] if Path(test).parent.name != "tasks"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with one function, a test of one of its two lines, and settings for mypy."""
    root = tmp_path / "clone"
    (root / "stores" / "tests").mkdir(parents=True)
    (root / "harness" / "tests").mkdir(parents=True)
    for package in ("stores", "stores/tests", "harness", "harness/tests"):
        (root / package / "__init__.py").touch()
    (root / "stores" / "part.py").write_text("def low(x):\n    return x < 3\n\n\ndef high(x):\n    return x > 3\n")
    (root / "stores" / "tests" / "test_part.py").write_text(
        "import pytest\nfrom stores.part import low\n\n\n"
        "@pytest.mark.parametrize(('number', 'answer'), [(2, True), (3, False)], ids=['a low one', 'the bound'])\n"
        "def test_low(number, answer):\n    assert low(number) is answer\n"
    )
    (root / "pyproject.toml").write_text('[tool.mypy]\npackages = ["stores"]\n[tool.pytest.ini_options]\n')
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.mark.long
def test_a_detected_change_is_told_from_an_undetected_one(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.mutation.RUNS", clone / "runs")
    assert main(["stores/part.py", "--count", "2", "--jobs", "1"], clone) == 1
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "2 changes of 1 files, drawn with SEED=1"
    assert {line.split("] ")[1].split(":")[0] for line in lines} == {"detected", "not detected"}
    (detected,) = (line for line in lines if "] detected" in line)
    assert "part.py:2" in detected
    # Named by its whole ID, a test can be run again without the change.
    assert "(stores/tests/test_part.py::test_low[" in detected
    assert last == "1 detected, 1 not detected, 0 not decided"
    assert (clone / "stores" / "part.py").read_text().startswith("def low(x):\n    return x < 3\n")


def test_files_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stores/no_such_file.py"]) == 2
    assert "no_such_file" in capsys.readouterr().err


def test_an_ended_run_kills_the_tests_that_run_and_removes_the_copies(clone: Path, tmp_path: Path) -> None:
    """``runpy`` starts the module as ``make mutate`` does, for the files of another clone."""
    began, copies = tmp_path / "began", tmp_path / "copies"
    copies.mkdir()
    (clone / "stores" / "tests" / "test_part.py").write_text(
        "import os, pathlib, time\nfrom stores.part import low\n\n\n"
        f"def test_low():\n    pathlib.Path({str(began)!r}).write_text(str(os.getpid()))\n    time.sleep(600)\n"
    )
    source = (
        f"import harness.folders, pathlib, runpy, sys\nharness.folders.ROOT = pathlib.Path({str(clone)!r})\n"
        f"harness.folders.RUNS = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "sys.argv[1:] = ['stores/part.py', '--count=2', '--jobs=1']\n"
        "runpy.run_module('harness.mutation', run_name='__main__', alter_sys=False)\n"
    )
    environment = {**os.environ, "TMPDIR": str(copies)}
    with subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, env=environment) as process:
        try:
            while not (began.exists() and began.read_text()):
                assert process.poll() is None
                time.sleep(0.1)
            process.terminate()
            assert process.wait(600) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert list(copies.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)
