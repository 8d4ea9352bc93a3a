"""The file descriptors of this process, which each open store takes some of."""

from __future__ import annotations

import errno
import os
import resource

_SPARE = 8
"""With fewer left than these, opening a store or an iterator may fail."""


def descriptors_lacking() -> str:
    """Return what to do where this process has next to no file descriptors left, "" where it has some.

    Asked after a failure: an engine's own error may not say what it lacked, and it has given back what it got.
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
