"""A queue of work that only a store's writer thread may do, left there by another thread that closes the store.

LMDB's write transaction holds a robust mutex that only the thread that began it can release. If another thread closes
the environment, the mutex's memory is unmapped while the first thread's robust list still refers to it. The next use of
LMDB on the first thread then crashes the process.

Source: pthread_mutexattr_setrobust(3); LMDB 0.9, ``mdb.c``, ``mdb_txn_end``, ``mdb_env_close0``.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from threading import Thread, current_thread
from typing import NamedTuple

from stores.errors import StoreError

_log = logging.getLogger(__name__)


class _Left(NamedTuple):
    thread: Thread
    pid: int
    work: Callable[[], None]


_left: deque[_Left] = deque()


def leave_to(thread: Thread, work: Callable[[], None]) -> None:
    """Do ``work`` now if this is ``thread`` or ``thread`` has ended; otherwise queue it for ``catch_up``."""
    if _may_do(thread):
        work()
    else:
        _left.append(_Left(thread, os.getpid(), work))


def catch_up() -> None:
    """Do the work queued for this thread and for threads that have ended. Failures are logged."""
    for _ in range(len(_left)):
        try:
            left = _left.popleft()
        except IndexError:
            return  # Another thread took the last entry.
        if left.pid != os.getpid():
            continue  # Queued before a fork: the work belongs to the parent.
        if not _may_do(left.thread):
            _left.append(left)
            continue
        try:
            left.work()
        except StoreError as error:
            _log.warning("a store that another thread had closed could not be closed cleanly: %s", error)


def _may_do(thread: Thread) -> bool:
    return thread is current_thread() or not thread.is_alive()
