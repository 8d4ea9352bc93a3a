"""Trials in children forked from a fork server: thousands of processes without starting the interpreter for each."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import harness
from harness.budget import check_time, seconds_for
from harness.folders import quick_folder
from harness.io_trace.recorder import recorder_library
from stores.errors import ConfigError

BARE = "bare"
"""The argument of a fork server that imports no engine."""
CLOCK_TIMES = 6
"""A child that sleeps is killed after this many times its deadline, measured by the clock."""
_MAPPED_BYTES = str(256 << 10)
"""The C library maps larger allocations. By default it raises this threshold after some time, takes such memory from
the heap, and writes zeros into all of it: 2 MB whenever LMDB is opened again. Source: mallopt(3),
"M_MMAP_THRESHOLD"."""
_ANSWER_S, _END_S = 60.0, 15.0
"""The seconds that the fork server may take to begin, to answer beyond the time of a child, and to end."""


class ForkServerError(Exception):
    """The fork server itself has failed, so the trial has no verdict. Read its complaint, and restart it."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The end of a child, and its result."""

    status: int | None
    """The exit status: 0 if the function returned, 1 if it raised; None if a signal ended the child."""
    signal: int | None
    """The signal that ended the child: SIGKILL for a planned kill, and at the deadline."""
    timed_out: bool
    """True if the child was killed at its deadline of CPU time, or at the one by the clock."""
    result: Any
    """The value that the function returned, as JSON carries it; None if it did not return."""
    error: str
    """The exception of the function as "TYPE: MESSAGE", or ""."""
    complaint: str
    """The end of the child's output to stdout and stderr."""


