"""A Spark session that starts in seconds, prints nothing on the terminal, and removes its files.

It ships its own code: ``stores``, ``harness`` and ``scenarios`` go to every executor as one zip file. So a cluster
without them can run them, if it has their dependencies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import py_compile
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import IO

import psutil
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import harness
from harness.folders import temporary_folder
from harness.processes.spark_cluster import LOG4J2, QUICK_SPARK, SPARK_ENVIRONMENT
from harness.workloads.event_log import EventLogError
from stores.errors import ConfigError
from stores.java import find_java

JVM_EXIT_TIMEOUT_S = 30
LOG_FILE = """
rootLogger.appenderRef.console.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
"""Settings that follow the lines of ``LOG4J2`` and send all messages to a file instead of standard error."""

QUIET: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.reuse": "true",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_SPARK,
    "spark.executor.extraJavaOptions": QUICK_SPARK,
}
"""The default settings of every session: a quick start, no output, no speculative tasks, and UTC for times without a
zone, on every machine."""


@contextlib.contextmanager
def session(
    app_name: str,
    master: str | None = None,
    *,
    max_failures: int = 1,
    settings: Mapping[str, str] | None = None,
    log_folder: Path | None = None,
) -> Iterator[SparkSession]:
    """Start a session for the length of a ``with`` block. At its end, Spark is stopped and its JVM has ended.

    ``master`` is ``local[2]`` unless given. ``max_failures`` is how often a task may fail before its job does, 1 or
    more, on a local master too. ``settings`` are Spark's own, such as ``spark.driver.memory`` (512m). Under
    ``spark-submit`` the session uses the existing JVM. The arguments of its command line, with the master, then
    override all of these.

    When Spark fails, its log is kept in ``log_folder``, or in the folder for temporary files, and the error names it.
    If it does not start, the log is in the latter.

    Raises: ConfigError if Java is missing or too old, Spark does not start, or this process already has a session.
    """
    if SparkContext._active_spark_context is not None:
        raise ConfigError("This process has a Spark session already; leave its block before starting another.")
    options = {**QUIET, "spark.task.maxFailures": str(max_failures), **(settings or {})}
    search_path = list(sys.path)
    with contextlib.ExitStack() as cleanup:
        scratch = cleanup.enter_context(temporary_folder("spark"))
        cleanup.enter_context(_interrupts_restored())
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            context = _join(app_name, _with_retries(master or "local[2]", max_failures), options)
            _log_into(scratch / "spark.log", context, scratch)
            cleanup.enter_context(_log_kept_on_failure(scratch / "spark.log", app_name, log_folder))
            cleanup.callback(_stop, context)
        else:
            master = _with_retries(master or "local[2]", max_failures)
            cleanup.enter_context(_environment(_is_on_this_machine(master)))
            log = cleanup.enter_context((scratch / "spark.log").open("wb"))
            cleanup.enter_context(_log_kept_on_failure(Path(log.name), app_name, log_folder))
            context = cleanup.enter_context(_own_jvm(app_name, master, options, scratch, log))
        _ship_code(context, scratch)
        # When the JVM ends, this server of the driver would print a traceback.
        setattr(context._accumulatorServer, "handle_error", lambda *_: None)  # noqa: B010
        # Spark also prepends its copies here, but on the driver modules must still come from their own folder.
        sys.path[:] = search_path
        spark = SparkSession(context)
        cleanup.callback(_stop, spark)
        yield spark


def code_path() -> str:
    """Return the PYTHONPATH with which a child process imports ``stores`` and ``harness`` as this one does.

    On the driver it is a folder; inside a task it is the zip file that the session sent.
    """
    return str(Path(harness.__file__).absolute().parents[1])


def _join(app_name: str, master: str, wanted: Mapping[str, str]) -> SparkContext:
    SparkContext._ensure_initialized()
    conf = SparkConf()
    for name, value in {"spark.master": master, "spark.app.name": app_name, **wanted}.items():
        conf.setIfMissing(name, value)
    return SparkContext(conf=conf)


def _log_into(file: Path, context: SparkContext, scratch: Path) -> None:
    """Make a JVM that existed before this process log to a file, as one of its own does, and not to the terminal.

    Ctrl-C also reaches the JVM, which then logs each cancelled task with a stack trace.
    """
    settings = scratch / LOG4J2.name
    settings.write_text(LOG4J2.read_text() + LOG_FILE.format(file=file))
    jvm = context._jvm
    # If Spark uses another logging library than its own, its logging is not changed.
    with contextlib.suppress(Py4JError, TypeError):
        assert jvm is not None
        jvm.java.lang.System.setProperty("harness.spark.log.level", "warn")
        jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(jvm.java.net.URI.create(settings.as_uri()))


