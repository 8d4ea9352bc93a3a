"""The fork server process: it reads requests and writes answers.

The command is ``python -m harness.processes.fork_server_main FOLDER [bare]``. First it reports the folder that it has
made below FOLDER. A request is one line, an answer two. It has imported every engine and opened none: a child that is
forked after RocksDB was opened hangs. A bare one has no engine: its children are measured, so each imports its own, as
a new process does. It runs no thread of its own. It ends, and removes the folder, when its standard input is closed or
its starter dies. Its children die with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stdout, suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from harness.processes.fork_server import BARE
from stores.registry import backends

_COMPLAINT_BYTES = 2000
_SHARED_RUNS_MAX = 200
"""A shared child is replaced after this many requests, so that memory that it may accumulate is bounded."""
_PR_SET_PDEATHSIG = 1
"""Source: prctl(2)."""
_CPUCLOCK_SCHED = 2
"""The clock of all threads of a process, by its ID. Source: clock_getcpuclockid(3), as glibc and musl implement it."""
_PROCESSORS = os.cpu_count() or 1
_LOOK_S = 0.05
"""The shortest interval between checks of a child's CPU time."""
_prctl = ctypes.CDLL(None).prctl


def main() -> None:
    """Answer requests until standard input ends."""
    within, *kind = sys.argv[1:]
    folder = tempfile.mkdtemp(prefix="fork-server-", dir=within)
    try:
        _answer_requests(folder, bare=kind == [BARE])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer_requests(folder: str, *, bare: bool) -> None:
    os.chdir(folder)
    os.environ["TMPDIR"] = folder
    # Else pyarrow starts a thread when it is imported, which a fork would leave behind.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    _tell(os.fsencode(folder))
    if not bare:
        _load_engines()
    gc.freeze()
    children = _Children(learns=not bare)
    for line in iter(sys.stdin.buffer.readline, b""):
        if not line.endswith(b"\n"):
            # Its starter died while it wrote this line.
            break
        request = json.loads(line)
        if "retire" in request:
            children.retire()
            answer = _Answer({})
        elif "prepare" in request:
            refusal = _refusal(request)
            # Standard output is reserved for answers.
            with redirect_stdout(sys.stderr):
                loaded = {} if refusal else _carry_out(request)[0]
            answer = _Answer(refusal or ({"refused": loaded["error"]} if loaded["error"] else {}))
            gc.freeze()
        else:
            refusal = _refusal(request)
            answer = _Answer(refusal) if refusal else children.run(request)
        _tell(json.dumps(answer.facts).encode(), answer.body)
    children.retire()


def _load_engines() -> None:
    for backend in backends().values():
        backend.load()
    for heavy in ("numpy", "pandas"):
        # sqlite-utils imports them if they are installed. They start threads, and add 80 MB that each fork must map.
        sys.modules[heavy] = None  # type: ignore[assignment]


def _tell(*lines: bytes) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
        sys.stdout.buffer.flush()


class _Answer(NamedTuple):
    """The two lines of an answer: facts about a request, and the function's result as the child wrote it."""

    facts: dict[str, Any]
    body: bytes = b"null"


class _Children:
    """The children: one for each request, and at most one that waits for the next shared request.

    If this process ``learns``, it imports what a child had to import, so that later ones have it.
    """

    def __init__(self, *, learns: bool) -> None:
        self._learns = learns
        self._shared: _Child | None = None

    def run(self, request: dict[str, Any]) -> _Answer:
        """Run ``request`` in a child, and return the answer."""
        child = (self._shared if request["shared"] else None) or _Child()
        if request["shared"]:
            self._shared = child
        answer = child.run(request)
        if not child.lives and child is self._shared:
            self._shared = None
        imported = answer.facts.pop("imported", [])
        if self._learns:
            _learn(imported)
        return answer

    def retire(self) -> None:
        """End the child that waits."""
        if self._shared is not None:
            self._shared.end()
            self._shared = None


def _refusal(request: dict[str, Any]) -> dict[str, str] | None:
    try:
        module, _, name = request["function"].partition(":")
        getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        return {"refused": _named(error)}
    if len(os.listdir("/proc/self/task")) > 1:
        return {"refused": "importing its module has started threads, which a fork would leave behind"}
    return None


