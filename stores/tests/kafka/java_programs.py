"""Java programs of these tests, and tools of Kafka, as processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores.changelog.kafka.testing.jars import BROKER, STREAMS, kafka_jars
from stores.java import find_java
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka

HERE = Path(__file__).parent
DEADLINE_S = 600.0
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dorg.apache.logging.log4j.level=OFF")
"""A quick start, and no messages in the output."""


def skip_without_compiler() -> None:
    """Skip the test, with the reason, if a Java program can't be compiled here."""
    skip_without_kafka()
    modules = _run([str(find_java("Kafka Streams").program), "--list-modules"])
    if "jdk.compiler@" not in modules:
        pytest.skip("this Java has no compiler, which the programs of Kafka Streams need: install a JDK")


def streams_program(name: str, *arguments: str, jars: str = STREAMS) -> str:
    """Run a Java program of this folder with the jars of Kafka Streams; return its output."""
    skip_without_compiler()
    return _java(jars, str(HERE / f"{name}.java"), *arguments)


def failing_streams_program(name: str, *arguments: str, jars: str) -> str:
    """Run such a program, which has to fail; return its errors."""
    skip_without_compiler()
    process = _finished(_command(jars, str(HERE / f"{name}.java"), *arguments))
    assert process.returncode != 0, process.stdout
    return process.stderr


@contextmanager
def running_streams_program(name: str, *arguments: str, jars: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run such a program during the block; at its end it is killed. Its output is discarded."""
    skip_without_compiler()
    command = _command(jars, str(HERE / f"{name}.java"), *arguments)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def kafka_tool(name: str, *arguments: str) -> str:
    """Run a tool of Kafka by the name of its class; return its output."""
    return _java(BROKER, name, *arguments)


def kafka_tool_command(name: str, *arguments: str) -> list[str]:
    """Return the command of a tool of Kafka, which reads from its standard input."""
    return _command(BROKER, name, *arguments)


def _java(jars: str, *command: str) -> str:
    return _run(_command(jars, *command))


def _command(jars: str, *command: str) -> list[str]:
    folder = kafka_jars(FOLDER, name=jars)
    java = find_java("Kafka's tools").program
    return [str(java), *_OPTIONS, "-cp", f"{folder}/*", *command]


def _run(command: list[str]) -> str:
    process = _finished(command)
    assert process.returncode == 0, process.stderr
    return process.stdout


def _finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