@contextlib.contextmanager
def _own_jvm(
    app_name: str, master: str, wanted: Mapping[str, str], scratch: Path, log: IO[bytes]
) -> Iterator[SparkContext]:
    find_java()
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name)
    for name, value in wanted.items():
        conf.set(name, value)
    # Java unpacks libraries into this folder, so they are removed with it even if the JVM is killed.
    logging = (
        f'-Dlog4j2.configurationFile={LOG4J2.as_uri()} -Dharness.spark.log.level=warn "-Djava.io.tmpdir={scratch}"'
    )
    conf.set("spark.driver.extraJavaOptions", f"{wanted['spark.driver.extraJavaOptions']} {logging}")
    conf.set("spark.sql.warehouse.dir", (scratch / "warehouse").as_uri())
    if master.startswith("local"):
        conf.set("spark.local.dir", str(scratch / "local"))
    gateway = None
    try:
        try:
            gateway = _launched(conf, log)
            context = SparkContext(conf=conf, gateway=gateway)
        except (PySparkException, Py4JError, OSError) as error:
            raise ConfigError(f"Spark does not start with master {master}") from error
        try:
            yield context
        finally:
            _stop(context)
    finally:
        if gateway is not None:
            _end_jvm(gateway)


def _launched(conf: SparkConf, log: IO[bytes]) -> JavaGateway:
    """Start the JVM. If that fails or is interrupted, it is killed: PySpark would leave one that has begun."""
    own = psutil.Process()
    before = set(own.children())
    try:
        return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    except BaseException:
        for child in set(own.children()) - before:
            for process in (*child.children(recursive=True), child):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            child.wait()
        raise


def _stop(running: SparkSession | SparkContext) -> None:
    """Stop it, unless its JVM has already ended."""
    with contextlib.suppress(Py4JError, OSError):
        running.stop()


def _end_jvm(gateway: JavaGateway) -> None:
    """End the JVM by closing its standard input. Afterwards this process can start another one."""
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(JVM_EXIT_TIMEOUT_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        SparkContext._gateway = None
        SparkContext._jvm = None


def _ship_code(context: SparkContext, scratch: Path) -> None:
    archive = Path(code_path())
    if archive.is_dir():
        archive = scratch / "harness-code.zip"
        write_archive(archive)
    context.addPyFile(str(archive))


@contextlib.contextmanager
def _environment(on_this_machine: bool) -> Iterator[None]:
    """Set the environment that Spark reads: the Python of its tasks, and no lookup of this machine's address.

    That Python imports nothing from the folder in which it is started.
    """
    variables = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if on_this_machine else {}),
        **SPARK_ENVIRONMENT,
    }
    variables = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _log_kept_on_failure(log: Path, app_name: str, log_folder: Path | None) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, ConfigError) as error:
        refused = isinstance(error, ConfigError)
        of_spark = isinstance(error.__cause__, (PySparkException, Py4JError)) and not isinstance(error, EventLogError)
        if refused and not of_spark:
            raise
        name = f"spark-{re.sub(r'[^A-Za-z0-9]+', '-', app_name)}-{os.getpid()}.log"
        # The folder of a run that was refused is removed.
        for folder in filter(None, (None if refused else log_folder, Path(tempfile.gettempdir()))):
            # A full disk may be the reason for the failure.
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, folder / name)
                error.add_note(f"Spark's own messages: {folder / name}")
                break
        raise


@contextlib.contextmanager
def _interrupts_restored() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which Spark replaces by one that cancels its jobs even after it has stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_on_this_machine(master: str) -> bool:
    return re.match(r"local\b|spark://(127\.0\.0\.1|localhost):", master) is not None


def _with_retries(master: str, max_failures: int) -> str:
    """Return a local master that retries: it does so only if its name says so, as in ``local[2,3]``."""
    plain = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    return f"local[{plain[1] or 1},{max_failures}]" if plain and max_failures > 1 else master


Session = SparkSession
TASK_FAILURES_MAX = 3
"""A Spark task is tried so many times, for example if its executor dies. No trial is lost or counted twice by that."""


def local_master(partitions: Iterable[int]) -> str:
    """Return the master for all cores of this machine, with a slot for each task that is measured at the same time."""
    return f"local[{max(2, os.cpu_count() or 1, *partitions)}]"


class SparkFailedError(Exception):
    """A Spark job ended with an error. The message names the error and the file with Spark's own messages."""


@contextlib.contextmanager
def spark_session(app_name: str, master: str, log_folder: Path | None) -> Iterator[SparkSession]:
    """Start a quiet session for experiments. ``log_folder`` is as for ``session``.

    Raises: ConfigError if Spark does not start, SparkFailedError for a job that fails.
    """
    # After an interruption py4j logs the traceback of the present call to the root logger.
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())
    reason = ""
    try:
        with session(app_name, master, max_failures=TASK_FAILURES_MAX, log_folder=log_folder) as spark:
            try:
                yield spark
            except (PySparkException, Py4JError, ConnectionError) as error:
                reason = _reason(error)  # Asked of the JVM, which is gone once the session is left.
                raise
    except (PySparkException, Py4JError, ConnectionError) as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        raise SparkFailedError(f"Spark failed: {reason or type(error).__name__}. {notes}".strip()) from error


