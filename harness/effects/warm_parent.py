"""The warm parent of a nursery: ``python -m harness.effects.warm_parent FOLDER ...``. Requests in, answers out.

Each is one line. It has imported every engine and opened none (after a fork with RocksDB opened the child hangs), and
runs no thread of its own. It ends with its standard input, closed by its starter or by the starter's death, and the
folders with it. Children die with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from stores.registry import backends

_COMPLAINT_BYTES = 2000
_PR_SET_PDEATHSIG = 1
"""Source: prctl(2)."""
_prctl = ctypes.CDLL(None).prctl


def main() -> None:
    """Answer requests until standard input ends."""
    for backend in backends().values():
        backend.load_engine()
        backend.load_strategy()
    for heavy in ("numpy", "pandas"):
        # sqlite-utils takes them along where it finds them, and with them threads and 80 MB for each fork to map.
        sys.modules[heavy] = None  # type: ignore[assignment]
    gc.freeze()
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        answer = _refusal(request) or _run(request)
        with suppress(BrokenPipeError):
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
            sys.stdout.buffer.flush()
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


def _refusal(request: dict[str, Any]) -> dict[str, str] | None:
    try:
        module, _, name = request["function"].partition(":")
        getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        return {"refused": _named(error)}
    if len(os.listdir("/proc/self/task")) > 1:
        return {"refused": "importing its module has started threads, which a fork would leave behind"}
    return None


def _run(request: dict[str, Any]) -> dict[str, Any]:
    parent = os.getpid()
    said = os.memfd_create("complaint")
    outlet, inlet = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_child(parent, request, inlet, said)
    os.close(inlet)
    try:
        told, timed_out, wait_status = _await(child, outlet, time.monotonic() + request["deadline_s"])
        length = os.fstat(said).st_size
        complaint = os.pread(said, _COMPLAINT_BYTES, max(0, length - _COMPLAINT_BYTES))
    finally:
        os.close(outlet)
        os.close(said)
    code = os.waitstatus_to_exitcode(wait_status)
    answer: dict[str, Any] = {"result": None, "error": ""}
    if told.endswith(b"\n"):
        answer |= json.loads(told)
        _learn(answer.pop("imported", []))
    return answer | {
        "status": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "timed_out": timed_out,
        "complaint": complaint.decode(errors="replace").strip(),
    }


def _learn(imported: list[str]) -> None:
    """Import what a child had to import for itself, so that the next ones need not: some engines do it when opened."""
    for module in imported:
        # What can't be imported by itself is no loss: it was only to save time.
        with suppress(Exception):
            import_module(module)


def _be_the_child(parent: int, request: dict[str, Any], inlet: int, said: int) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, descriptor in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(source, descriptor)
        module, _, name = request["function"].partition(":")
        before = set(sys.modules)
        try:
            result = getattr(import_module(module), name)(**request["arguments"])
            text = json.dumps({"result": result, "imported": [each for each in sys.modules if each not in before]})
            status = 0
        except BaseException as error:
            sys.stdout.flush()
            traceback.print_exc()
            text = json.dumps({"error": _named(error)})
        sys.stdout.flush()
        sys.stderr.flush()
        left = memoryview(text.encode() + b"\n")
        while left:
            left = left[os.write(inlet, left) :]
    finally:
        os._exit(status)


def _await(child: int, outlet: int, deadline: float) -> tuple[bytes, bool, int]:
    """What the child said, whether it was killed at the deadline, and its wait status."""
    told = bytearray()
    timed_out = False
    os.set_blocking(outlet, False)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(outlet, select.POLLIN)
    # No event but its end: whoever started this parent is gone then.
    poll.register(0, 0)
    try:
        while True:
            left_s = deadline - time.monotonic()
            ready = [descriptor for descriptor, _ in poll.poll(max(0, left_s) * 1000)] if left_s > 0 else []
            if outlet in ready and not _drain(outlet, told):
                poll.unregister(outlet)
            timed_out = not ready
            if timed_out or ended in ready or 0 in ready:
                break
    finally:
        os.close(ended)
        # The group too: nothing that the child started may outlive it. Until it is waited for, its number is its own.
        _kill(child)
        wait_status = os.waitpid(child, 0)[1]
    _drain(outlet, told)
    return bytes(told), timed_out, wait_status


def _drain(outlet: int, told: bytearray) -> bool:
    """Take what there is; False at its end."""
    try:
        while more := os.read(outlet, 1 << 16):
            told += more
    except BlockingIOError:
        return True
    return False


def _kill(child: int) -> None:
    for send in (os.killpg, os.kill):
        # It may not have made its group yet.
        with suppress(ProcessLookupError):
            send(child, signal.SIGKILL)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
