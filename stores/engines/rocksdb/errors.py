"""RocksDB's errors, which are texts, as those of a store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.process.descriptors import descriptors_lacking


def opening_error(error: Exception, path: Path) -> StoreError:
    text = str(error)
    damaged = text.startswith(("Corruption", "Invalid argument", "NotFound")) or "MANIFEST" in text or "CURRENT" in text
    if damaged and not _is_refused_by_system(text):
        return StoreCorruptedError(f"RocksDB refuses {path}: {text}. Wipe the store and restore it from its changelog")
    return StoreUnavailableError(f"RocksDB can't open {path}: {text}. {descriptors_lacking()}".rstrip())


def _is_refused_by_system(text: str) -> bool:
    """Return whether the operating system refused a call, so that the files need not be damaged."""
    return text.startswith("IO error") and any(
        os.strerror(number) in text for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)
    )


def reading_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    return StoreUnavailableError(f"RocksDB can't read: {text}. Close the store and open it again")


def writing_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    # After a failed write or sync RocksDB's handle is unusable, and its WAL may still have the batch.
    return CommitFailedError(
        f"RocksDB can't write: {text}. Close the store, open it again and continue from its committed offset",
        reopen=True,
    )
