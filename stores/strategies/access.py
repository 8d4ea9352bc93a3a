"""The right to use a store: who may call it, with which keys and values, and closings that are left to others.

The store and its parts share one ``Access``, so that no part refers back to the store.

``leave_to`` leaves work to the writer's thread when another thread closes the store. LMDB's write transaction holds a
robust mutex that only the thread that began it can release. If another thread closes the environment, the mutex's
memory is unmapped while the first thread's robust list still refers to it. The next use of LMDB on the first thread
then crashes the process.

A store whose description was refused stays open for its caller, and does not block its folder:
``over(open_store(...))`` that raises leaves nobody a reference by which the store could be closed.

Source: pthread_mutexattr_setrobust(3); LMDB 0.9, ``mdb.c``, ``mdb_txn_end``, ``mdb_env_close0``.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from threading import RLock, Thread, current_thread, get_ident
from types import TracebackType
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

from stores.contract.arguments import as_bytes, check_type
from stores.errors import StoreClosedError, StoreError, StoreUnavailableError, WrongThreadError
from stores.interface import KeyValueStore, TopicPartition

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
            task = _left.popleft()
        except IndexError:
            return  # Another thread took the last entry.
        if task.pid != os.getpid():
            continue  # Queued before a fork: the work belongs to the parent.
        if not _may_do(task.thread):
            _left.append(task)
            continue
        try:
            task.work()
        except StoreError as error:
            _log.warning("a store that another thread had closed could not be closed cleanly: %s", error)


def _may_do(thread: Thread) -> bool:
    return thread is current_thread() or not thread.is_alive()


_TOPIC_BYTES_MAX = 249
"""Source: Kafka's own limit (``Topic.MAX_NAME_LENGTH``). A name of this length fits into a meta key of every engine."""
OFFSET_BOUND = 1 << 63
"""The exclusive upper bound of offsets: they are stored as eight signed bytes."""


def check_bounds(start: object, end: object) -> None:
    """Check the bounds of a range: bytes or None. Raises: TypeError."""
    for bound in (start, end):
        if bound is not None:
            as_bytes("bound", bound)


def check_partition(partition: object) -> None:
    """Check that the offset of ``partition`` can be stored. Raises: TypeError, ValueError."""
    if not isinstance(partition, TopicPartition):
        raise TypeError(f"an offset belongs to a TopicPartition, not to {partition!r}")
    check_type(partition[0], str, "a topic is a str")
    check_type(partition[1], int, "a partition is an int")
    if not 0 <= partition[1] < 1 << 32:
        raise ValueError(f"a partition is 0 or more, and below 2**32, not {partition[1]}")
    if len(partition[0].encode()) > _TOPIC_BYTES_MAX:
        raise ValueError(f"a topic's name has up to {_TOPIC_BYTES_MAX} bytes, not {len(partition[0].encode())}")


def check_offset(offset: int) -> None:
    """Check an offset: 0 or more, and below ``OFFSET_BOUND``. Raises: TypeError, ValueError."""
    check_type(offset, int, "an offset is an int")
    if not 0 <= offset < OFFSET_BOUND:
        raise ValueError(f"an offset is 0 or more, and below 2**63, not {offset}")


class Access:
    """The checks of a store's calls. The writer is the thread that makes it."""

    def __init__(self, name: str, backend: str, max_key_bytes: int, max_value_bytes: int) -> None:
        self.name = name
        self._backend = backend
        self.max_key_bytes, self.max_value_bytes = max_key_bytes, max_value_bytes
        self.writer = get_ident()
        """The identifier of the writer's thread; 0 once the store is closed."""
        self.working = RLock()
        """Held while the writer's thread uses the engine for more than a lookup, and while the store is closed."""

    def __enter__(self) -> None:
        """Begin a block in which an error is StoreClosedError if another thread has closed the store meanwhile."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreUnavailableError):
            self.check_open()

    def check_open(self) -> None:
        """Raises: StoreClosedError."""
        if not self.writer:
            catch_up()
            raise StoreClosedError(f"store {self.name!r} is closed: open it again")

    def check_writer(self) -> None:
        """Check that this is the writer's thread. Raises: StoreClosedError, WrongThreadError."""
        if get_ident() != self.writer:
            self.check_open()
            raise WrongThreadError(
                f"store {self.name!r} is written by the thread that opened it: use read_only() on other threads"
            )

    def check_write(self, key: bytes, value: bytes | None) -> None:
        """Check a write. Raises: StoreClosedError, WrongThreadError, TypeError, ValueError."""
        self.check_writer()
        if not isinstance(key, bytes):
            as_bytes("key", key)
        if not key:
            raise ValueError("a key has at least one byte")
        if len(key) > self.max_key_bytes:
            raise ValueError(f"key of {len(key)} bytes: {self._backend} takes up to {self.max_key_bytes}")
        if value is not None:
            if not isinstance(value, bytes):
                as_bytes("value", value)
            if len(value) > self.max_value_bytes:
                raise ValueError(f"value of {len(value)} bytes: {self._backend} takes up to {self.max_value_bytes}")


class Accessed(Protocol):
    """A part of a store that has its access."""

    @property
    def access(self) -> Access:
        """The access of the store."""


Part = TypeVar("Part", bound=Accessed)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def while_open(
    method: Callable[Concatenate[Part, Arguments], Result],
) -> Callable[Concatenate[Part, Arguments], Result]:
    """Make a close on another thread wait until the writer's thread has finished ``method``.

    Raises: StoreClosedError if the store was closed first.
    """

    @wraps(method)
    def carried_out(self: Part, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        access = self.access
        # The check methods are called only if a check fails: each range delete and each list passes here.
        if get_ident() != access.writer:
            access.check_writer()
        with access.working:
            if not access.writer:
                access.check_open()
            return method(self, *args, **named)

    return carried_out


_folders: WeakKeyDictionary[KeyValueStore, Path] = WeakKeyDictionary()
_refused: dict[Path, KeyValueStore] = {}


def note_opened(path: Path, store: KeyValueStore) -> None:
    """Remember the folder of ``store``. A store in memory has none."""
    if store.persistent:
        _folders[store] = path.absolute()


def note_refused(store: KeyValueStore) -> None:
    """Let the next opening of the store's folder in this process close ``store``."""
    folder = _folders.get(store)
    if folder is not None:
        _refused[folder] = store


def close_refused(path: Path) -> None:
    """Close the store at ``path`` if it was refused. Raises as ``StateStore.close``."""
    if _refused:
        store = _refused.pop(path.absolute(), None)
        if store is not None:
            store.close()
