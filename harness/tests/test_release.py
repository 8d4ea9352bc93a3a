"""``make release``: what it reads from pages and asks of machines, and that a failed step ends it.

A release runs it whole.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import release
from harness.folders import ROOT
from harness.release import ReleaseError, blocks, find_python, next_steps
from stores.version import __version__

VERSION = "{}.{}".format(*sys.version_info)


def program(file: Path, code: str) -> Path:
    """Make ``file`` a program in sh."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{code}\n")
    file.chmod(0o755)
    return file


def test_a_block_of_a_page_comes_with_the_lines_that_it_says_it_prints() -> None:
    page = "```python\nx = 1  # one\nprint(x)  # 1\n    print(x, 2)  # 1 2\n```\n\n```text\nprint()  # 3\n```\n"
    assert list(blocks(page)) == [("x = 1  # one\nprint(x)  # 1\n    print(x, 2)  # 1 2\n", ["1", "1 2"])]
    readme = list(blocks((ROOT / "README.md").read_text()))
    assert readme
    assert any(printed for _, printed in readme)


def test_a_python_is_taken_from_the_path_or_from_pyenv_if_it_runs_and_has_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert find_python(VERSION) is None
    of_pyenv = tmp_path / f"pyenv/versions/{VERSION}.1/bin/python"
    program(of_pyenv, f'exec {sys.executable} "$@"')
    shim = program(tmp_path / f"bin/python{VERSION}", "exit 127")
    assert find_python(VERSION) == of_pyenv
    program(shim, f'exec {sys.executable} "$@"')
    assert find_python(VERSION) == shim
    shim.rename(tmp_path / "bin/python3.99")
    assert find_python("3.99") is None


def test_pythons_that_are_not_here_are_named_and_a_failed_step_ends_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "build", lambda folder: [])
    monkeypatch.setattr(release, "find_python", lambda version: None)
    monkeypatch.setattr(release, "TOOLS", program(tmp_path / "python", "exit 0"))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("")
    assert release.main() == 0
    printed = capsys.readouterr().out
    assert all(f"Python {version}: NOT TRIED" in printed for version in release.PYTHONS)
    monkeypatch.setattr(release, "TOOLS", program(tmp_path / "python", "echo a wrong README; exit 1"))
    assert release.main() == 1
    ended = capsys.readouterr()
    assert "a wrong README" in ended.err
    assert "upload" not in ended.out


@pytest.mark.parametrize(("named", "version"), [("txstores", "0.0.9"), ("txstores-harness", __version__)])
def test_a_wheel_whose_command_says_another_version_or_fails_is_refused(
    tmp_path: Path, named: str, version: str
) -> None:
    """By a Python whose environments have a pip that installs a command, which knows its version alone."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / f"{named.replace('-', '_')}-1-py3-none-any.whl").touch()
    command = f'[ "$1" = --version ] && echo {named} {version}'
    environment = (
        f'mkdir -p "$3/bin"; cp /bin/true "$3/bin/python"; cp {program(tmp_path / "command", command)} "$3/bin/{named}"'
    )
    with pytest.raises(ReleaseError):
        release.try_wheel(named, tmp_path / "dist", program(tmp_path / "python", environment))


def test_the_next_steps_ask_for_the_date_of_the_version_as_long_as_it_has_none(tmp_path: Path) -> None:
    undated = next_steps(tmp_path / "dist", f"## {__version__} (unreleased)\n")
    dated = next_steps(tmp_path / "dist", f"## {__version__} (2026-11-27)\n")
    assert len(undated) == len(dated) + 1
    assert any("CHANGELOG.md" in line for line in undated)
    assert not any("CHANGELOG.md" in line for line in dated)
