"""``make size``: what it counts, under which folder, and what commits changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.size import folder_of, main, sizes


def git(folder: Path, *arguments: str) -> None:
    own = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of two commits: the second one adds two lines of code to one folder and removes one of a test."""
    files = {"stores/a/one.py": "1\n2\n", "stores/a/b/two.py": "1\n", "stores/tests/a/test_one.py": "1\n2\n3\n"}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "stores/a/b/two.py").write_text("1\n2\n3\n")
    (tmp_path / "stores/tests/a/test_one.py").write_text("1\n3\n")
    git(tmp_path, "commit", "-qam", "second")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "folder", "is_test"),
    [
        ("stores/errors.py", "stores", False),
        ("stores/tasks/stores/view.py", "stores/tasks", False),
        ("stores/tests/tasks/stores/test_view.py", "stores/tasks", True),
        ("harness/experiments/iofaults/subjects/tasks.py", "harness/experiments/iofaults", False),
        ("harness/tests/test_size.py", "harness", True),
    ],
)
def test_a_module_is_counted_under_the_folder_that_a_reader_knows(path: str, folder: str, is_test: bool) -> None:
    assert folder_of(path) == (folder, is_test)


def test_each_folder_has_its_modules_lines_and_what_the_commits_changed(clone: Path) -> None:
    assert list(sizes(clone)) == ["stores/a"]
    size = sizes(clone, "HEAD~1..HEAD")["stores/a"]
    assert (size.modules[False], size.lines[False], size.changed[False]) == (2, 5, 2)
    assert (size.modules[True], size.lines[True], size.changed[True]) == (1, 2, -1)


def test_the_last_line_has_the_sum_and_unknown_commits_are_an_error(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], clone) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "2", "5", "1", "2"]
    assert main(["--range", "HEAD~1..nowhere"], clone) == 2
    assert "nowhere" in capsys.readouterr().err
