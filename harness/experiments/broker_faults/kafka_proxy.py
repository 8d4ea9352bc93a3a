"""A proxy before a Kafka broker that finds single requests and answers: it holds one, and delivers or drops it later.

Source: Kafka's protocol guide.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from harness.experiments.broker_faults.network_proxy import NetworkProxy, Side

PRODUCE, INIT_PRODUCER_ID = 0, 22
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, WRITE_TXN_MARKERS, TXN_OFFSET_COMMIT = range(24, 29)
"""API keys of requests. Source: Kafka's protocol guide, "Api Keys"."""
_REQUEST = struct.Struct(">ihhi")
"""The size of a request without these four bytes, its API key, version and correlation ID. Source: Kafka's protocol
guide, "Headers".
"""
_ANSWER = struct.Struct(">ii")
"""The size of an answer without these four bytes, and the correlation ID of its request."""
_SIZE = struct.Struct(">i")
_END_TXN_ANSWER = struct.Struct(">iiih")
"""The size of the answer, its correlation ID, the throttle time and the error code. Source: Kafka's protocol guide,
"EndTxn Response (Version: 1)".
"""


def has_ended_transaction(answer: bytes) -> bool:
    """Return True if a broker's answer to ``END_TXN`` says that it ends the transaction."""
    *_, error_code = _END_TXN_ANSWER.unpack_from(answer)
    return bool(error_code == 0)


class Messages:
    """The messages that one side of a connection sends, in pieces of any size.

    ``head`` is how each begins: its size without the four bytes of that, and what ``wants`` is asked with. The first
    message that it wants is held back, with all that comes after it, until ``release``.
    """

    def __init__(self, head: struct.Struct, wants: Callable[..., bool]) -> None:
        self._struct, self._wants = head, wants
        self._head = b""
        """The begin of a message that is too short to tell its kind."""
        self._left = 0
        self._holding = False
        self.held = bytearray()
        """The message that is held back, as far as it has come."""

    @property
    def holds_one(self) -> bool:
        """True if a whole message is held back."""
        return self._holding and not self._left

    def passed(self, piece: bytes) -> bytes:
        """Return what comes before a message that is held back: of this piece, and of earlier ones."""
        before, rest = bytearray(), self._head + piece
        self._head = b""
        while rest and not self.holds_one:
            if not self._left:
                if len(rest) < self._struct.size:
                    break
                size, *kind = self._struct.unpack_from(rest)
                self._left, self._holding = 4 + size, self._wants(*kind)
            part, rest = rest[: self._left], rest[self._left :]
            self._left -= len(part)
            target = self.held if self._holding else before
            target += part
        self._head = rest
        return bytes(before)

    def release(self) -> bytes:
        """Return the message that is held back, and hold it no longer. What came after it is in the next ``passed``."""
        message = bytes(self.held)
        self.held.clear()
        self._holding = False
        return message


