"""File descriptors of this process; each open store takes some."""

from __future__ import annotations

import errno
import os
import resource

_SPARE = 8
"""With fewer left than these, opening a store or an iterator may fail."""


def descriptors_lacking() -> str:
    """Return advice if this process has almost no file descriptors left, else "".

    Call it after a failure: an engine's own error may not say that it lacked descriptors, and the engine has closed
    those that it had opened.
    """
    opened: list[int] = []
    try:
        for _ in range(_SPARE):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return ""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"This process may open {soft:,} files and has them open: close stores or iterators, or raise the limit "
            f"('ulimit -n' before it starts, resource.setrlimit within it; up to {hard:,})"
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return ""
