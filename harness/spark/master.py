"""The check that a standalone Spark master can be reached, before anything is measured.

Spark itself retries for more than a minute, and then ends the JVM with an error of its own.
"""

from __future__ import annotations

import os
import re
import socket

from stores.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0
"""The time that each address of a master has to accept a connection."""
_SCHEME = "spark://"


def check_master(master: str | None) -> None:
    """Check that a standalone master accepts connections at one of the addresses of ``master``.

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
        socket.create_connection((parts[1], int(parts[2])), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return None
