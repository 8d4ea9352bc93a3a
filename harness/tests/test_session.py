"""A session is quiet, ships its code, joins spark-submit, and leaves neither a process nor a file behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home

from harness.processes.spark_cluster import QUICK_SPARK, SPARK_ENVIRONMENT
from harness.spark.installation import install
from harness.spark.session import code_path, session
from stores.errors import ConfigError

ROOT = Path(__file__).parents[2]

JOB = """
import subprocess, sys
import pyarrow as pa
from harness.spark.session import code_path, session

def task(batches):
    import os, time
    started = os.environ.get("TASK_STARTED")
    if started:
        open(started, "w").close()
        time.sleep(600)
    environment = os.environ | {"PYTHONPATH": code_path()}
    program = "import harness, stores.errors; print(harness.__file__)"
    child = subprocess.run([sys.executable, "-c", program], env=environment, cwd="/", capture_output=True, text=True)
    if "TASK_CHATTERS" in os.environ:
        print("to standard output", flush=True)
        print("to standard error", file=sys.stderr, flush=True)
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"python": [os.environ["PYSPARK_PYTHON"]], "code": [child.stdout.strip()]})

with session("a job") as spark:
    rows = spark.range(0, 2, 1, 2).mapInArrow(task, "python string, code string").collect()
    pythons = {row["python"] for row in rows}
    print(spark.sparkContext.master, len(rows), pythons, all(".zip/" in row["code"] for row in rows))
