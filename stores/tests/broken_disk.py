"""A disk that refuses what it is asked for, in place of a function of ``os`` or of the library."""

from __future__ import annotations

import errno
import os


def refuse(*_: object, **__: object) -> None:
    """Raise the error of a broken disk."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))
