"""The peak of a process's anonymous memory over a period, measured by another process.

Anonymous memory, not the resident size: the kernel may drop pages of a mapped file (all of an LMDB store). Linux keeps
no maximum of it, so it is sampled every millisecond. Another process samples, because a call that keeps Python's
interpreter lock, as an engine's write does, would hide its peak from a thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from select import select
from typing import Self

_EVERY_S = 1e-3


class MemoryWatch:
    """Watches this process from the beginning of the block until ``stop``. The watching process ends with the block."""

    def __enter__(self) -> Self:
        # Started by its path: it needs no other module of the harness, and starts quickly.
        command = [sys.executable, "-I", __file__]
        self._watch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell(str(os.getpid()))
        self._before_bytes = self._measured()
        return self

    def stop(self) -> int:
        """Return the largest number of bytes above that at the beginning."""
        self._tell("stop")
        return self._measured() - self._before_bytes

    def __exit__(self, *error: object) -> None:
        self._watch.kill()
        self._watch.wait()
        for stream in (self._watch.stdin, self._watch.stdout):
            assert stream is not None
            stream.close()

    def _tell(self, line: str) -> None:
        assert self._watch.stdin is not None
        self._watch.stdin.write(f"{line}\n".encode())
        self._watch.stdin.flush()

    def _measured(self) -> int:
        assert self._watch.stdout is not None
        return int(self._watch.stdout.readline())


def anonymous_bytes(pid: int) -> int:
    """Return the resident memory of the process that is not part of a file."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


def main() -> None:
    """Run the watching process until its input ends."""
    pid = int(sys.stdin.readline())
    most = anonymous_bytes(pid)
    print(most, flush=True)
    while not select([sys.stdin], [], [], _EVERY_S)[0]:
        most = max(most, anonymous_bytes(pid))
    print(max(most, anonymous_bytes(pid)), flush=True)


if __name__ == "__main__":
    main()
