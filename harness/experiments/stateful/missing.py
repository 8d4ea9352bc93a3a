"""The reason why a machine cannot run Spark's own ways to keep state from Python."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from harness.java import find_java
from stores.errors import ConfigError

PROTOBUF_MIN = (6, 33, 5)
"""The oldest protobuf that reads what pyspark 4.3 has generated."""


def missing() -> str:
    """Return the reason, or ""."""
    try:
        find_java()
        installed = version("protobuf")
    except ConfigError as error:
        return str(error)
    except PackageNotFoundError:
        return "transformWithState needs the package protobuf"
    if tuple(int(part) for part in installed.split(".")[:3]) < PROTOBUF_MIN:
        return f"transformWithState needs protobuf {'.'.join(map(str, PROTOBUF_MIN))} or newer, not {installed}"
    return ""
