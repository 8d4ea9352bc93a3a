"""The location of a version log: a path, or a URI of ``pyarrow.fs``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stores.changelog.files.arrow_folder import ArrowFolder
from stores.changelog.files.folder import Folder, PutIfAbsent
from stores.changelog.files.local_folder import LocalFolder
from stores.errors import ConfigError

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def open_folder(
    location: str | os.PathLike[str], put_if_absent: PutIfAbsent | None = None, *, for_reading: bool = False
) -> Folder:
    """Return the folder at a path or URI of ``pyarrow.fs``, such as ``/data/state`` or ``hdfs://host/state``.

    ``put_if_absent`` is the conditional put of an object store: it is called with a path, as ``pyarrow.fs`` has it, and
    the bytes, on any executor. Raises: ConfigError for an unknown URI, and for an object store without that function:
    immediately, or ``for_reading`` at the first ``put_if_absent``.
    """
    text = os.fspath(location)
    if not _URI.match(text) and put_if_absent is None:
        return LocalFolder(Path(text).absolute())
    import pyarrow
    import pyarrow.fs

    try:
        if _URI.match(text):
            filesystem, path = pyarrow.fs.FileSystem.from_uri(text)
        else:
            filesystem, path = pyarrow.fs.LocalFileSystem(), str(Path(text).absolute())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{text} can't be opened by pyarrow.fs: {error}. Correct the location") from error
    if put_if_absent is not None:
        return ArrowFolder(filesystem, path, text, put_if_absent)
    if filesystem.type_name == "local":
        return LocalFolder(Path(path))
    if filesystem.type_name == "hdfs":
        return ArrowFolder(filesystem, path, text, None)

    def refused(path: str, content: bytes) -> bool:
        raise ConfigError(
            f"{text} is on an object store ({filesystem.type_name}), for which pyarrow.fs has no put that fails if the "
            "object exists: give one as put_if_absent"
        )

    if not for_reading:
        refused("", b"")
    return ArrowFolder(filesystem, path, text, refused)
