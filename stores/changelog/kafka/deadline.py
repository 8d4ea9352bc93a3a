"""A deadline for a call of the client that may ignore its own.

``send_offsets_to_transaction`` waits for the group's coordinator without looking at its timeout. If the coordinator's
broker restarts meanwhile, the call may never return. Source: librdkafka, issues 5456 and 5511.

A producer's client then has a thread that logs a thousand lines in a second, for as long as the call waits. In a queue
that nobody serves, they take memory, and each costs more time than the one before: the client sorts them in. So the
client is served until the call returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

GRACE_S = 1.0
"""The time for which the client is given the chance to report its own timeout."""


SERVED_EVERY_S = 0.5


def returns_in_time(call: Callable[[], object], timeout_s: float, serve: Callable[[], object] | None = None) -> bool:
    """Return True after ``call``, or False if it has not returned in time: then it stays in a thread of its own.

    ``serve`` is called again and again, in another thread, until the call returns. These threads do not keep the
    process from ending. Raises: the exception of ``call``.
    """
    raised: list[BaseException] = []
    left = threading.Event()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            # Kept, it would hold these frames, and so the client, until the next collection of all objects.
            if not left.is_set():
                raised.append(error)

    thread = threading.Thread(target=run, name="kafka-call", daemon=True)
    thread.start()
    thread.join(timeout_s + GRACE_S)
    if thread.is_alive():
        left.set()
        raised.clear()
        if serve is not None:
            threading.Thread(target=_serve_until_end, args=(thread, serve), name="kafka-served", daemon=True).start()
        return False
    if raised:
        raise raised[0]
    return True


def _serve_until_end(call: threading.Thread, serve: Callable[[], object]) -> None:
    while call.is_alive():
        with suppress(Exception):
            serve()
        call.join(SERVED_EVERY_S)
