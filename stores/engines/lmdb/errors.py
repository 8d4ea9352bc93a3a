"""Conversion of LMDB's errors to the library's: fix the disk, open the store again, or restore it."""

from __future__ import annotations

import errno
import os

import lmdb

from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError, must_reopen


def damage(error: Exception, where: object) -> StoreError:
    return StoreCorruptedError(f"LMDB refuses {where}: {error}. Wipe the store and restore it from its changelog")


def reading_error(error: Exception) -> StoreError:
    # LMDB marks a read transaction as bad after it has found a damaged page.
    bad = lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PanicError | lmdb.InvalidError | lmdb.BadTxnError
    if isinstance(error, bad):
        return damage(error, "the database")
    if isinstance(error, lmdb.ReadersFullError):
        return StoreUnavailableError(
            f"LMDB has no reader slot left: close iterators, or open the store with a larger max_readers ({error})"
        )
    return StoreUnavailableError(f"LMDB can't read: {error}. Check the disk and try again")


def writing_error(error: Exception) -> StoreError:
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
        return damage(error, "the database")
    # After a failed write of its meta page LMDB refuses everything. A failed sync must not be repeated: the kernel may
    # have dropped the pending data and marked its pages clean.
    if isinstance(error, lmdb.PanicError) or os.strerror(errno.EIO) in str(error):
        return must_reopen(f"LMDB can't write: {error}")
    return CommitFailedError(f"LMDB can't write: {error}. Check the disk, and commit again")
