"""Kafka Streams' side: starts ``Streams.java`` with its jars, or says what is missing for that."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.folders import ROOT, temporary_folder
from harness.processes.child import run_program
from harness.processes.measured import figures_after
from stores.errors import ConfigError
from stores.java import find_java

JARS = ROOT / ".kafka"
"""The folder that ``make kafka`` uses as well."""
PROGRAM = Path(__file__).with_name("Streams.java")
HEAP = "-Xmx1g"
_FIGURES_FILE = "figures"


@functools.cache
def missing() -> str:
    """Return what this machine lacks to run a broker and Kafka Streams, or ""."""
    if find_spec("confluent_kafka") is None:
        return "needs the extra kafka"
    try:
        java = find_java("A Kafka broker")
    except ConfigError as error:
        return str(error)
    listed = subprocess.run([java.program, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if "jdk.compiler@" not in listed.stdout:
        return "needs a JDK, and this Java has no compiler"
    from stores.changelog.kafka.testing.jars import BROKER, STREAMS

    if not all((JARS / name).is_dir() for name in (BROKER, STREAMS)):
        maven = "" if shutil.which("mvn") else ", which needs Maven"
        return f"needs the jars of Apache Kafka: run make kafka-jars{maven}"
    return ""


def measured(arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Run the program, and return its figures. Raises: MeasurementFailedError."""
    from stores.changelog.kafka.testing.jars import STREAMS

    with temporary_folder("kafka") as folder:
        given = folder / "given.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in {**arguments, "state": folder}.items()))
        command = [
            str(find_java("Kafka Streams").program), HEAP, f"-Djava.io.tmpdir={folder}", "-cp", f"{JARS / STREAMS}/*",
            str(PROGRAM), str(given), str(folder / _FIGURES_FILE),
        ]  # fmt: skip
        ending = run_program(command, folder, deadline_s, dict(os.environ))
        return figures_after(ending, PROGRAM.name, folder / _FIGURES_FILE, deadline_s)