def _reason(error: Exception) -> str:
    """Return the reason of a failure in one line: of a chain of Java causes, the last one."""
    try:
        text = str(error)
    except (Py4JError, OSError):
        text = ""
    if not text.strip() or "OutOfMemoryError" in text or isinstance(error, Py4JNetworkError | ConnectionError):
        return (
            "its JVM has ended, most likely for lack of memory. Give it more with spark-submit, for example: "
            "spark-submit --driver-memory 4g scenarios/your_event_log.py"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0]).removeprefix("Caused by: ").rstrip(".")


SHIPPED_PACKAGES = ("stores", "harness", "scenarios")
SHIPPED_SUFFIXES = (".py", ".properties", ".typed", ".c", ".java", ".sha256", ".xml")


def write_archive(archive: Path) -> None:
    """Write the files of ``SHIPPED_PACKAGES`` to a zip file, and beside each module its compiled form.

    Python keeps nothing that it compiles while it imports from a zip file: without the compiled form each process of an
    executor compiles every module again, which is most of the time of its start. Python itself ignores a compiled form
    that is of another version, or of an earlier source.
    """
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file, name in _code_files():
            target.write(file, name)
            if file.suffix == ".py" and "/tests/" not in name and (compiled := _compiled(file)):
                target.write(compiled, f"{name}c")


def _code_files() -> Iterator[tuple[Path, str]]:
    for package in SHIPPED_PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in sorted(Path(folder).rglob("*")):
                if file.suffix in SHIPPED_SUFFIXES:
                    yield file, f"{package}/{file.relative_to(folder).as_posix()}"


def _compiled(source: Path) -> Path | None:
    """Return the compiled form of a module, made if Python may keep it; None if there is none."""
    compiled = Path(cache_from_source(source))
    is_old = not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime
    if is_old and not sys.dont_write_bytecode:
        with suppress(OSError, py_compile.PyCompileError):
            py_compile.compile(str(source), doraise=True)
    return compiled if compiled.exists() else None


ANSWER_TIMEOUT_S = 5.0
"""The time that each address of a master has to accept a connection, and then to answer."""
_SCHEME = "spark://"
_REQUEST, _ANSWERS, _NUMBER = 3, (4, 5), 0x7478_7374
"""Types of messages, and a number for one. Source: Spark's ``network-common``, ``Message.Type`` and ``RpcRequest``."""
_REQUEST_HEAD, _ANSWER_HEAD = struct.Struct(">qbqi"), struct.Struct(">qbq")
"""The length of the whole, the type and the number, and in a request the length of its content."""


def check_master(master: str | None) -> None:
    """Check that a standalone master answers at one of the addresses of ``master``.

    Spark itself retries for more than a minute, and then ends the JVM with an error of its own.

    ``master`` is as for Spark: ``spark://HOST:PORT``, with more pairs after commas if masters stand by. Other masters,
    and those that ``spark-submit`` has chosen, are not checked. Raises: ConfigError.
    """
    if master is None or not master.startswith(_SCHEME) or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    reasons = [_refusal(address) for address in master.removeprefix(_SCHEME).split(",")]
    if all(reasons):
        raise ConfigError(f"no master answers at {master}: {'; '.join(filter(None, reasons))}. Start it, or correct it")


def _refusal(address: str) -> str | None:
    """Return why nothing answers at ``address``, or None if something does."""
    parts = re.fullmatch(r"\[?([^\[\]/]+?)\]?:(\d{1,5})", address)
    if parts is None or not 0 < int(parts[2]) < 1 << 16:
        return f"{address!r} is not HOST:PORT"
    try:
        with socket.create_connection((parts[1], int(parts[2])), ANSWER_TIMEOUT_S) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            return None if _answers_as_spark(connection) else f"{address}: what listens there is no Spark master"
    except OSError as error:
        return f"{address}: {error.strerror or error}"


def _answers_as_spark(connection: socket.socket) -> bool:
    """Send a request without sense, which Spark answers with a failure under the same number."""
    content = b"?"
    connection.sendall(_REQUEST_HEAD.pack(_REQUEST_HEAD.size + len(content), _REQUEST, _NUMBER, len(content)) + content)
    answer = b""
    while len(answer) < _ANSWER_HEAD.size:
        more = connection.recv(_ANSWER_HEAD.size - len(answer))
        if not more:
            return False
        answer += more
    _, kind, number = _ANSWER_HEAD.unpack(answer)
    return kind in _ANSWERS and number == _NUMBER