class ForkServer:
    """Runs functions in forked children, one after the other, from one thread; use it in a ``with`` block.

    Each child has its own process group, so that no process that it started outlives it. Children start in the fork
    server's folder and see a clean environment. The folder is made below ``within``, or in the folder for temporary
    files. ``preload`` loads the recorder into them (see ``harness.io_trace.recorder``).

    Children have all engines in memory. With an ``environment`` of their own they are to be measured: they have none,
    and each imports what it needs, as in a new process.

    Raises: ConfigError if the recorder is not available.
    """

    def __init__(
        self, *, preload: bool = True, within: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._preload, self._within, self._own_environment = preload, within, environment
        self._start()

    def _start(self) -> None:
        environment = dict(self._own_environment or _environment())
        if self._preload:
            environment["LD_PRELOAD"] = str(recorder_library())
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the fork server.
        self._heard = bytearray()
        self._parent = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "harness.processes.fork_server_main",
                str(self._within or tempfile.gettempdir()),
                *([] if self._own_environment is None else [BARE]),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
        )

    def restart(self) -> None:
        """Start a new fork server, with an empty folder of another name."""
        self.close()
        self.__dict__.pop("folder", None)
        self._start()

    @cached_property
    def folder(self) -> Path:
        """The working folder of the children. It is removed with the fork server, even if this process is killed.

        Raises: ForkServerError if the fork server could not start.
        """
        [line] = self._exchange(b"", 1, _ANSWER_S, "it began")
        return Path(os.fsdecode(line))

    def run(
        self, function: str, arguments: Mapping[str, Any], *, deadline_s: float, shared: bool = False
    ) -> CallOutcome:
        """Call ``function``, "module:name", with ``arguments`` as keywords in a child, and wait for its end or result.

        Arguments and results pass as JSON. The module is imported once, in the fork server. Each call has a new child,
        except ``shared`` ones: these run in the same child as long as they return, which saves the fork. State that one
        of them leaves in the process is there for the next one, unless the child is retired.

        ``deadline_s`` is the CPU time of all threads of the child, so that it does not depend on the machine's load. A
        child that sleeps, or waits for another process, is killed after ``CLOCK_TIMES`` as much by the clock.

        Raises: ForkServerError if the fork server has died or does not answer, or the module cannot be imported;
        TimeOverError, see ``ended_by``.
        """
        clock_s = seconds_for(CLOCK_TIMES * deadline_s)
        facts, result = self._ask(
            {
                "function": function,
                "arguments": dict(arguments),
                "deadline_s": deadline_s,
                "clock_s": clock_s,
                "shared": shared,
            },
            clock_s,
        )
        if "refused" in facts:
            raise ForkServerError(f"{function} can't be run: {facts['refused']}")
        if facts["timed_out"]:
            check_time()
        return CallOutcome(result=result, **facts)

    def prepare(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Call ``function`` in the fork server itself, so that every later child has its results in memory.

        It must not open anything or start a thread. Raises: as ``run``, and ForkServerError if the function raises.
        """
        facts, _ = self._ask({"prepare": function, "function": function, "arguments": dict(arguments)}, 0)
        if "refused" in facts:
            raise ForkServerError(f"{function} can't be run: {facts['refused']}")

    def retire(self) -> None:
        """End the child of the shared calls, if there is one. The next shared call has a new child.

        Raises: ForkServerError if the fork server has died or does not answer.
        """
        self._ask({"retire": True}, 0)

    def _ask(self, request: Mapping[str, Any], clock_s: float) -> tuple[dict[str, Any], Any]:
        assert self.folder
        doing = f"it ran {request.get('function', 'nothing')}"
        facts, result = self._exchange(json.dumps(request).encode() + b"\n", 2, clock_s + _ANSWER_S, doing)
        return json.loads(facts), json.loads(result)

    def _exchange(self, said: bytes, num_lines: int, seconds: float, doing: str) -> list[bytes]:
        """Send ``said`` to the fork server, and return its answer. Kill it if it does not answer in time.

        Raises: ForkServerError; the fork server is then dead.
        """
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        inlet, outlet = self._parent.stdin.fileno(), self._parent.stdout.fileno()
        until, unsent = time.monotonic() + seconds, memoryview(said)
        try:
            while self._heard.count(b"\n") < num_lines:
                readable, writable, _ = select.select(
                    [outlet], [inlet] if unsent else [], [], max(0.0, until - time.monotonic())
                )
                if not readable and not writable:
                    self._kill()
                    raise ForkServerError(
                        f"the fork server of the trials gave no answer for {seconds:.0f} s when {doing}, and was "
                        "killed: it was stopped, or the machine has no time for it. Give it some, and run this again"
                    )
                if writable:
                    unsent = unsent[os.write(inlet, unsent[: select.PIPE_BUF]) :]
                if readable:
                    more = os.read(outlet, 1 << 16)
                    if not more:
                        raise BrokenPipeError
                    self._heard += more
        except BrokenPipeError:
            raise self._has_died(doing) from None
        *lines, rest = bytes(self._heard).split(b"\n", num_lines)
        self._heard = bytearray(rest)
        return lines

    def _has_died(self, when: str) -> ForkServerError:
        self._complaints.seek(0)
        complaint = self._complaints.read().decode(errors="replace")[-2000:]
        return ForkServerError(f"the fork server of the trials has died when {when}: {complaint}")

    def _kill(self) -> None:
        self._parent.kill()
        self._parent.wait()

    def close(self) -> None:
        """End the fork server, and the child it may be waiting for."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        folder = None
        with suppress(ForkServerError):
            folder = self.folder
        with suppress(BrokenPipeError):
            self._parent.stdin.close()
        try:
            # It kills its child, removes the folder and ends, even if this process is killed meanwhile.
            self._parent.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._kill()
        # In case the fork server could not remove it.
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self._parent.stdout.close()
        self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def fork_server(
    *, preload: bool, within: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[ForkServer | None]:
    """Yield a fork server that lives as long as the block; None where it is not possible.

    Its folder is below ``within``, or in memory if there is room.
    """
    try:
        if not preload and sys.platform != "linux":
            raise ConfigError("processes are forked on Linux only")
        server = ForkServer(preload=preload, within=within or quick_folder(), environment=environment)
    except ConfigError:
        yield None
        return
    with server:
        yield server


def _environment() -> dict[str, str]:
    # Pass only those variables that the interpreter may need to start.
    variables = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    code = str(Path(harness.__file__).parents[1])
    fixed = {"PYTHONPATH": code, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    return variables | fixed | {"MALLOC_MMAP_THRESHOLD_": _MAPPED_BYTES}
