"""The disk of an executor's local copies: an error of a store on it says if the disk is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stores.errors import StoreError, StoreLockedError, StoreUnavailableError

ROOM_BYTES = 1 << 20
"""A disk with less free space counts as full: engines allocate their files in pieces of up to this size."""


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Raise an error of this block as one that names the full disk of ``folder``, if it is full.

    Engines report a full disk in words of their own, some as an I/O error. Raises: StoreUnavailableError.
    """
    try:
        yield
    except StoreLockedError:
        raise
    except StoreError as error:
        free = _free_bytes(folder)
        if free is None or free >= ROOM_BYTES:
            raise
        raise StoreUnavailableError(
            f"No space left on device for the local copies in {folder} ({free:,} bytes are free): make room on this "
            f"executor, or give another folder as local. The state in the log is whole. {error}"
        ) from error


def _free_bytes(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
