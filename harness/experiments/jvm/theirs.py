"""The JVM's side: starts ``Beside.java`` with the rocksdbjni of pyspark, or says what is missing for that."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.folders import temporary_folder
from harness.processes.child import figures_after, run_program
from stores.engines.rocksdb import RocksDBEngine
from stores.errors import ConfigError
from stores.java import find_java

SHAPES = ("map-and-batch", "indexed-batch", "plain-puts")
"""A sorted map beside a write batch; WriteBatchWithIndex; puts that are visible at once."""
PROGRAM = Path(__file__).with_name("Beside.java")
HEAP = "-Xmx1g"
_FIGURES_FILE = "figures"


@functools.cache
def missing() -> str:
    """Return what this machine lacks to run the program, or ""."""
    try:
        java = find_java()
    except ConfigError as error:
        return str(error)
    listed = subprocess.run([java.program, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if "jdk.compiler@" not in listed.stdout:
        return "needs a JDK, and this Java has no compiler"
    return "" if _rocksdbjni() else "needs rocksdbjni among the jars of pyspark"


def measured(arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Run a shape of the JVM, and return its figures, which are those of ``ours``.

    Raises: MeasurementFailedError.
    """
    with temporary_folder("jvm") as folder:
        return measured_in(folder, arguments, deadline_s)


def measured_in(folder: Path, arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Do the same with the database in the ``folder``, which stays. Raises: MeasurementFailedError."""
    given = folder / "given.properties"
    options = {**RocksDBEngine.options, **arguments, "store": folder / "store"}
    given.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    command = [
        str(find_java().program), HEAP, f"-Djava.io.tmpdir={folder}", "-cp", str(_rocksdbjni()), str(PROGRAM),
        str(given), str(folder / _FIGURES_FILE),
    ]  # fmt: skip
    ending = run_program(command, folder, deadline_s, dict(os.environ))
    return figures_after(ending, f"{PROGRAM.name} {arguments['shape']}", folder / _FIGURES_FILE, deadline_s)


def _rocksdbjni() -> Path | None:
    spec = find_spec("pyspark")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((jar for folder in folders for jar in Path(folder, "jars").glob("rocksdbjni-*.jar")), None)
