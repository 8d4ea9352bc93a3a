"""The needs of a Kafka broker on this machine: the client, Java, and the jars that ``make kafka-jars`` fetches."""

from __future__ import annotations

import functools
import shutil
import subprocess
from importlib.util import find_spec

from harness.folders import ROOT
from stores.errors import ConfigError
from stores.java import find_java

JARS = ROOT / ".kafka"
"""The folder of the jars, which ``make kafka`` uses as well."""


@functools.cache
def missing(*, streams: bool = False) -> str:
    """Return what this machine lacks to run a broker, and with ``streams`` also Kafka Streams; "" if nothing."""
    if find_spec("confluent_kafka") is None:
        return "needs the extra kafka"
    try:
        java = find_java("A Kafka broker")
    except ConfigError as error:
        return str(error)
    if streams:
        command = [str(java.program), "--list-modules"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if "jdk.compiler@" not in listed.stdout:
            return "needs a JDK, and this Java has no compiler"
    from stores.changelog.kafka.testing.jars import BROKER, STREAMS

    needed = (BROKER, STREAMS) if streams else (BROKER,)
    if not all((JARS / name).is_dir() for name in needed):
        maven = "" if shutil.which("mvn") else ", which needs Maven"
        return f"needs the jars of Apache Kafka: run make kafka-jars{maven}"
    return ""
