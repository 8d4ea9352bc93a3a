"""The partitions of a barrier stage of Spark wait for each other, and exchange texts.

``BarrierTaskContext`` does the same, but looks for the answer once a second only, so each of its calls costs up to a
second, and a measurement has four. In a meeting the first partition listens on a socket, and the others connect to it.
Source: Spark, ``BarrierTaskContext.runBarrier``.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO

from pyspark import BarrierTaskContext

HELLO_S = 60.0
"""The seconds in which all partitions must have connected. They all exist when the first one begins to wait."""
_LEFT = "another partition of this measurement has ended"


class PartitionLeftError(ConnectionError):
    """A partition ended while others waited for it. Its own task says why."""


class Meeting:
    """The partitions of a stage. ``others`` are connections: of the first partition to all, of each other to that."""

    def __init__(self, number: int, others: list[TextIO]) -> None:
        self.number, self._others = number, others

    def gather(self, text: str) -> list[str]:
        """Return the texts of all partitions, in their order, when each has called this.

        Raises: PartitionLeftError if one has ended.
        """
        gathered: list[str]
        if self.number:
            (first,) = self._others
            _send(first, text)
            gathered = _received(first)
            return gathered
        gathered = [text, *map(_received, self._others)]
        for other in self._others:
            _send(other, gathered)
        return gathered

    def wait(self) -> None:
        """Wait until every partition has called this. Raises: PartitionLeftError if one has ended."""
        self.gather("")


@contextmanager
def meeting(context: BarrierTaskContext) -> Iterator[Meeting]:
    """Yield the meeting of all partitions of a stage; each calls this once. The connections end with the block.

    The first partition listens at the address that its executor reports to Spark. Only who knows a secret of this
    stage, which Spark passes on, takes part.
    """
    number = context.partitionId()
    infos = context.getTaskInfos()
    host = infos[0].address.rpartition(":")[0].strip("[]")
    with ExitStack() as stack:
        if number == 0:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = stack.enter_context(socket.create_server((host, 0), family=family))
            secret = secrets.token_hex()
            context.allGather(json.dumps([listener.getsockname()[1], secret]))
            yield Meeting(0, _accepted(listener, len(infos) - 1, secret, stack))
        else:
            port, secret = json.loads(context.allGather("")[0])
            connection = stack.enter_context(socket.create_connection((host, port), HELLO_S))
            first = _opened(connection, stack)
            _send(first, [secret, number])
            connection.settimeout(None)
            yield Meeting(number, [first])


def _accepted(listener: socket.socket, count: int, secret: str, stack: ExitStack) -> list[TextIO]:
    """Return the connections of ``count`` other partitions, in their order."""
    listener.settimeout(HELLO_S)
    connections: dict[int, TextIO] = {}
    while len(connections) < count:
        connection = stack.enter_context(listener.accept()[0])
        connection.settimeout(HELLO_S)
        # A stranger is ignored; its connection ends with the others.
        with suppress(OSError, ValueError, TypeError):
            other = _opened(connection, stack)
            word, number = _received(other)
            if secrets.compare_digest(word, secret):
                connection.settimeout(None)
                connections[number] = other
    return [connections[number] for number in sorted(connections)]


def _opened(connection: socket.socket, stack: ExitStack) -> TextIO:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rw", encoding="utf-8")
    stack.callback(_close, stream)
    return stream


def _close(opened: TextIO) -> None:
    with suppress(OSError):  # Closing sends what an error has left unsent.
        opened.close()


def _send(to: TextIO, value: object) -> None:
    try:
        to.write(f"{json.dumps(value)}\n")
        to.flush()
    except ConnectionError as error:
        raise PartitionLeftError(_LEFT) from error


def _received(sender: TextIO) -> Any:
    try:
        line = sender.readline()
    except ConnectionError as error:
        raise PartitionLeftError(_LEFT) from error
    if not line.endswith("\n"):
        raise PartitionLeftError(_LEFT)
    return json.loads(line)
