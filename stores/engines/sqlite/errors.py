"""SQLite's errors as those of a store."""

from __future__ import annotations

from pathlib import Path

from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError, must_reopen
from stores.files.sqlite_library import Error, error_name
from stores.process import descriptors_lacking

READING_ERRORS: tuple[type[Exception], ...] = (*Error, TypeError)
"""The errors that a read of a damaged file may raise."""
_SYNCS = ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC")


def _is_damage(error: Exception) -> bool:
    # UnicodeDecodeError: damage may change the stored type of a value. The last one is the error of an exceeded
    # deadline, which a sound file never reaches.
    return isinstance(error, UnicodeDecodeError) or error_name(error).startswith(
        ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_INTERRUPT")
    )


def damage(error: Exception, file: Path) -> StoreError:
    return StoreCorruptedError(f"SQLite refuses {file}: {error}. Wipe the store and restore it from its changelog")


def opening_error(error: Exception, file: Path) -> StoreError:
    if _is_damage(error) or any(text in str(error) for text in ("no such table", "unsupported file format")):
        return damage(error, file)
    return StoreUnavailableError(f"SQLite can't open {file}: {error}. {descriptors_lacking(str(error))}".rstrip())


def reading_error(error: Exception, file: Path) -> StoreError:
    # TypeError: damage may change the stored type of a value. SQLITE_FULL: a read needs no disk space, so the error is
    # about a page that can't exist.
    if isinstance(error, TypeError) or _is_damage(error) or error_name(error) == "SQLITE_FULL":
        return damage(error, file)
    return StoreUnavailableError(f"SQLite can't read {file}: {error}. {descriptors_lacking(str(error))}".rstrip())


def aborted(reason: object, file: Path) -> StoreError:
    return must_reopen(f"SQLite has rolled back the transaction on {file}: {reason}. Correct the cause")


def writing_error(error: Exception, file: Path) -> StoreError:
    if _is_damage(error):
        return damage(error, file)
    if error_name(error).startswith(_SYNCS):
        # The WAL may still have the commit: it may be there when the store is opened again.
        return must_reopen(f"SQLite can't sync {file}: {error}")
    return CommitFailedError(f"SQLite can't write {file}: {error}. Correct the cause and commit again")
