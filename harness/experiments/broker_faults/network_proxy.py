"""A proxy on loopback between a client and a broker, which stalls and cuts their connections on demand."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self

_PIECE_BYTES = 64 * 1024
_SLOW_PIECE_BYTES = 2 * 1024
_HELD_BYTES_MAX = 1024 * 1024
"""The most bytes that are held for a side that does not read."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Side:
    """One end of a connection, and the bytes that wait to be sent to it."""

    def __init__(self, end: socket.socket, *, is_client: bool) -> None:
        self.end, self.is_client = end, is_client
        self.other: Side
        self.held = bytearray()


class NetworkProxy:
    """Passes the bytes of any number of connections on to ``target``, a port of loopback that may be set later.

    ``stall`` stops all bytes in both directions, as a network does that hangs: connections stay, and new ones get no
    answer. ``slow`` passes on few of them. ``resume`` ends that, and passes on what has waited. ``cut`` ends all
    connections: clients see a reset. ``half_close`` ends one direction of them. When one of these returns, it is done.
    For any thread.
    """

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        """The port to which clients connect."""
        self._wake, self._woken = socket.socketpair()
        self._changed = threading.Condition()
        self._stalled = self._silent = self._closed = False
        self._piece_bytes, self._pause_s = _PIECE_BYTES, 0.0
        self._orders: list[Callable[[], None]] = []
        """The orders that the proxy's thread has not carried out."""
        self._cut_after: int | None = None
        self.cuts = 0
        """The number of connections that were cut."""
        self._sides: dict[socket.socket, Side] = {}
        self._selector = selectors.DefaultSelector()
        for watched in (self._listening, self._woken):
            watched.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="network-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stall(self) -> None:
        """Stop all bytes, from those on that the proxy has not read yet."""
        self._stalled = True
        self._tell()

    def stall_answers(self) -> None:
        """Stop the bytes of the broker only: it gets requests, and their clients do not learn it."""
        self._silent = True
        self._tell()

    def resume(self) -> None:
        """Pass bytes on again, those first that have waited."""
        self._piece_bytes, self._pause_s = _PIECE_BYTES, 0.0
        self._stalled = self._silent = False
        self._tell()

    def slow(self, bytes_per_s: int) -> None:
        """Pass on so many bytes in a second at most, of all connections together."""
        self._piece_bytes, self._pause_s = _SLOW_PIECE_BYTES, _SLOW_PIECE_BYTES / bytes_per_s
        self._tell()

    def cut(self) -> None:
        """End all connections. Clients may connect again at once."""
        self._tell(self._end_all)

    def half_close(self, *, of_clients: bool) -> None:
        """End one direction of all connections: the clients, or else the broker, read their end (FIN).

        Each side still sends, until it closes its own end.
        """
        self._tell(partial(self._half_close_all, of_clients=of_clients))

    def cut_after(self, num_bytes: int) -> None:
        """Cut once, when clients have sent so many more bytes: within a request, if it falls there.

        The bytes up to there still reach the broker.
        """
        with self._changed:
            self._cut_after = num_bytes

    def close(self) -> None:
        """Cut, and end the proxy. May be called more than once."""
        self._tell(self._shut)
        self._thread.join()

    def _tell(self, order: Callable[[], None] = lambda: None) -> None:
        """Have the proxy's thread carry out an order, and serve by the present settings; wait until it does."""
        with self._changed:
            if self._closed:
                return
            self._orders.append(order)
            self._wake.send(b"x")
            self._changed.wait_for(lambda: order not in self._orders)

    def _shut(self) -> None:
        self._closed = True
        self._end_all()

    def _run(self) -> None:
        try:
            while self._obey():
                for key, _ in self._selector.select():
                    self._serve(key.fileobj)  # type: ignore[arg-type]
        finally:
            self._selector.close()
            for own in (self._listening, self._woken, self._wake):
                own.close()

    def _obey(self) -> bool:
        """Do what was ordered; return False if the proxy is to end."""
        with self._changed:
            for order in self._orders:
                order()
            if not self._closed:
                self._watch()
            self._orders.clear()
            self._changed.notify_all()
            return not self._closed

    def _is_read(self, side: Side) -> bool:
        """Return True if the bytes of this side pass at the moment. Called on the proxy's thread."""
        return side.is_client or not self._silent

    def _watch(self) -> None:
        """Register what may be served now."""
        events_of: dict[socket.socket, int] = {self._woken: selectors.EVENT_READ}
        if not self._stalled:
            events_of[self._listening] = selectors.EVENT_READ
            for side in self._sides.values():
                reads = len(side.other.held) < _HELD_BYTES_MAX and self._is_read(side)
                events = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * bool(side.held)
                if events:
                    events_of[side.end] = events
        registered = {key.fileobj: key.events for key in self._selector.get_map().values()}
        for known in registered.keys() - events_of.keys():
            self._selector.unregister(known)
        for end, events in events_of.items():
            if end not in registered:
                self._selector.register(end, events)
            elif registered[end] != events:
                self._selector.modify(end, events)

    def _serve(self, end: socket.socket) -> None:
        if end is self._woken:
            self._woken.recv(_PIECE_BYTES)
            return
        if end is self._listening:
            self._accept()
            return
        side = self._sides.get(end)
        if side is None:
            return  # It was closed with its other side a moment ago.
        try:
            if side.held:
                del side.held[: end.send(side.held)]
            self._read(side)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(side)

    def _read(self, side: Side) -> None:
        if self._pause_s:
            time.sleep(self._pause_s)
        piece = side.end.recv(self._piece_bytes)
        if not piece:
            self._drop(side)
            return
        piece = self._passed(side, piece)
        length = self._kept_of(len(piece)) if side.is_client else len(piece)
        side.other.held += piece[:length]
        if length < len(piece):
            with suppress(OSError):
                side.other.end.send(side.other.held)
            self._end_all()

    def _passed(self, side: Side, piece: bytes) -> bytes:
        """Return what is passed on of a piece that one side has sent. Called on the proxy's thread."""
        return piece

    def _kept_of(self, num_bytes: int) -> int:
        """Count bytes of clients; return how many of them come before a cut."""
        with self._changed:
            if self._cut_after is None:
                return num_bytes
            before_cut = min(self._cut_after, num_bytes)
            self._cut_after = self._cut_after - before_cut if before_cut == num_bytes else None
            return before_cut

    def _accept(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:
            return
        try:
            broker = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()  # As a port does on which nobody listens.
            return
        sides = Side(client, is_client=True), Side(broker, is_client=False)
        for side, other in (sides, sides[::-1]):
            side.other = other
            side.end.setblocking(False)
            side.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sides[side.end] = side

    def _drop(self, side: Side) -> None:
        """Close a connection whose one side has ended, after what it has sent was passed on as far as it goes."""
        with suppress(OSError):
            side.other.end.send(side.other.held)
        for each in (side, side.other):
            self._forget(each)
            each.end.close()

    def _end_all(self) -> None:
        for side in list(self._sides.values()):
            self._end(side)

    def _end(self, side: Side) -> None:
        """Close one side of a connection. A client sees a reset."""
        self.cuts += side.is_client
        self._forget(side)
        if side.is_client:
            with suppress(OSError):
                side.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        side.end.close()

    def _half_close_all(self, *, of_clients: bool) -> None:
        for side in self._sides.values():
            if side.is_client is of_clients:
                with suppress(OSError):
                    side.end.shutdown(socket.SHUT_WR)

    def _forget(self, side: Side) -> None:
        self._sides.pop(side.end, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(side.end)
