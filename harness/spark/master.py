"""The check that a standalone Spark master can be reached, before anything is measured.

Spark itself retries for more than a minute, and then ends the JVM with an error of its own.
"""

from __future__ import annotations

import os
import re
import socket
import struct

from stores.errors import ConfigError

ANSWER_TIMEOUT_S = 5.0
"""The time that each address of a master has to accept a connection, and then to answer."""
_SCHEME = "spark://"
_REQUEST, _ANSWERS, _NUMBER = 3, (4, 5), 0x7478_7374
"""Types of messages, and a number for one. Source: Spark's ``network-common``, ``Message.Type`` and ``RpcRequest``."""
_REQUEST_HEAD, _ANSWER_HEAD = struct.Struct(">qbqi"), struct.Struct(">qbq")
"""The length of the whole, the type and the number, and in a request the length of its content."""


def check_master(master: str | None) -> None:
    """Check that a standalone master answers at one of the addresses of ``master``.

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
        received = connection.recv(_ANSWER_HEAD.size - len(answer))
        if not received:
            return False
        answer += received
    _, kind, number = _ANSWER_HEAD.unpack(answer)
    return kind in _ANSWERS and number == _NUMBER
