"""Kafka Streams' side: starts ``Streams.java`` with its jars."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.folders import temporary_folder
from harness.processes.child import FIGURES_FILE, figures_after, run_program
from harness.processes.kafka_jars import JARS
from stores.java import find_java

PROGRAM = Path(__file__).with_name("Streams.java")
HEAP = "-Xmx1g"


def measured(arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Run the program, and return its figures. Raises: MeasurementFailedError."""
    from stores.changelog.kafka.testing.jars import STREAMS

    with temporary_folder("kafka") as folder:
        given = folder / "given.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in {**arguments, "state": folder}.items()))
        command = [
            str(find_java("Kafka Streams").program), HEAP, f"-Djava.io.tmpdir={folder}", "-cp", f"{JARS / STREAMS}/*",
            str(PROGRAM), str(given), str(folder / FIGURES_FILE),
        ]  # fmt: skip
        ending = run_program(command, folder, deadline_s, dict(os.environ))
        return figures_after(ending, PROGRAM.name, folder / FIGURES_FILE, deadline_s)
