"""The HTTP server of the queries: waitress, on threads of its own.

A bounded number of threads answers. One more reads requests and writes answers, so a slow client holds a connection
and no thread. A machine has at most as many connections as are left for the others; its next one takes the place of the
one that has waited longest for a request. So slow clients keep nobody out. waitress itself leaves its threads running
at the end, so that is done here.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import waitress.server
import waitress.wasyncore
from waitress.channel import HTTPChannel

from stores.errors import ConfigError
from stores.interface import Closeable
from stores.worker.queries.access import PROPERTY, ServerAddress, check_specified, ip_address

THREADS = 8
CONNECTIONS_MAX = 200
_OTHER_CHANNELS = 8
"""More than waitress has for itself: the port, and the trigger that wakes it."""
REQUEST_S = 10.0
"""The time in which a client sends a whole request, from the connection or the last answer on. Then it is closed."""
IDLE_S = 15
"""The time after which a connection is closed whose client reads nothing of its answer."""
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
            # The system also reads addresses as 0 or 0x0: what counts is what they mean.
            check_specified(ip_address(str(resolved[0])), str(address))
            self.socket = socket.create_server(resolved[:2], family=family)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"property {PROPERTY}: queries can't be answered at {address}, {reason}: choose another host or port"
            ) from error
        bound = self.socket.getsockname()
        self.address = ServerAddress(address.host, bound[1], bound[0])
        """The address with the port that it has, and what its host means here."""


class _Connection(HTTPChannel):  # type: ignore[misc]
    """A connection whose client may send further requests before it has read the answers.

    waitress lets a thread wait until the client has read enough, for as long as that takes. This connection closes
    after the answers that it has: clients ask again for the others. Source: RFC 9112, 9.3.2, "Pipelining".
    """

    requests: list[Any]
    source = ""
    """The client's machine: see ``_source_of``."""

    def __init__(self, server: Any, sock: Any, *rest: Any, **named: Any) -> None:
        super().__init__(server, sock, *rest, **named)
        self.waiting_since = time.monotonic()
        """The time from which on it has had no complete request, if it has none now."""

    def service(self) -> None:
        if self.total_outbufs_len <= _UNREAD_BYTES_MAX:
            super().service()
            self.waiting_since = time.monotonic()
            return
        with self.requests_lock:
            self.close_when_flushed = True
            for request in self.requests:
                request.close()
            self.requests = []
        self.server.pull_trigger()

    def _flush_outbufs_below_high_watermark(self) -> None:
        """Wait for no client: ``service`` begins no answer to one that has much to read."""


class _TlsConnection(_Connection):
    """A connection with TLS. The handshake is part of its first reads, so a slow one keeps no thread either."""

    def __init__(self, server: Any, sock: Any, *rest: Any, **named: Any) -> None:
        self._tls_lock = threading.Lock()
        """Held around each call of OpenSSL, none of which waits: one thread reads while another may write."""
        super().__init__(server, sock, *rest, **named)

    def handle_read(self) -> None:
        while True:
            try:
                with self._tls_lock:
                    data = self.socket.recv(self.adj.recv_bytes)
                    has_more = self.socket.pending() > 0
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except (OSError, ValueError):
                data = b""
            if not data:
                self.handle_close()
                return
            self.last_activity = time.time()
            self.received(data)
            # poll() does not know of what OpenSSL has read already.
            if not has_more:
                return

    def send(self, data: bytes, do_close: bool = True) -> int:
        try:
            with self._tls_lock:
                return int(self.socket.send(data))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0


class QueryServer(Closeable):
    """Serves a WSGI application until it is closed."""

    def __init__(self, application: Application, listener: Listener, tls: ssl.SSLContext | None = None) -> None:
        """Begin to serve, over ``tls`` if it is given. ``close`` closes the listener, too."""
        self._channels: dict[int, Any] = {}
        self._tls = tls
        server: Any = waitress.server.create_server(
            application,
            map=self._channels,
            sockets=[listener.socket],
            threads=THREADS,
            # This server refuses connections itself: waitress would let all of them wait.
            connection_limit=CONNECTIONS_MAX + _OTHER_CHANNELS,
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
        server.channel_class = self._accept
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

    def _accept(self, server: Any, client: socket.socket, address: Any, *rest: Any, **named: Any) -> None:
        """Take a connection, and close another one for it if its machine has as many as are left for the others."""
        source = _source_of(address)
        connections = self._connections()
        own = [each for each in connections if each.source == source]
        if len(own) >= CONNECTIONS_MAX - len(connections):
            [(most, _)] = Counter(each.source for each in connections).most_common(1)
            crowd = own or [each for each in connections if each.source == most]
            waiting = [each for each in crowd if not each.requests]
            if not waiting:
                client.close()
                return
            min(waiting, key=lambda each: each.waiting_since).handle_close()
        try:
            kind = _Connection if self._tls is None else _TlsConnection
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
            kind(server, client, address, *rest, **named).source = source
        except (OSError, ValueError):
            client.close()  # The client is gone already.

    def _connections(self) -> list[_Connection]:
        return [each for each in self._channels.values() if isinstance(each, _Connection)]

    def _close_late(self) -> None:
        """Close the connections whose client has not sent a whole request in time."""
        oldest = time.monotonic() - REQUEST_S
        for each in self._connections():
            if not each.requests and not each.total_outbufs_len and each.waiting_since < oldest:
                each.handle_close()

    def _run(self) -> None:
        while not self._ended.is_set():
            waitress.wasyncore.loop(timeout=_POLL_S, use_poll=True, map=self._channels, count=1)
            self._close_late()
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


def _source_of(address: Any) -> str:
    """Return the machine of a client: its address, of IPv6 the first half, which one machine may choose the rest of."""
    ip = ip_address(str(address[0]).partition("%")[0])
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip is not None and ip.version == 6 else str(ip)
