"""The two sides of a trial as processes, which are killed and started again: a worker of ours, and Kafka Streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.processes.child import child_environment, end, last_complaint, python, start
from harness.tests.differential.topologies import OURS, properties_of
from harness.tests.differential.trial import GAP_MS, GRACE_MS, RETENTION_MS, SIZE_MS, Trial
from stores.changelog.kafka.testing.jars import STREAMS, kafka_jars
from stores.java import find_java
from stores.tests.kafka.shared_broker import FOLDER

THEIRS = "theirs"
SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS = 2_000, 500
"""A killed process keeps its partitions for that long."""
_PROGRAM = Path(__file__).with_name("Topologies.java")
_ENDS_S = 120
Entry = dict[str, Any]


class EndedError(Exception):
    """A process ended by itself; the message has its last complaint."""


@contextmanager
def compiled() -> Iterator[str]:
    """Compile the program for Kafka Streams; yield its class path. Raises: ConfigError without Java or the jars."""
    jars = kafka_jars(FOLDER, name=STREAMS)
    compiler = [str(find_java("Kafka Streams").program), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    class_path = os.pathsep.join(map(str, jars.iterdir()))
    with TemporaryDirectory(prefix="classes-") as classes:
        subprocess.run([*compiler, "-cp", class_path, "-d", classes, str(_PROGRAM)], check=True)
        yield f"{class_path}{os.pathsep}{classes}"


class Side(ABC):
    """An application in one process. ``folder`` has its state."""

    name: str

    def __init__(self, trial: Trial, settings: Mapping[str, Any], folder: Path) -> None:
        self.application = f"{trial.name}-{self.name}"
        self.kills = 0
        self._folder = folder
        folder.mkdir()
        self._properties = folder / "properties"
        self._state = folder / "state"
        given = {
            **settings,
            "state": self._state,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
        }
        lines = (f"{name}={value}\n" for name, value in self._written(trial, given).items())
        self._properties.write_text("".join(lines))
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _written(self, trial: Trial, given: dict[str, Any]) -> Mapping[str, Any]:
        """Return the properties of the process."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command of the process."""

    @abstractmethod
    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        """Let the process commit and end."""

    @abstractmethod
    def _entries(self) -> list[Entry]:
        """Return the entries of the store, after the end."""

    def start(self) -> None:
        """Start the process."""
        self._process = start(self._command(), self._folder, child_environment(None, self._folder))

    def check(self) -> None:
        """Raises: EndedError if the process has ended."""
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            raise EndedError(f"{self.name} ended with status {status}: {last_complaint(self._folder)}")

    def kill(self) -> None:
        """Kill the process, which runs. Raises: EndedError."""
        self.check()
        self.close()
        self.kills += 1

    def close(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def finished(self) -> list[Entry]:
        """Let the process commit and end; return the entries of its store. Raises: EndedError for another status."""
        assert self._process is not None
        self._ask_to_end(self._process)
        try:
            status = self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            raise EndedError(f"{self.name} does not end") from None
        if status != 0:
            self.check()
        self.close()
        return self._entries()


class Ours(Side):
    """A worker. ``mutant`` is a defect that is built into it."""

    name = OURS

    def __init__(self, trial: Trial, settings: Mapping[str, Any], folder: Path, mutant: str = "") -> None:
        super().__init__(trial, settings, folder)
        self._trial, self._mutant = trial, mutant

    def _written(self, trial: Trial, given: dict[str, Any]) -> Mapping[str, Any]:
        return properties_of(given)

    def _command(self) -> list[str]:
        arguments = [self._trial.topology, self._trial.name, str(self._properties), self._mutant]
        return python("harness.tests.differential.topologies", *arguments)

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()

    def _entries(self) -> list[Entry]:
        folders = [line["path"] for line in self._shell("inspect", str(self._state))]
        return [line for folder in folders for line in self._shell("dump", folder)]

    def _shell(self, *arguments: str) -> list[Entry]:
        command = [str(Path(sys.executable).with_name("txstores")), *arguments, "--json"]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ENDS_S).stdout
        return [json.loads(line) for line in output.splitlines()]


class Theirs(Side):
    """A program of Kafka Streams with this class path."""

    name = THEIRS

    def __init__(self, trial: Trial, settings: Mapping[str, Any], folder: Path, class_path: str) -> None:
        super().__init__(trial, settings, folder)
        self._class_path, self._lines = class_path, folder / "entries"
        self._java = str(find_java("Kafka Streams").program)

    def _written(self, trial: Trial, given: dict[str, Any]) -> Mapping[str, Any]:
        topics = {name: f"{trial.name}-{name}" for name in ("input", "table")}
        outputs = {name: f"{self.application}-{name}" for name in ("output", "letters")}
        times = {"size_ms": SIZE_MS, "grace_ms": GRACE_MS, "gap_ms": GAP_MS, "retention_ms": RETENTION_MS}
        return {**given, **topics, **outputs, **times, "topology": trial.topology, "application": self.application}

    def _command(self) -> list[str]:
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={self._folder}"]
        return [self._java, *options, "-cp", self._class_path, _PROGRAM.stem, str(self._properties), str(self._lines)]

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()

    def _entries(self) -> list[Entry]:
        return [json.loads(line) for line in self._lines.read_text().splitlines()]
