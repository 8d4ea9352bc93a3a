"""Work that only the thread of a store's writer may do, left to it by another thread that closes the store.

LMDB's write transaction holds a mutex of the thread that began it. Another thread can't release that, and closing the
environment then takes the mutex's memory from the list that the system keeps for the first thread: its next use of LMDB
ends the process. Source: pthread_mutexattr_setrobust(3); LMDB 0.9, ``mdb.c``, ``mdb_txn_end``, ``mdb_env_close0``.
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
    """Do ``work`` now if this is ``thread``, or if that has ended; else once it calls ``catch_up``, or has ended."""
    if _may_do(thread):
        work()
    else:
        _left.append(_Left(thread, os.getpid(), work))


def catch_up() -> None:
    """Do what was left to this thread, and to threads that have ended since. What fails there is logged."""
    for _ in range(len(_left)):
        try:
            left = _left.popleft()
        except IndexError:
            return  # Another thread has come first.
        if left.pid != os.getpid():
            continue  # In the child of a fork it is the parent's.
        if not _may_do(left.thread):
            _left.append(left)
            continue
        try:
            left.work()
        except StoreError as error:
            _log.warning("a store that another thread had closed could not be closed cleanly: %s", error)


def _may_do(thread: Thread) -> bool:
    return thread is current_thread() or not thread.is_alive()
