"""Java is found, or the error says what to do: with made-up Java programs in a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stores.errors import ConfigError
from stores.java import Java, find_java, major_version


def fake_java(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def prints(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2025-04-15' >&2"""


@pytest.mark.parametrize(("version", "major"), [("17", 17), ("17.0.15", 17), ("21.0.1+12", 21), ("25-ea", 25)])
def test_a_new_enough_java_on_path_is_found(tmp_path: Path, version: str, major: int) -> None:
    program = fake_java(tmp_path, prints(version))
    assert find_java(environment={"PATH": str(tmp_path)}) == Java(program, major)


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "path", prints("17.0.1"))
    at_home = fake_java(tmp_path / "home" / "bin", prints("21.0.1"))
    java = find_java(environment={"PATH": str(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")})
    assert java == Java(at_home, 21)


@pytest.mark.parametrize(
    "script", [prints("1.8.0_392"), prints("11.0.20"), "exit 1", "echo nonsense >&2", r"printf '\377\376' >&2"]
)
def test_a_java_that_is_too_old_or_broken_is_a_config_error(tmp_path: Path, script: str) -> None:
    fake_java(tmp_path, script)
    with pytest.raises(ConfigError):
        find_java(environment={"PATH": str(tmp_path)})


def test_no_java_at_all_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        find_java(environment={"PATH": str(tmp_path)})
    with pytest.raises(ConfigError):
        find_java(environment={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "gone")})


def test_a_file_that_is_no_program_is_a_config_error(tmp_path: Path) -> None:
    fake_java(tmp_path, "").write_bytes(b"\x00\x01\x02")
    with pytest.raises(ConfigError):
        find_java(environment={"PATH": str(tmp_path)})


def test_versions_before_9_are_read_by_their_second_number() -> None:
    assert major_version('java version "1.8.0_392"') == 8
    assert major_version("no version here") is None


def test_the_command_says_in_one_message_what_is_missing(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "stores.java"],
        cwd=root,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 1
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
