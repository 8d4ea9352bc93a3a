"""The files of an ingestion that failed: RocksDB may need them at the next opening.

If the sync of the manifest's record of an ingestion fails, RocksDB removes the files. The record may be there all the
same, and then it refuses to open the database. So the strategy keeps the files beside it until it is open again, and
they are linked to their places. Their numbers follow each other. RocksDB does not take one file for another, because
the manifest has the size and the ID of each.

Source: RocksDB, ``ExternalSstFileIngestionJob::Cleanup``; issue 4990, "truncate manifest after sync failure".
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stores.engines.ingesting import INGESTED
from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.files.plain_files import translated_system_errors

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK)
"""The errors of a file system that can't link a file to its place."""


def with_kept_files(path: Path, open_: Callable[[], Any]) -> Any:
    """Return what ``open_`` returns, with kept files in their places if the database lacks them.

    If they do not help, the folder is left as it was. Raises: the errors of ``open_``; StoreUnavailableError.
    """
    try:
        return open_()
    except StoreCorruptedError:
        commits = kept_files(path)
        if not commits:
            raise
        with translated_system_errors(path):
            for files in commits:
                try:
                    return _opened_with(path, files, open_)
                except StoreCorruptedError:
                    continue
                except OSError as system_error:
                    if system_error.errno not in _NO_LINKS:
                        raise
        raise


def lacks_files(path: Path, error: StoreCorruptedError) -> StoreUnavailableError | None:
    """Return the error of a reader if kept files may be the ones that it lacks, by the ``error`` of its opening."""
    if ".sst" not in str(error) or not kept_files(path):
        return None
    return StoreUnavailableError(
        f"{path} may lack files of a commit that failed, which are beside it: open the store for writing, which puts "
        f"them in their places. ({error})"
    )


def kept_files(path: Path) -> list[list[Path]]:
    """Return the kept files of each commit, in their order."""
    commits: dict[str, list[Path]] = {}
    for file in sorted(path.with_name(f"{path.name}.tmp").glob(INGESTED)):
        commits.setdefault(file.name.partition("-")[0], []).append(file)
    return list(commits.values())


def _opened_with(path: Path, files: Sequence[Path], open_: Callable[[], Any]) -> Any:
    """Open the database with ``files`` in the places that it names. Raises: StoreCorruptedError; OSError."""
    # A process may have been killed when RocksDB had removed some of them, or when some had been linked here.
    linked = _links(path, files)
    _unlink(linked)
    try:
        try:
            return open_()
        except StoreCorruptedError as error:
            missing = re.search(rf"/(\d+)\.sst: {re.escape(os.strerror(errno.ENOENT))}", str(error))
            if missing is None:
                raise
            named = int(missing[1])
        for first in range(max(1, named - len(files) + 1), named + 1):
            places = {path / f"{number:06}.sst": file for number, file in enumerate(files, first)}
            if not any(map(os.path.lexists, places)):
                try:
                    # RocksDB syncs the folder. Before it has, power loss leaves the kept files.
                    _link(places)
                    return open_()
                except BaseException as error:
                    _unlink(places)
                    if not isinstance(error, StoreCorruptedError):
                        raise
        raise StoreCorruptedError(f"{path} lacks files, and those beside it are others")
    except BaseException:
        with suppress(OSError):
            _link(linked)
        raise


def _links(path: Path, files: Sequence[Path]) -> dict[Path, Path]:
    """Return each file of the database that is one of ``files``, with that one."""
    by_inode = {os.stat(file).st_ino: file for file in files}
    with os.scandir(path) as entries:
        return {path / entry.name: by_inode[entry.inode()] for entry in entries if entry.inode() in by_inode}


def _link(places: dict[Path, Path]) -> None:
    for place, file in places.items():
        os.link(file, place)


def _unlink(places: Iterable[Path]) -> None:
    for place in places:
        with suppress(OSError):
            place.unlink()
