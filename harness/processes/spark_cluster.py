"""A real standalone cluster on this machine, from the PySpark package alone: one master and several workers.

For tests and trials in which executors die: ``local[N]`` has none. Everything listens on loopback only. Each worker has
an address and a folder for local files of its own, as on a machine of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from stores.errors import ConfigError
from stores.java import find_java

HOST = "127.0.0.1"
LOG4J2 = Path(__file__).parents[1] / "spark" / "log4j2.properties"
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
CLASS_ARCHIVE = Path(sys.prefix).with_name(".spark-classes.jsa")
"""Spark's classes, parsed and verified, as ``make setup`` writes them: a JVM starts in half the processor time."""
SHARING = f'"-XX:SharedArchiveFile={CLASS_ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off'
"""Options for a JVM that takes its classes from the archive. One of another Java, or with other jars, ignores it."""
QUICK_SPARK = f"{QUICK_JVM} {SHARING}" if CLASS_ARCHIVE.exists() else QUICK_JVM
WITHOUT_CONF = {"SPARK_CONF_DIR": str(Path(sys.prefix, "no-conf"))}
"""No settings: Spark's scripts put their folder on the class path, where a JVM with an archive allows no folder."""
SPARK_ENVIRONMENT = WITHOUT_CONF if CLASS_ARCHIVE.exists() else {}
"""Variables of a process that starts a JVM of Spark with ``QUICK_SPARK``."""
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
POLL_S = 0.1
STOP_TIMEOUT_S = 10


class ClusterError(ConfigError):
    """The cluster does not do what was asked within its time. The message holds the end of the log concerned."""


class SparkCluster:
    """One master and ``workers`` workers of ``cores`` cores each, for the length of a ``with`` block.

    Each is a process group with its own work folder. At the end, and after any error, all of them are killed, with the
    executors that they started and the processes of these. The folders are removed.

    Raises: ConfigError where Java is missing; ClusterError where the workers are not there after ``timeout_s``.
    """

    def __init__(self, workers: int = 2, *, cores: int = 1, memory: str = "1g", timeout_s: float = 120) -> None:
        self._workers_wanted = workers
        self._cores = cores
        self._memory = memory
        self._timeout_s = timeout_s
        self._cleanup = contextlib.ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """The address for a session or for ``spark-submit --master``."""
        return f"spark://{HOST}:{self._port_of('sparkMaster')}"

    @property
    def folder(self) -> Path:
        """The folder of its logs and work folders, until the block ends."""
        return self._folder

    def __enter__(self) -> Self:
        find_java()
        with self._cleanup:
            self._folder = Path(self._cleanup.enter_context(_temporary_folder()))
            # It takes free ports itself: one that was free before it starts may be another process's by then.
            any_port = ["--host", HOST, "--port", "0", "--webui-port", "0"]
            self._start("master", ["org.apache.spark.deploy.master.Master", *any_port])
            self._wait(lambda: self._state() is not None, "the master to answer", "master")
            for number in range(self._workers_wanted):
                self._workers.append(self._start_worker(number))
            self._wait(lambda: self.alive_workers() == self._workers_wanted, "every worker to register", "worker-0")
            self._cleanup = self._cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def alive_workers(self) -> int:
        """The number of workers that the master counts as alive. It notices a dead one within seconds."""
        state = self._state()
        return 0 if state is None else int(state["aliveworkers"])

    def executors(self) -> list[psutil.Process]:
        """The executors that run now, on any worker."""
        executors = []
        for worker in self._workers:
            for process in _session_of(worker.pid):
                with contextlib.suppress(psutil.Error):
                    if EXECUTOR_CLASS in process.cmdline():
                        executors.append(process)
        return executors

    def kill_executor(self) -> int:
        """Kill one executor with SIGKILL, once there is one; returns its process id. Its worker starts another."""
        self._wait(lambda: bool(self.executors()), "an executor to kill", "master")
        writer = self.executors()[0]
        number = int(writer.pid)
        writer.kill()
        writer.wait(STOP_TIMEOUT_S)
        return number

    def kill_worker(self, number: int) -> None:
        """Kill a worker (0 or more) with all that it started, with SIGKILL. Nothing starts another."""
        end_session(self._workers[number])

    def local_folder(self, number: int) -> Path:
        """Return the folder below which the executors of a worker have their local files."""
        return self._folder / f"local-{number}"

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        host = f"127.0.0.{number + 1}"
        where = ["--host", host, "--webui-port", "0", "--work-dir", str(self._folder / f"work-{number}")]
        size = ["--cores", str(self._cores), "--memory", self._memory]
        command = ["org.apache.spark.deploy.worker.Worker", *where, *size, self.master]
        return self._start(f"worker-{number}", command, host, self.local_folder(number))

    def _start(
        self, name: str, arguments: list[str], host: str = HOST, local: Path | None = None
    ) -> subprocess.Popen[bytes]:
        home = _spark_home()
        log4j2 = f"-Dlog4j2.configurationFile={LOG4J2.as_uri()} -Dharness.spark.log.level=info"
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(local or self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_SPARK} {log4j2} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
            **SPARK_ENVIRONMENT,
        }
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", *arguments],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._cleanup.callback(end_session, process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _state(self) -> dict[str, Any] | None:
        """Return the state that the master reports; None while it does not answer."""
        port = self._port_of("MasterUI")
        if port is None:
            return None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{HOST}:{port}/json/", timeout=5) as answer:
                state = json.load(answer)
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) else None

    def _port_of(self, service: str) -> str | None:
        """Return the port that a service of the master listens on, from the master's log; None before it listens."""
        log = self._log("master").read_text(errors="replace")
        line = re.search(rf"Successfully started service '{service}' on port (\d+)\.\n", log)
        return line and line[1]

    def _wait(self, condition: Callable[[], bool], what: str, log: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not condition():
            if time.monotonic() > deadline:
                ending = self._log(log).read_text(errors="replace")[-2000:]
                raise ClusterError(f"Waited {self._timeout_s:.0f} s for {what}. The end of its log:\n{ending}")
            time.sleep(POLL_S)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the leader of a session and every other process of it: JVMs, and Python workers in groups of their own."""
    processes = _session_of(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for other in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            other.kill()
    process.wait()
    psutil.wait_procs(processes, timeout=STOP_TIMEOUT_S)


def _session_of(leader: int) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader:
                processes.append(process)
    return processes


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="harness-cluster-", ignore_cleanup_errors=True)


def _spark_home() -> Path:
    """Return the folder of the package PySpark, which has Spark's jars. Raises: ConfigError where it is missing."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise ConfigError("a cluster needs PySpark: install the extra spark")
    return Path(package.origin).parent
