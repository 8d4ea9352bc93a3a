"""The HTTP server of the queries: waitress, on threads of its own.

A bounded number of threads answers. One more reads requests and writes answers, so a slow client holds a connection
and no thread. waitress itself leaves its threads running at the end, so that is done here.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import waitress.server
import waitress.wasyncore
from waitress.channel import HTTPChannel

from stores.errors import ConfigError
from stores.interface import Closeable
from stores.worker.queries.address import PROPERTY, ServerAddress

THREADS = 8
CONNECTIONS_MAX = 200
IDLE_S = 15
"""The time after which a connection without a request, or without a byte of one, is closed."""
REQUEST_BYTES_MAX = 64 << 10
"""The most bytes of a request's first line and headers, and of its body, which no query has."""
_ANSWER_BYTES_MAX = 64 << 20
"""More than an answer has: an answer waits in memory for its client, and not in a temporary file."""
_UNREAD_BYTES_MAX = 1 << 20
"""The most bytes that a client may leave unread while its next request is answered."""
STOP_S = 1.0
"""The time that requests get to end when the server is closed."""
_POLL_S = 0.5

Application = Callable[..., Any]

_queue_log = logging.getLogger("waitress.queue")
if _queue_log.level == logging.NOTSET:
    # It warns of each request that waits for a thread.
    _queue_log.setLevel(logging.ERROR)


class Listener:
    """A port that is bound, and accepts connections when a server begins. Close it, unless a server has it."""

    def __init__(self, address: ServerAddress) -> None:
        """Bind. Raises: ConfigError if the port or the host can't be had."""
        try:
            family, _, _, _, resolved = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
            self.socket = socket.create_server(resolved[:2], family=family)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"property {PROPERTY}: queries can't be answered at {address}, {reason}: choose another host or port"
            ) from error
        self.address = ServerAddress(address.host, self.socket.getsockname()[1])
        """The address with the port that it has."""


class _Connection(HTTPChannel):  # type: ignore[misc]
    """A connection whose client may send further requests before it has read the answers.

    waitress lets a thread wait until the client has read enough, for as long as that takes. This connection closes
    after the answers that it has: clients ask again for the others. Source: RFC 9112, 9.3.2, "Pipelining".
    """

    requests: list[Any]

    def service(self) -> None:
        if self.total_outbufs_len <= _UNREAD_BYTES_MAX:
            super().service()
            return
        with self.requests_lock:
            self.close_when_flushed = True
            for request in self.requests:
                request.close()
            self.requests = []
        self.server.pull_trigger()

    def _flush_outbufs_below_high_watermark(self) -> None:
        """Wait for no client: ``service`` begins no answer to one that has much to read."""


class QueryServer(Closeable):
    """Serves a WSGI application until it is closed."""

    def __init__(self, application: Application, listener: Listener) -> None:
        """Begin to serve. ``close`` closes the listener, too."""
        self._channels: dict[int, Any] = {}
        server: Any = waitress.server.create_server(
            application,
            map=self._channels,
            sockets=[listener.socket],
            threads=THREADS,
            connection_limit=CONNECTIONS_MAX,
            channel_timeout=IDLE_S,
            cleanup_interval=IDLE_S,
            max_request_header_size=REQUEST_BYTES_MAX,
            max_request_body_size=REQUEST_BYTES_MAX,
            outbuf_overflow=_ANSWER_BYTES_MAX,
            # select() takes no descriptor beyond 1,023, and a process with many stores has more.
            asyncore_use_poll=True,
            log_socket_errors=False,
            ident=None,
        )
        server.channel_class = _Connection
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queries", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections, let requests end for up to ``STOP_S``, and close. May be called more than once.

        A request that takes longer loses its connection.
        """
        if self._ended.is_set():
            return
        self._server.accepting = False
        threads = self._server.task_dispatcher
        threads.shutdown(timeout=STOP_S)
        self._await_written()
        self._ended.set()
        self._server.pull_trigger()
        self._thread.join(STOP_S)
        # A thread that still runs may write to the trigger's descriptor, which must not be that of a store by then.
        if not threads.threads and not self._thread.is_alive():
            self._server.trigger.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            waitress.wasyncore.loop(timeout=_POLL_S, use_poll=True, map=self._channels, count=1)
        for channel in list(self._channels.values()):
            if channel is self._server:
                waitress.wasyncore.dispatcher.close(channel)
            elif channel is not self._server.trigger:
                channel.handle_close()

    def _await_written(self) -> None:
        """Wait until the answers are written, for up to ``STOP_S``."""
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline:
            if not any(channel.total_outbufs_len for channel in list(self._server.active_channels.values())):
                return
            time.sleep(0.01)
