"""File descriptors of this process; each open store takes some."""

from __future__ import annotations

import errno
import os
import resource

_SPARE = 8
"""With fewer left than these, opening a store or an iterator may fail."""


def descriptors_lacking(reason: str = "") -> str:
    """Return advice if this process has almost no file descriptors left, or had none by ``reason``; else "".

    Call it after a failure, with the engine's own error. That may not say that descriptors were lacking, and the engine
    may have closed those that it had opened.
    """
    if not (os.strerror(errno.EMFILE) in reason or _few_are_left()):
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"This process may open {soft:,} files, and too few of them are left: close stores or iterators, or raise the "
        f"limit ('ulimit -n' before it starts, resource.setrlimit within it; up to {hard:,})"
    )


def _few_are_left() -> bool:
    opened: list[int] = []
    try:
        for _ in range(_SPARE):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False