class KafkaProxy(NetworkProxy):
    """A proxy that holds one request or one answer back, as a network does that delivers it late or not at all.

    ``hold`` is for a request. Its client is cut: it sees a reset, and may send the request again over a new
    connection, while that to the broker stays open. Or the client's connection stays, and nothing more passes to the
    broker. ``deliver`` sends the request, and what came after it. ``hold_answer`` is for the answer to a request, and
    ``pass_answer`` ends that. One of both at a time. For connections without TLS.
    """

    def __init__(self, target: int = 0) -> None:
        self._api_key, self._skipped = -1, 0
        self._cuts, self._of_answer = True, False
        self._messages: dict[Side, Messages] = {}
        self._answered: tuple[Side, int] | None = None
        """The broker's side that is to send the answer that will be held back, and the ID of its request."""
        self._holder: Side | None = None
        """The broker's side of the connection that something of is held back."""
        self._request, self._answer = b"", b""
        self._delivers = False
        super().__init__(target)

    def hold(self, api_key: int, number: int = 1, *, cuts: bool = True) -> None:
        """Hold the next request of this kind, or that of this number among the next ones; with ``cuts`` cut its client.

        Without ``cuts`` all that its client sends after it over the same connection waits as well.
        """
        self._await_next(api_key, number, cuts=cuts, of_answer=False)

    def hold_answer(self, api_key: int, number: int = 1) -> None:
        """Hold the answer to the next request of this kind, and all that comes after it over the same connection."""
        self._await_next(api_key, number, cuts=False, of_answer=True)

    def _await_next(self, api_key: int, number: int, *, cuts: bool, of_answer: bool) -> None:
        with self._changed:
            self._api_key, self._skipped = api_key, number - 1
            self._cuts, self._of_answer = cuts, of_answer
            self._holder, self._answered, self._delivers, self._answer = None, None, False, b""

    def await_held(self, timeout_s: float) -> bool:
        """Return True as soon as it is held, and its client is cut; False if none comes in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._holder is not None, timeout_s)

    def deliver(self, timeout_s: float) -> bytes:
        """Send the held request to the broker; return the answer, empty if it does not come in time."""
        with self._changed:
            assert self._holder is not None, "no request is held"
            self._delivers = True
        self._tell()
        with self._changed:
            return self._answer if self._changed.wait_for(self._is_answered, timeout_s) else b""

    def pass_answer(self, copies: int = 1, *, cuts: bool = False) -> None:
        """Send the held answer to its client so often, or drop it with 0; then cut both ends, or pass on what follows.

        It does nothing if the client has closed its connection.
        """
        self._tell(lambda: self._pass_answer(copies, cuts=cuts))

    def _pass_answer(self, copies: int, *, cuts: bool) -> None:
        side = self._holder
        assert side is not None, "no answer is held"
        self._holder = None
        if side.end not in self._sides:
            return
        messages = self._messages[side]
        side.other.held += messages.release() * copies
        if cuts:
            self._end(side)
            self._end(side.other)
        else:
            side.other.held += messages.passed(b"")

    def _is_answered(self) -> bool:
        return (
            self._answer[_SIZE.size :] != b"" and len(self._answer) >= _SIZE.size + _SIZE.unpack_from(self._answer)[0]
        )

    def _is_read(self, side: Side) -> bool:
        # A client is not read until its request is answered: an end of it would close the connection to the broker.
        waits = side.is_client and side.other is self._holder and not self._of_answer and not self._is_answered()
        return super()._is_read(side) and not waits

    def _forget(self, side: Side) -> None:
        self._messages.pop(side, None)
        super()._forget(side)

    def _watch(self) -> None:
        if self._delivers and self._holder is not None and self._request:
            self._holder.held += self._request
            self._request = b""
            client = self._holder.other
            if client.end in self._sides:
                self._holder.held += self._messages[client].passed(b"")
        super()._watch()

    def _passed(self, side: Side, piece: bytes) -> bytes:
        messages = self._messages.get(side)
        if messages is None:
            head, wants = (_REQUEST, self._wants_of(side)) if side.is_client else (_ANSWER, self._wants_answer_of(side))
            messages = self._messages[side] = Messages(head, wants)
        if not side.is_client and side is self._holder and self._delivers:
            with self._changed:
                self._answer += piece
                self._changed.notify_all()
        before = messages.passed(piece)
        if messages.holds_one and self._holder is None:
            self._note_held(side, messages)
        return before

    def _note_held(self, side: Side, messages: Messages) -> None:
        if side.is_client and self._cuts:
            self._end(side)
        with self._changed:
            if side.is_client:
                self._holder, self._request = side.other, messages.release()
            else:
                self._holder = side
            self._changed.notify_all()

    def _wants_of(self, side: Side) -> Callable[[int, int, int], bool]:
        broker = side.other

        def wants(api_key: int, _version: int, correlation_id: int) -> bool:
            """Return True for the one request that is to be held back."""
            with self._changed:
                if api_key != self._api_key:
                    return False
                self._skipped -= 1
                if self._skipped >= 0:
                    return False
                self._api_key = -1
                if self._of_answer:
                    self._answered = broker, correlation_id
                return not self._of_answer

        return wants

    def _wants_answer_of(self, side: Side) -> Callable[[int], bool]:
        def wants(correlation_id: int) -> bool:
            with self._changed:
                return self._answered == (side, correlation_id)

        return wants
