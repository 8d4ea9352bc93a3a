"""One JVM for the sessions of several files of tests: a session joins it as it joins that of ``spark-submit``.

A JVM of its own costs a session some ten seconds of processor time. What becomes of such a JVM is tested in
``test_session`` and ``test_cli``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from harness.processes.spark_cluster import LOG4J2, SPARK_ENVIRONMENT
from harness.spark.session import QUIET
from stores.java import find_java

_SET_AT_START = ("spark.master", "spark.app.name")
"""Properties that ``spark-submit`` gives a JVM; a session sets them only where they are missing."""


class SharedJvm:
    """Started at once, with its files below ``scratch``; use it in a ``with`` block, at whose end it is gone."""

    def __init__(self, scratch: Path) -> None:
        find_java()
        conf = SparkConf(loadDefaults=False)
        for name, value in QUIET.items():
            conf.set(name, value)
        logging = f"-Dlog4j2.configurationFile={LOG4J2.as_uri()} -Dharness.spark.log.level=warn"
        options = f"{QUIET['spark.driver.extraJavaOptions']} {logging} -Djava.io.tmpdir={scratch}"
        conf.set("spark.driver.extraJavaOptions", options)
        conf.set("spark.sql.warehouse.dir", (scratch / "warehouse").as_uri())
        conf.set("spark.local.dir", str(scratch / "local"))
        with (scratch / "jvm.log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            patch.setenv("PYTHONSAFEPATH", "1")
            for name, value in SPARK_ENVIRONMENT.items():
                patch.setenv(name, value)
            self._gateway: JavaGateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        for name in _SET_AT_START:
            self._gateway.jvm.java.lang.System.clearProperty(name)

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of a process whose sessions join this JVM."""
        parameters = self._gateway.gateway_parameters
        return {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
            "PYSPARK_PYTHON": sys.executable,
        }

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Let the sessions of this process join the JVM, for the length of a ``with`` block."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.variables.items():
                patch.setenv(name, value)
            patch.setattr(SparkContext, "_gateway", None)
            patch.setattr(SparkContext, "_jvm", None)
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gateway.shutdown()
        process = self._gateway.proc
        process.stdin.close()
        process.wait(600)
