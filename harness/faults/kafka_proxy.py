"""A proxy before a Kafka broker that knows requests: it holds one back, cuts its connection, and delivers it later."""

from __future__ import annotations

import struct
from collections.abc import Callable
from weakref import WeakKeyDictionary

from harness.faults.network_proxy import NetworkProxy, Side

PRODUCE, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28
"""API keys of requests. Source: Kafka's protocol guide, "Api Keys"."""
_HEAD = struct.Struct(">ih")
"""The size of a request without these four bytes, and its API key. Source: Kafka's protocol guide, "Headers"."""


class _Requests:
    """The requests that one connection carries, in pieces of any size."""

    def __init__(self, wants: Callable[[int], bool]) -> None:
        self._wants = wants
        self._head = b""
        """The begin of a request that is too short to tell its kind."""
        self._left = 0
        self._holding = False
        self.held = bytearray()
        """The request that is held back, as far as it has come."""

    @property
    def holds_one(self) -> bool:
        """True if a whole request is held back."""
        return self._holding and not self._left

    def passed(self, piece: bytes) -> bytes:
        """Return what comes before a request that is held back: of this piece, and of earlier ones."""
        passed, rest = bytearray(), self._head + piece
        self._head = b""
        while rest and not self.holds_one:
            if not self._left:
                if len(rest) < _HEAD.size:
                    self._head = rest
                    break
                size, api_key = _HEAD.unpack_from(rest)
                self._left, self._holding = 4 + size, self._wants(api_key)
            part, rest = rest[: self._left], rest[self._left :]
            self._left -= len(part)
            target = self.held if self._holding else passed
            target += part
        return bytes(passed)


class KafkaProxy(NetworkProxy):
    """A proxy that holds one request back, as a network does that delivers it late.

    The client of the request sees a reset, and may send it again over a new connection. The connection to the broker
    stays open until ``deliver`` sends the request over it. For connections without TLS.
    """

    def __init__(self, target: int = 0) -> None:
        self._api_key, self._skipped = -1, 0
        self._requests: WeakKeyDictionary[Side, _Requests] = WeakKeyDictionary()
        self._holder: Side | None = None
        """The broker's side of the connection whose request is held back."""
        self._request = b""
        self._delivers = self._answered = False
        super().__init__(target)

    def hold(self, api_key: int, number: int = 1) -> None:
        """Hold the next request of this kind, or that of this number among the next ones."""
        with self._changed:
            self._api_key, self._skipped = api_key, number - 1
            self._holder, self._delivers, self._answered = None, False, False

    def await_held(self, timeout_s: float) -> bool:
        """Return True as soon as a request is held, and its client is cut; False if none comes in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._holder is not None, timeout_s)

    def deliver(self, timeout_s: float) -> bool:
        """Send the held request to the broker; return True when the broker has answered it, False if it does not."""
        with self._changed:
            assert self._holder is not None, "no request is held"
            self._delivers = True
        self._tell()
        with self._changed:
            return self._changed.wait_for(lambda: self._answered, timeout_s)

    def _watch(self) -> None:
        if self._delivers and self._holder is not None:
            self._holder.held += self._request
            self._request = b""
        super()._watch()

    def _passed(self, side: Side, piece: bytes) -> bytes:
        if not side.is_client:
            with self._changed:
                if side is self._holder and self._delivers:
                    self._answered = True
                    self._changed.notify_all()
            return piece
        requests = self._requests.get(side)
        if requests is None:
            requests = self._requests[side] = _Requests(self._wants)
        passed = requests.passed(piece)
        if requests.holds_one:
            self._end(side)
            with self._changed:
                self._holder, self._request = side.other, bytes(requests.held)
                self._changed.notify_all()
        return passed

    def _wants(self, api_key: int) -> bool:
        """Return True for the one request that is to be held back."""
        with self._changed:
            if api_key != self._api_key:
                return False
            self._skipped -= 1
            if self._skipped >= 0:
                return False
            self._api_key = -1
            return True