"""


def environment(scratch: Path, **more: str) -> dict[str, str]:
    """That of a shell in which nothing is activated, with a folder of its own for temporary files."""
    scratch.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
    return kept | {"TMPDIR": str(scratch), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}


@pytest.mark.spark
def test_a_job_run_from_any_folder_says_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "job.py").write_text(JOB)
    run = subprocess.run(
        [sys.executable, tmp_path / "job.py"],
        cwd=elsewhere,
        env=environment(tmp_path / "scratch", TASK_CHATTERS="yes"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"local[2] 2 {{'{sys.executable}'}} True\n"
    assert list(elsewhere.iterdir()) == []
    assert list((tmp_path / "scratch").iterdir()) == []
    assert processes_naming(tmp_path) == []


@pytest.mark.long
def test_spark_submit_without_an_activated_venv_runs_its_python_and_keeps_the_master_given(tmp_path: Path) -> None:
    programs, spark_home = private_installation(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    run = subprocess.run(
        [programs / "spark-submit", "--master", "local[3]", tmp_path / "job.py"],
        cwd=tmp_path,
        env=environment(tmp_path / "scratch"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"local[3] 2 {{'{programs / 'python'}'}} True\n"
    said_by_the_jvm_before_any_setting = "WARNING: Using incubator modules: jdk.incubator.vector\n"
    assert run.stderr in ("", said_by_the_jvm_before_any_setting)
    assert (spark_home / "conf" / "log4j2.properties").is_file()


PYSPARKS_OWN = ("SPARK_BUFFER_SIZE", "SPARK_AUTH_SOCKET_TIMEOUT")


class Seen(NamedTuple):
    """The record of a session whose job failed in the end. Tests below check one promise each; its JVM starts once."""

    retried: bool
    second: type[BaseException] | None
    failure: PySparkException
    logs: Path
    before: tuple[object, ...]
    after: tuple[object, ...]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("session")
    marker, logs = folder / "failed once", folder / "logs"

    def fail_once(batches: Iterator[object]) -> Iterator[object]:
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt")
        yield from batches

    before = state_of_this_process()
    second: type[BaseException] | None = None
    with (
        pytest.raises(PySparkException) as caught,
        session("failing", "local[1]", max_failures=2, log_folder=logs) as spark,
    ):
        retried = spark.range(0, 1, 1, 1).mapInArrow(fail_once, "id long").count() == 1 and marker.exists()
        try:
            with session("another"):
                pass
        except ConfigError as error:
            second = type(error)
        spark.range(1).selectExpr("raise_error('of no use')").collect()
    return Seen(retried, second, caught.value, logs, before, state_of_this_process())


def state_of_this_process() -> tuple[object, ...]:
    # PySpark gives its workers two settings this way, and leaves them.
    kept = {name: value for name, value in os.environ.items() if name not in PYSPARKS_OWN}
    running = [child.pid for child in psutil.Process().children(recursive=True) if child.name() == "java"]
    return kept, list(sys.path), signal.getsignal(signal.SIGINT), running


@pytest.mark.spark
def test_a_task_may_fail_as_often_as_was_said(seen: Seen) -> None:
    assert seen.retried


@pytest.mark.spark
def test_when_spark_fails_its_log_is_kept_and_named(seen: Seen) -> None:
    [log] = seen.logs.iterdir()
    assert any(str(log) in note for note in seen.failure.__notes__)
    assert "of no use" in log.read_text()


@pytest.mark.spark
def test_a_process_has_one_session_at_a_time(seen: Seen) -> None:
    assert seen.second is ConfigError


@pytest.mark.spark
def test_a_session_leaves_the_process_as_it_was(seen: Seen) -> None:
    assert seen.after == seen.before


def test_without_java_a_session_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError), session("none"):
        pass


# In ``make test``: see ``test_cli`` for Ctrl-C, and ``test_refusals`` for a driver that is killed.
@pytest.mark.long
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_is_interrupted_or_killed_leaves_no_process(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "job.py").write_text(JOB)
    started = tmp_path / "started"
    driver = subprocess.Popen(
        [sys.executable, tmp_path / "job.py"],
        env=environment(tmp_path / "scratch", TASK_STARTED=str(started)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(started.exists, timeout_s=150)
        descendants = psutil.Process(driver.pid).children(recursive=True)
        assert any(each.name() == "java" for each in descendants)
        if ending is signal.SIGINT:
            os.killpg(driver.pid, ending)
        else:
            driver.kill()
        driver.wait(600)
        gone, alive = psutil.wait_procs(descendants, timeout=600)
        assert alive == []
        assert gone
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.spark
def test_a_jvm_of_spark_takes_its_classes_from_the_archive_that_make_setup_writes(tmp_path: Path) -> None:
    log = tmp_path / "classes.log"
    options = {"SPARK_DAEMON_JAVA_OPTS": f"{QUICK_SPARK} -Xlog:class+load:file={log}", "SPARK_HOME": _find_spark_home()}
    command = [str(Path(_find_spark_home(), "bin", "spark-class")), "org.apache.spark.deploy.master.Master", "--help"]
    subprocess.run(command, env=environment(tmp_path, **options, **SPARK_ENVIRONMENT), check=True, capture_output=True)
    loaded = [line for line in log.read_text().splitlines() if "org.apache.spark.deploy.master.MasterArguments" in line]
    assert loaded, "no class of the program was loaded"
    shared = [
        line for line in log.read_text().splitlines() if " org.apache.spark." in line and "shared objects" in line
    ]
    assert len(shared) > 10


def test_the_code_path_on_the_driver_is_the_folder_of_the_packages() -> None:
    assert Path(code_path(), "harness", "spark", "session.py").is_file()
    assert Path(code_path(), "stores", "errors.py").is_file()


def private_installation(folder: Path) -> tuple[Path, Path]:
    """A venv-like folder of programs and a Spark home of its own, made of links, as ``make setup`` leaves them."""
    source = Path(_find_spark_home())
    spark_home = folder / "a venv" / "pyspark"
    programs = folder / "a venv" / "bin"
    for place in (spark_home, programs):
        place.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in ("bin", "conf"):
            (spark_home / entry.name).symlink_to(entry)
    (spark_home / "bin").mkdir()
    for script in (source / "bin").iterdir():
        (spark_home / "bin" / script.name).symlink_to(script)
    (programs / "spark-submit").write_bytes((source / "bin" / "spark-submit").read_bytes())
    (programs / "spark-submit").chmod(0o755)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    install(programs, spark_home)
    return programs, spark_home


def processes_naming(folder: Path) -> list[list[str]]:
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [words for words in found if any(str(folder) in word for word in words)]


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.spark
def test_a_session_that_does_not_start_keeps_its_log_where_no_run_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        with session("a job", "no-master", log_folder=tmp_path / "run"):
            pass
    [note] = refused.value.__notes__
    log = Path(note.rpartition(" ")[2])
    assert log.parent == tmp_path
    assert "SparkSubmit" in log.read_text()
    assert not (tmp_path / "run").exists()
