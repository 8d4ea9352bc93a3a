"""A process that holds a store, executes commands, and can be killed with SIGKILL at any moment.

Commands and answers are pickled. It ends with the process that started it, and is
killed if an answer does not come in time. It is forked from a server that has imported every engine and opened none
(``multiprocessing``'s "forkserver"): starting an interpreter takes ten times as long.
"""

from __future__ import annotations

import os
import signal
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from stores import Durability, KeyValueIterator, KeyValueStore, StoreError, TopicPartition, failpoints, open_store
from stores.registry import backend_named

DEADLINE_S = 600.0
_CONTEXT = get_context("forkserver")
# The second, which is not for other packages, need not be there.
_CONTEXT.set_forkserver_preload(["stores.tests.preloaded", "stores.tests.tasks.preloaded"])


class ProcessDied(Exception):
    """The process ended, by ``status``, before it answered."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"ended with status {status}")
        self.status = status


def pipe() -> tuple[Connection, Connection]:
    """Return both ends of a pipe; the second can be given to a process."""
    return _CONTEXT.Pipe()


def forked(target: Callable[..., object], *arguments: object) -> ForkServerProcess:
    """Start a process in which ``target``, a function of a module, is called; it ends with this one."""
    process = _CONTEXT.Process(target=target, args=arguments, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        # Read by the C library when the server starts. Further arenas would take addresses that tests limit.
        patch.setenv("MALLOC_ARENA_MAX", "1")
        process.start()
    return process


def kill_at(failpoint: str, hit: int) -> None:
    """Kill this process when it reaches ``failpoint`` for the ``hit``-th time."""
    left = hit

    def die() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.arm(failpoint, die)


class StoreProcess:
    """Starts at once. ``with`` it: afterwards the process is gone."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self.timed_out = False
        self._connection, theirs = pipe()
        self._process = forked(_serve, theirs)
        theirs.close()

    def call(self, command: str, *arguments: Any, **named: Any) -> Any:
        """The answer to a command of ``_Commands`` or, if it has none of the name, to the store's method.

        Raises: what the command raised, if it is of ``stores`` or a ValueError or TypeError; ProcessDied.
        """
        self.send(command, *arguments, **named)
        return self.receive()

    def send(self, command: str, *arguments: Any, **named: Any) -> None:
        """Begin a ``call``; ``receive`` ends it."""
        try:
            self._connection.send((command, arguments, named))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ProcessDied(self._ended()) from error

    def receive(self) -> Any:
        """The answer to what was sent. Raises as ``call``."""
        try:
            if not self._connection.poll(self._deadline_s):
                self.timed_out = True
                self._process.kill()
            raised, answer = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise ProcessDied(self._ended()) from error
        if raised:
            raise answer
        return answer

    def call_until_killed(self, command: str, *arguments: Any, **named: Any) -> None:
        """As ``call``, for a command during which the process kills itself, at a failpoint. Fails if it does not."""
        try:
            self.call(command, *arguments, **named)
        except ProcessDied as died:
            assert died.status == -signal.SIGKILL, f"the process ended with status {died.status}"
            assert not self.timed_out, "the process did not answer in time"
            return
        raise AssertionError(f"{command} ended: the failpoint was not reached")

    def kill(self) -> None:
        """Kill it now, and wait for its end."""
        self._process.kill()
        self._process.join()

    def _ended(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process.pid is not None
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._connection.close()


class _Commands:
    """The commands of the process besides the store's methods."""

    def __init__(self) -> None:
        self.store: KeyValueStore | None = None
        self.held: KeyValueIterator | None = None

    def open(self, backend: str, path: Path, durability: Durability, options: Mapping[str, object]) -> None:
        """Open a store."""
        self.store = open_store(backend, path, durability=durability, options=options)

    def scan(self) -> list[tuple[bytes, bytes]]:
        """All pairs there are."""
        assert self.store is not None
        return list(self.store.all())

    def hold_scan(self) -> None:
        """Begin a scan, and keep it open."""
        assert self.store is not None
        self.held = self.store.all()

    def drop(self) -> None:
        """Close the store, if one was ever opened, whatever that raises."""
        if self.store is not None:
            with suppress(StoreError):
                self.store.close()

    def get_fact(self, name: str) -> Any:
        """A property of the store."""
        return getattr(self.store, name)

    def split(self, marks: Mapping[str, bytes | None]) -> None:
        """Split the records of the store into two formats."""
        assert self.store is not None
        self.store.timestamps.split(marks)

    def kill_at(self, failpoint: str, after: int = 0) -> None:
        """Kill this process when it reaches ``failpoint`` again, having passed it ``after`` times."""
        kill_at(failpoint, after + 1)

    def load_backend(self, name: str) -> None:
        """Import a backend: its failpoints are known from then on."""
        assert backend_named(name).failpoints is not None

    def set_constant(self, module: str, name: str, value: object) -> None:
        """Change a constant of a module."""
        __import__(module)
        assert hasattr(sys.modules[module], name)
        setattr(sys.modules[module], name, value)

    def limit(self, resource_name: str, size: int) -> None:
        """Lower a limit of the process (``RLIMIT_AS``, ``RLIMIT_FSIZE``); the signal that goes with it is ignored."""
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        kind = getattr(resource, resource_name)
        resource.setrlimit(kind, (size, resource.getrlimit(kind)[1]))

    def limit_memory(self, room_bytes: int, mapped_bytes: int = 0) -> int:
        """Allow this process ``room_bytes`` beyond what it has mapped (``RLIMIT_AS``, ``RLIMIT_DATA``), and
        ``mapped_bytes`` more for maps of files, which take addresses and no memory.

        Returns how many bytes in one piece it can have then, to within a MiB: some of what is mapped is free.
        """
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        sizes = {words[0]: int(words[1]) << 10 for words in lines if words[0] in ("VmSize:", "VmData:")}
        self.limit("RLIMIT_AS", sizes["VmSize:"] + room_bytes + mapped_bytes)
        self.limit("RLIMIT_DATA", sizes["VmData:"] + room_bytes)
        return bisect_left(range(1 << 12), True, key=lambda mib: not _can_allocate(mib << 20)) << 20

    def put_many(self, first: int, end: int, value: bytes) -> None:
        """Put ``value``, each time in memory of its own, under the numbers from ``first`` up to ``end``."""
        assert self.store is not None
        for number in range(first, end):
            self.store.put(b"%08d" % number, bytes(bytearray(value)))

    def commit_numbers(self, first: int, end: int, keys: int, padding: bytes) -> None:
        """Commit each number by itself: under the key that is its rest by ``keys``, as offset and as position."""
        assert self.store is not None
        for number in range(first, end):
            self.store.put(b"%d" % (number % keys), b"%d:%b" % (number, padding))
            self.store.advance_position(TopicPartition("input", 0), number)
            self.store.commit({TopicPartition("changelog", 0): number})


def _can_allocate(size: int) -> bool:
    try:
        return len(bytearray(size)) == size
    except MemoryError:
        return False


def _serve(connection: Connection) -> None:
    commands = _Commands()
    while True:
        try:
            command, arguments, named = connection.recv()
        except EOFError:
            return
        try:
            target = commands if hasattr(commands, command) else commands.store
            result: tuple[bool, Any] = (False, getattr(target, command)(*arguments, **named))
        except Exception as error:
            result = (True, _portable(error))
        connection.send(result)


def _portable(error: Exception) -> Exception:
    if isinstance(error, (StoreError, ValueError, TypeError)):
        return error
    return AssertionError(f"leaked: {type(error).__module__}.{type(error).__name__}: {error}")
