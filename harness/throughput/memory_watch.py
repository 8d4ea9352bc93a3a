"""The most memory of its own that a process has for a while, looked at by another.

Anonymous memory, not the resident size: pages of a mapped file (all of an LMDB store) are the system's to drop. Linux
keeps no maximum of it, so it is looked at every millisecond; and by another process, because a call that keeps Python's
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
    """Watches this process, from entering it until ``stop``. Afterwards the process that did it is gone."""

    def __enter__(self) -> Self:
        # By its path: it needs nothing of the harness, and is there at once.
        command = [sys.executable, "-I", __file__]
        self._watch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell(str(os.getpid()))
        self._before_bytes = self._told()
        return self

    def stop(self) -> int:
        """The most bytes there were above those of the beginning."""
        self._tell("stop")
        return self._told() - self._before_bytes

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

    def _told(self) -> int:
        assert self._watch.stdout is not None
        return int(self._watch.stdout.readline())


def anonymous_bytes(pid: int) -> int:
    """What the process has in memory that is no page of a file."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


def main() -> None:
    """What the watching process does, to the end of its input."""
    pid = int(sys.stdin.readline())
    most = anonymous_bytes(pid)
    print(most, flush=True)
    while not select([sys.stdin], [], [], _EVERY_S)[0]:
        most = max(most, anonymous_bytes(pid))
    print(max(most, anonymous_bytes(pid)), flush=True)


if __name__ == "__main__":
    main()
