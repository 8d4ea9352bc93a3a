"""The identity of a store's folder: its backend, and the version of its format on disk.

A step leads from each format version to the next. A store is brought to the present version when it is opened
(``stores.files.store_directory``). A version is new where an older release would misread the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from stores.engines.engine import Engine
from stores.errors import StoreCorruptedError, StoreIncompatibleError, StoreTooNewError
from stores.files.plain_files import read_json

FILE = "store.json"

OpenEngine = Callable[[Path], Engine]
Step = Callable[[Path, OpenEngine], None]
"""Turns a store's folder, in which nothing is open, from one version into the next; opens engine folders itself.

It may be interrupted at any I/O operation, and is then run again from its beginning: it finds what is done already. It
need not sync: the files are synced before the new version is noted.
"""


STEPS: list[Step] = []
"""The step at place N leads from version N + 1 to N + 2. No release has had another version yet."""


def present_version() -> int:
    """Return the version of new and migrated stores."""
    return 1 + len(STEPS)


class Identity(NamedTuple):
    """The content of ``store.json``."""

    backend: str
    format_version: int

    def text(self) -> str:
        """The file's content, with a checksum: a flipped bit must not make it another backend's store."""
        return json.dumps({**self._asdict(), "checksum": self._checksum()}) + "\n"

    def _checksum(self) -> int:
        return crc32(f"{self.backend} {self.format_version}".encode())

    def fits(self, content: Mapping[str, object]) -> bool:
        """Return True if the file's ``content`` is exactly this identity."""
        return content == {**self._asdict(), "checksum": self._checksum()}


def read_identity(path: Path) -> Identity:
    """Return the identity of the store at ``path``. Raises: OSError, StoreCorruptedError for an invalid file."""
    file = path / FILE
    try:
        content = read_json(file)
        if not isinstance(content, dict) or type(content["format_version"]) is not int:
            raise TypeError("the file has no format version")
        if not isinstance(content["backend"], str):
            raise TypeError("the file names no backend")
        identity = Identity(content["backend"], content["format_version"])
        if not identity.fits(content):
            raise ValueError("the checksum does not match")
    except FileNotFoundError as error:
        raise StoreCorruptedError(f"{file} is missing: wipe the store and restore it from its changelog") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptedError(f"{file} can't be read: wipe the store and restore it from its changelog") from error
    if identity.format_version < 1:
        raise StoreCorruptedError(
            f"{file} has an invalid format version, {identity.format_version}: wipe the store and restore it from its "
            "changelog"
        )
    return identity


def checked_identity(path: Path, backend: str) -> Identity:
    """Return the identity of the store at ``path``, after a check that ``backend`` can open it, maybe with a migration.

    Raises: as ``read_identity``; StoreTooNewError; StoreIncompatibleError if it belongs to another backend.
    """
    identity = read_identity(path)
    if identity.format_version > present_version():
        raise StoreTooNewError(
            f"{path} has format version {identity.format_version}; this release reads up to {present_version()}: "
            "open it with the release that wrote it, or wipe the store and restore it from its changelog"
        )
    if identity.backend != backend:
        raise StoreIncompatibleError(
            f"{path} holds a store of the backend {identity.backend!r}, not {backend!r}: open it as that, or choose "
            "another path"
        )
    return identity
