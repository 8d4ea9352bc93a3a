"""The Java for Spark: found and asked for its version, or an error with the way to install one."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from stores.errors import ConfigError
from stores.java import Java, major_version
from stores.java import find_java as find

__all__ = ["Java", "find_java", "major_version"]


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark uses: that of JAVA_HOME if it is set, else the first on PATH; 17 or newer.

    Raises: ConfigError if there is none, it does not run, or it is too old.
    """
    return find("Spark", environment)


if __name__ == "__main__":
    try:
        find_java()
    except ConfigError as problem:
        sys.exit(str(problem))
