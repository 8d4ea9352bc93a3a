"""The user's choice: where snapshots are, when they are taken, and how many are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import BoundedSemaphore, Event, Lock
from time import monotonic, thread_time

from stores.changed_keys import KeyRoom
from stores.contract.arguments import check_number, check_share
from stores.errors import ConfigError
from stores.files.folder import Folder, PutIfAbsent, open_folder

INTERVAL_MS, KEEP, GRACE_MS, THREADS, CPU_SHARE = 600_000, 2, 3_600_000, 4, 0.1
AT_ONCE_MAX = 2
"""The most snapshots of a process that are copied and sent at a time. Others begin after a later commit."""


class Pace:
    """A limit on what all snapshots of a process use in a second, None for none. For any thread.

    It counts bytes that are sent, or the seconds that a processor works for them.
    """

    def __init__(self, max_per_s: float | None) -> None:
        self._max_per_s = max_per_s
        self._lock = Lock()
        self._free_at_s = 0.0
        """When all that was taken has had its time."""

    def take(self, amount: float, ended: Event) -> None:
        """Wait until all that was taken before has had its time, or ``ended`` is set. Then take ``amount``."""
        if self._max_per_s is None:
            return
        with self._lock:
            now_s = monotonic()
            begin_s = max(now_s, self._free_at_s)
            self._free_at_s = begin_s + amount / self._max_per_s
        ended.wait(begin_s - now_s)

    @contextmanager
    def work(self, ended: Event) -> Iterator[None]:
        """Take the processor's time that this thread uses in the block, at its end."""
        began_s = thread_time()
        yield
        self.take(thread_time() - began_s, ended)


@dataclass(frozen=True)
class Snapshots:
    """Snapshots of stores by files, in ``location``: a path, or a URI of ``pyarrow.fs`` such as ``s3://bucket/path``.

    All workers of an application name the same location, and it may have several applications. An object store needs
    ``put_if_absent``: called with a path, as ``pyarrow.fs`` has it, and bytes, it puts an object and returns True, or
    returns False if there is one.

    Raises: ConfigError, TypeError.
    """

    location: str | os.PathLike[str]
    put_if_absent: PutIfAbsent | None = None
    interval_ms: int = INTERVAL_MS
    """The least time between the beginnings of two snapshots of a store. The first one comes after one interval. 0
    takes one after each commit, once the one before is in place."""
    keep: int = KEEP
    """The snapshots of each store that are kept, 1 or more."""
    grace_ms: int = GRACE_MS
    """The time for which nothing is removed that an upload or a restore of another process may need. An upload or a
    restore that takes longer may fail, and is then made again."""
    threads: int = THREADS
    """The parts of files that are sent or fetched at a time, for each store."""
    max_bytes_per_s: int | None = None
    """The limit of this process on what is sent, None for none."""
    cpu_share: float | None = CPU_SHARE
    """The share of one processor that this process reads, hashes and sends with, None for no limit. A larger one ends
    snapshots earlier, and slows the tasks meanwhile."""

    def __post_init__(self) -> None:
        check_number("interval_ms", self.interval_ms, "0 or more", 0)
        check_number("keep", self.keep, "1 or more", 1)
        check_number("grace_ms", self.grace_ms, "0 or more", 0)
        check_number("threads", self.threads, "1 or more", 1)
        if self.max_bytes_per_s is not None:
            check_number("max_bytes_per_s", self.max_bytes_per_s, "1 or more, or None", 1)
        if self.cpu_share is not None:
            check_share("cpu_share", self.cpu_share)
        if self.put_if_absent is not None and not callable(self.put_if_absent):
            raise TypeError(f"put_if_absent is a function, not {type(self.put_if_absent).__name__}")
        if not isinstance(self.location, str | os.PathLike):
            raise TypeError(f"the location of snapshots is a path or a URI, not {type(self.location).__name__}")
        if not os.fspath(self.location):
            raise ConfigError("the location of snapshots is empty: name a folder, or a URI")
        _ = self.folder

    @cached_property
    def folder(self) -> Folder:
        """The folder at the location."""
        return open_folder(self.location, self.put_if_absent)

    @cached_property
    def bandwidth(self) -> Pace:
        """The limit on what is sent, for all stores that share these settings."""
        return Pace(self.max_bytes_per_s)

    @cached_property
    def pace(self) -> Pace:
        """The limit on the processor's time, for all stores that share these settings."""
        return Pace(self.cpu_share)

    @cached_property
    def turns(self) -> BoundedSemaphore:
        """The turns of snapshots that are copied and sent at a time."""
        return BoundedSemaphore(AT_ONCE_MAX)

    @cached_property
    def key_room(self) -> KeyRoom:
        """The memory for changed keys of all stores that share these settings."""
        return KeyRoom()
