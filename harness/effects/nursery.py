"""Trials in children forked from a warm parent: thousands of processes without starting the interpreter for each."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import harness
from harness.effects.library import recorder_library

CLOCK_TIMES = 6
"""A child that sleeps is killed when so many times its deadline has passed by the clock."""
_MAPPED_BYTES = str(256 << 10)
"""The C library maps what is larger. Left to itself it takes such memory from the heap after a while, and writes zeros
into all of it: two megabytes whenever LMDB is opened again. Source: mallopt(3), "M_MMAP_THRESHOLD"."""
_ANSWER_S, _END_S = 60.0, 15.0
"""How long the warm parent may take to begin, and to answer beyond what a child may take; and to end."""


class NurseryError(Exception):
    """The warm parent itself has failed: no verdict on any trial. Look at its complaint and start another nursery."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended, and what it had to say."""

    status: int | None
    """Its exit status: 0 where the function returned, 1 where it raised; None where a signal ended it."""
    signal: int | None
    """The signal that ended it: SIGKILL for a planned kill, and at the deadline."""
    timed_out: bool
    """Whether it was killed at its deadline, of its own time or by the clock."""
    result: Any
    """What the function returned, as JSON carries it; None where it did not."""
    error: str
    """What the function raised, "TYPE: MESSAGE", or ""."""
    complaint: str
    """The end of what it wrote to stdout and stderr."""


class Nursery:
    """Runs functions in forked children, one after the other, from one thread; use it in a ``with`` block.

    Each child has a process group of its own, so that nothing it started outlives it. Children start in the nursery's
    folder, made below ``within`` (unless given, where temporary folders are), and see a clean environment. ``preload``
    gives them the recorder (see steering).

    Raises: ConfigError where the recorder can't be had.
    """

    def __init__(self, *, preload: bool = True, within: Path | None = None) -> None:
        self._preload, self._within = preload, within
        self._start()

    def _start(self) -> None:
        environment = _environment()
        if self._preload:
            environment["LD_PRELOAD"] = str(recorder_library())
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the nursery.
        self._heard = bytearray()
        self._parent = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.effects.warm_parent", str(self._within or tempfile.gettempdir())],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
        )

    def restart(self) -> None:
        """Go on with a new warm parent and an empty folder of another name."""
        self.close()
        self.__dict__.pop("folder", None)
        self._start()

    @cached_property
    def folder(self) -> Path:
        """A folder for what children work on. It goes with the nursery, also where this process is killed.

        Raises: NurseryError where the warm parent could not begin.
        """
        [told] = self._exchange(b"", 1, _ANSWER_S, "it began")
        return Path(os.fsdecode(told))

    def run(self, function: str, arguments: Mapping[str, Any], *, deadline_s: float, shared: bool = False) -> Outcome:
        """Call ``function``, "module:name", with ``arguments`` as keywords, in a child, and wait for what comes of it.

        Arguments and what it returns pass as JSON. The module is imported in the warm parent, once. Each call has a
        fresh child, but for ``shared`` ones: these follow each other in one as long as they return, which saves the
        fork. Whatever one of them leaves in its process the next one finds, unless it is retired.

        ``deadline_s`` is the child's own time, of all its threads, so that it is not late where others have the
        processors. One that sleeps, or waits for another process, has ``CLOCK_TIMES`` as much by the clock.

        Raises: NurseryError where the warm parent is gone or does not answer, or the module can't be imported.
        """
        clock_s = CLOCK_TIMES * deadline_s
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
            raise NurseryError(f"{function} can't be run: {facts['refused']}")
        return Outcome(result=result, **facts)

    def prepare(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Call ``function`` in the warm parent itself: what it keeps in memory every later child begins with.

        It opens nothing and starts no thread. Raises: as ``run``; also where it raises.
        """
        facts, _ = self._ask({"prepare": function, "function": function, "arguments": dict(arguments)}, 0)
        if "refused" in facts:
            raise NurseryError(f"{function} can't be run: {facts['refused']}")

    def retire(self) -> None:
        """End the child of the shared calls, if there is one: the next one has a fresh child.

        Raises: NurseryError where the warm parent is gone or does not answer.
        """
        self._ask({"retire": True}, 0)

    def _ask(self, request: Mapping[str, Any], clock_s: float) -> tuple[dict[str, Any], Any]:
        assert self.folder
        doing = f"it ran {request.get('function', 'nothing')}"
        facts, result = self._exchange(json.dumps(request).encode() + b"\n", 2, clock_s + _ANSWER_S, doing)
        return json.loads(facts), json.loads(result)

    def _exchange(self, said: bytes, num_lines: int, seconds: float, doing: str) -> list[bytes]:
        """Say it to the warm parent, and return the lines it answers. What is stopped or wedged is waited for no more.

        Raises: NurseryError, and then the warm parent is no more.
        """
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        inlet, outlet = self._parent.stdin.fileno(), self._parent.stdout.fileno()
        until, left = time.monotonic() + seconds, memoryview(said)
        try:
            while self._heard.count(b"\n") < num_lines:
                readable, writable, _ = select.select(
                    [outlet], [inlet] if left else [], [], max(0.0, until - time.monotonic())
                )
                if not readable and not writable:
                    self._kill()
                    raise NurseryError(
                        f"the warm parent of the trials gave no answer for {seconds:.0f} s when {doing}, and was "
                        "killed: it was stopped, or the machine has no time for it. Give it some, and run this again"
                    )
                if writable:
                    left = left[os.write(inlet, left[: select.PIPE_BUF]) :]
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

    def _has_died(self, when: str) -> NurseryError:
        self._complaints.seek(0)
        complaint = self._complaints.read().decode(errors="replace")[-2000:]
        return NurseryError(f"the warm parent of the trials has died when {when}: {complaint}")

    def _kill(self) -> None:
        self._parent.kill()
        self._parent.wait()

    def close(self) -> None:
        """End the warm parent, and the child it may be waiting for."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        folder = None
        with suppress(NurseryError):
            folder = self.folder
        with suppress(BrokenPipeError):
            self._parent.stdin.close()
        try:
            # It kills its child, removes the folder and ends: whatever may become of this process meanwhile.
            self._parent.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._kill()
        # Where it could not.
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


def _environment() -> dict[str, str]:
    # Nothing of the surrounding environment but what the interpreter itself may need to start.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    code = str(Path(harness.__file__).parents[1])
    fixed = {"PYTHONPATH": code, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    return kept | fixed | {"MALLOC_MMAP_THRESHOLD_": _MAPPED_BYTES}
