"""RocksDB's errors, which are texts, as those of a store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.process import descriptors_lacking

_REFUSALS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
)  # fmt: skip


def opening_error(error: Exception, path: Path) -> StoreError:
    text = str(error)
    damaged = text.startswith(("Corruption", "Invalid argument", "NotFound")) or "MANIFEST" in text or "CURRENT" in text
    if damaged and not _is_refused_by_system(text):
        return StoreCorruptedError(f"RocksDB refuses {path}: {text}. Wipe the store and restore it from its changelog")
    return StoreUnavailableError(f"RocksDB can't open {path}: {text}. {descriptors_lacking(text)}".rstrip())


def _is_refused_by_system(text: str) -> bool:
    """Return whether the operating system refused a call, so that the files need not be damaged."""
    # An error of CURRENT comes within another: "Invalid argument: Found options incompatible ...: IO error: ...".
    return "IO error" in text and any(os.strerror(number) in text for number in _REFUSALS)


def reading_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    return StoreUnavailableError(f"RocksDB can't read: {_advised(text)} Close the store and open it again")


def writing_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    # After a failed write or sync RocksDB's handle is unusable, and its WAL may still have the batch.
    return CommitFailedError(
        f"RocksDB can't write: {_advised(text)} Close the store, open it again and continue from its committed offset",
        reopen=True,
    )


def file_error(error: Exception, path: Path) -> CommitFailedError:
    """Return the error of a file that could not be written for a commit. The database has seen nothing of it."""
    return CommitFailedError(f"RocksDB can't write {path}: {_advised(str(error))} Remove the cause and commit again")


def _advised(text: str) -> str:
    """Return the sentence about an error, and one about the lack of descriptors if that is the cause."""
    return f"{text}. {descriptors_lacking(text)}." if os.strerror(errno.EMFILE) in text else f"{text}."