class _Child:
    """A forked process. It carries out one request, or shared requests until one of them fails."""

    def __init__(self) -> None:
        parent = os.getpid()
        self._said = os.memfd_create("complaint")
        # Truncated before each request. With O_APPEND each write goes to the end.
        fcntl.fcntl(self._said, fcntl.F_SETFL, os.O_APPEND)
        self._outlet, answers = os.pipe()
        requests, self._inlet = os.pipe()
        self._number = os.fork()
        if self._number == 0:
            _be_the_child(parent, requests, answers, self._said)
        os.close(answers)
        os.close(requests)
        os.set_blocking(self._outlet, False)
        self._ended = os.pidfd_open(self._number)
        self._runs = 0
        self.lives = True

    def run(self, request: dict[str, Any]) -> _Answer:
        """Carry out ``request``. The child survives only if it returned a result and may get another request."""
        self._runs += 1
        goes_on = request["shared"] and self._runs < _SHARED_RUNS_MAX
        os.ftruncate(self._said, 0)
        answer = bytearray()
        timed_out, code = False, 0
        try:
            with suppress(BrokenPipeError):
                _write(self._inlet, json.dumps({**request, "goes_on": goes_on}).encode() + b"\n")
            timed_out = self._await(answer, request["deadline_s"], request["clock_s"], goes_on=goes_on)
        finally:
            if not (goes_on and _is_result(answer)):
                code = self.end(answer)
        head, _, body = bytes(answer).partition(b"\n")
        if not body.endswith(b"\n"):
            head, body = b"{}", b"null"  # The child ended while it answered.
        facts: dict[str, Any] = {"error": "", **json.loads(head)}
        length = os.fstat(self._said).st_size
        complaint = os.pread(self._said, _COMPLAINT_BYTES, max(0, length - _COMPLAINT_BYTES))
        if not self.lives:
            os.close(self._said)
        facts |= {
            "status": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "timed_out": timed_out,
            "complaint": complaint.decode(errors="replace").strip(),
        }
        return _Answer(facts, body.rstrip(b"\n") or b"null")

    def end(self, answer: bytearray | None = None) -> int:
        """Kill the child if it has not ended, append the rest of its output to ``answer``, and return its exit code."""
        # Kill the group too: no process that the child started may outlive it. Until waitpid its ID cannot be reused.
        _kill(self._number)
        code = os.waitstatus_to_exitcode(os.waitpid(self._number, 0)[1])
        _drain(self._outlet, bytearray() if answer is None else answer)
        for descriptor in (self._outlet, self._inlet, self._ended):
            os.close(descriptor)
        self.lives = False
        return code

    def _await(self, answer: bytearray, own_s: float, clock_s: float, *, goes_on: bool) -> bool:
        """Wait until the child ends, or returns a result if it ``goes_on``. Return True if a deadline came first.

        ``own_s`` is the deadline of CPU time, ``clock_s`` the one by the clock.
        """
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        poll.register(self._outlet, select.POLLIN)
        # Only the end of standard input is an event here: the process that started this one is gone.
        poll.register(0, 0)
        own_end, clock_end = self._own_time() + own_s, time.monotonic() + clock_s
        own_left_s = own_s
        while True:
            clock_left_s = clock_end - time.monotonic()
            # The child cannot use up its CPU time faster than on all processors at once.
            wait_s = max(0.0, min(clock_left_s, max(own_left_s / _PROCESSORS, _LOOK_S)))
            ready = [descriptor for descriptor, _ in poll.poll(wait_s * 1000)]
            if self._outlet in ready and not _drain(self._outlet, answer):
                poll.unregister(self._outlet)
            if self._ended in ready or 0 in ready or (goes_on and _is_result(answer)):
                return False
            own_left_s = own_end - self._own_time()
            if own_left_s <= 0 or clock_end <= time.monotonic():
                return True

    def _own_time(self) -> float:
        """Return the CPU time that the child has used so far, in seconds."""
        return time.clock_gettime(~self._number << 3 | _CPUCLOCK_SCHED)


def _is_result(answer: bytearray) -> bool:
    head, _, body = answer.partition(b"\n")
    return body.endswith(b"\n") and not json.loads(head)["error"]


def _learn(imported: list[str]) -> None:
    """Import the modules that a child had to import, so that later ones have them: some engines import when opened."""
    for module in imported:
        # A module that cannot be imported by itself does no harm: the import only saves time.
        with suppress(Exception):
            import_module(module)


def _be_the_child(parent: int, requests: int, answers: int, said: int) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, descriptor in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(source, descriptor)
        with open(requests, "rb", closefd=False) as lines:
            for line in lines:
                request = json.loads(line)
                facts, result = _carry_out(request)
                sys.stdout.flush()
                sys.stderr.flush()
                _write(answers, f"{json.dumps(facts)}\n{json.dumps(result)}\n".encode())
                if facts["error"] or not request["goes_on"]:
                    status = int(bool(facts["error"]))
                    break
    finally:
        os._exit(status)


def _carry_out(request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    module, _, name = request["function"].partition(":")
    before = set(sys.modules)
    try:
        result = getattr(import_module(module), name)(**request["arguments"])
    except BaseException as error:
        sys.stdout.flush()
        traceback.print_exc()
        return {"error": _named(error)}, None
    return {"error": "", "imported": [each for each in sys.modules if each not in before]}, result


def _write(descriptor: int, text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _drain(outlet: int, answer: bytearray) -> bool:
    """Read all available output. Return False at its end."""
    try:
        while more := os.read(outlet, 1 << 16):
            answer += more
    except BlockingIOError:
        return True
    return False


def _kill(child: int) -> None:
    for send in (os.killpg, os.kill):
        # The child may not have created its group yet.
        with suppress(ProcessLookupError):
            send(child, signal.SIGKILL)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
