"""A RocksDB database on disk: its folder, its column families, and its handles."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from rocksdict import AccessType, Rdict

from stores.engines.rocksdb.errors import opening_error
from stores.engines.rocksdb.options import database_options
from stores.errors import StoreCorruptedError
from stores.files.plain_files import StrangeFileError, read_head

OFFSETS_FAMILY = "offsets"
"""Name of the column family beside the data. Source: KIP-892, "Atomic Checkpointing"."""

SECOND_FAMILY = "records"
"""Name of the second data family, once there is one."""

_IN_USE, _CLOSE_PAUSE_S = "Already borrowed", 0.001
"""The error of rocksdict for closing a handle during a call of it, and the pause before the next attempt."""
_NAME_BYTES_MAX = 64
_SETTINGS = "rocksdict-config.json"
"""The settings that rocksdict keeps beside RocksDB's files."""


def open_database(path: Path, options: Mapping[str, object], access: AccessType, *, second: bool) -> Any:
    data, offsets = database_options(options), database_options(options)
    offsets.set_write_buffer_size(cast(int, options["offsets_write_buffer_size_bytes"]))
    try:
        # Pass the families on every opening: without them rocksdict opens the database with default options.
        families = {"default": data, OFFSETS_FAMILY: offsets}
        if second:
            families[SECOND_FAMILY] = database_options(options)
        return Rdict(str(path), options=data, column_families=families, access_type=access)
    except Exception as error:
        raise opening_error(error, path) from error


def has_second_family(path: Path) -> bool:
    """Return whether the database has a second data family, which must then be named when it is opened."""
    if not (path / "CURRENT").exists():
        return False
    try:
        return SECOND_FAMILY in Rdict.list_cf(str(path))
    except Exception as error:
        raise opening_error(error, path) from error


def close_handle(handle: Any) -> None:
    """Close a handle. While another thread is in a call of it, rocksdict refuses, so try again."""
    while True:
        try:
            handle.close()
            return
        except RuntimeError as error:
            if str(error) != _IN_USE:
                raise
        time.sleep(_CLOSE_PAUSE_S)


def manifest_of(path: Path) -> Path | None:
    """Return the path of the current manifest, None if there is no file CURRENT, which names it.

    RocksDB accepts any content of CURRENT as a name, and reports an impossible name as a disk error.
    Raises: OSError; StoreCorruptedError if the content is not the name of a manifest.
    """
    current = path / "CURRENT"
    try:
        name = read_head(current, _NAME_BYTES_MAX)
    except FileNotFoundError:
        return None
    except StrangeFileError as error:
        raise StoreCorruptedError(f"{error}: wipe the store and restore it from its changelog") from error
    if not re.fullmatch(rb"MANIFEST-\d+\n", name):
        raise StoreCorruptedError(f"{current} names no manifest: wipe the store and restore it from its changelog")
    return path / name.decode().strip()


def mirrored(path: Path) -> TemporaryDirectory[str]:
    """Return a temporary folder with links to the database's files, and a copy of rocksdict's. Raises: OSError."""
    mirror = TemporaryDirectory(prefix="txstores-")
    for file in path.iterdir():
        if file.name == _SETTINGS:
            shutil.copyfile(file, Path(mirror.name, file.name))
        else:
            Path(mirror.name, file.name).symlink_to(file.absolute())
    return mirror


def checkpoint_folder(path: Path) -> Path:
    return path.with_name(path.name + ".flush")
