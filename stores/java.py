"""The Java of this machine: found and asked for its version, or an error with the way to install one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stores.errors import ConfigError

MAJOR_MIN = 17
"""Source: the requirements of Spark 4 and of Kafka 4's broker."""

INSTALLING = (
    "Debian or Ubuntu: apt-get install openjdk-17-jre-headless. Fedora: dnf install java-21-openjdk-headless. macOS: "
    "brew install openjdk@17. Or set JAVA_HOME to the folder of one."
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs: the program and its major version, such as 17."""

    program: Path
    major: int


def find_java(needed_by: str = "Spark", environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java of JAVA_HOME if it is set, else the first on PATH; 17 or newer.

    Raises: ConfigError if there is none, it does not run, or it is too old; it says that ``needed_by`` needs it.
    """
    environment = os.environ if environment is None else environment
    advice = f"{needed_by} needs Java {MAJOR_MIN} or newer. {INSTALLING}"
    program = _program(environment, advice)
    try:
        answer = subprocess.run(
            [program, "-version"],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{program} does not run ({error}). {advice}") from error
    major = major_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or major is None:
        raise ConfigError(f"{program} -version fails or names no version. {advice}")
    if major < MAJOR_MIN:
        raise ConfigError(f"{program} is Java {major}, which is too old. {advice}")
    return Java(program, major)


def major_version(text: str) -> int | None:
    """Return the major version that ``java -version`` printed: 17 for ``"17.0.15"``, 8 for ``"1.8.0_392"``."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _program(environment: Mapping[str, str], advice: str) -> Path:
    if home := environment.get("JAVA_HOME"):
        program = Path(home, "bin", "java")
        if not os.access(program, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, but there is no program bin/java in it. {advice}")
        return program
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is None:
        raise ConfigError(f"There is no Java on PATH, and JAVA_HOME is not set. {advice}")
    return Path(on_path)


if __name__ == "__main__":
    try:
        find_java()
    except ConfigError as problem:
        sys.exit(str(problem))
