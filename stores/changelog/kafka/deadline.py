"""A deadline for a call of the client that may ignore its own.

``send_offsets_to_transaction`` waits for the group's coordinator without looking at its timeout. If the coordinator's
broker restarts meanwhile, the call may never return. Source: librdkafka, issues 5456 and 5511.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

GRACE_S = 1.0
"""The time for which the client is given the chance to report its own timeout."""


def returns_in_time(call: Callable[[], object], timeout_s: float) -> bool:
    """Return True after ``call``, or False if it has not returned in time: then it stays in a thread of its own.

    That thread does not keep the process from ending. Raises: the exception of ``call``.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="kafka-call", daemon=True)
    thread.start()
    thread.join(timeout_s + GRACE_S)
    if thread.is_alive():
        return False
    if raised:
        raise raised[0]
    return True
