"""What a store's folder says it is: the backend that reads it, and the version of its form on disk.

A version is one more than that before it, and a step leads from each to the next; a store is brought to the present
one when it is opened (``stores.migration``). Version 1 is the first there was; from 2 on the records of LMDB and SQLite
may have checksums, which a release that knows nothing of them would take for data; and an indexed batch may have begun
a spilled commit, of which one that knows nothing of spills would show a part. From 3 on LMDB's meta pages have
checksums, which an older release would leave as they are in its commits. From 4 on a store may keep marks, and two
families of data, of which an older release would show one, or take neither for its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from stores.engines.engine import Engine
from stores.errors import StoreCorruptedError, StoreIncompatibleError, StoreTooNewError
from stores.files import read_json

FILE = "store.json"

OpenEngine = Callable[[Path], Engine]
Step = Callable[[Path, OpenEngine], None]
"""Turns a store's folder, in which nothing is open, from one version into the next; opens engine folders itself.

It may be cut short at any effect, and is then run again from its beginning over what it has left: what is done already
it finds done. It need not sync: that is seen to before the new version is noted.
"""


def _as_they_are(folder: Path, open_engine: OpenEngine) -> None:
    """From 1 to 2: a store that has no checksums stays without."""


def _meta_pages(folder: Path, open_engine: OpenEngine) -> None:
    """From 2 to 3: meta pages get their checksums when the engine is opened, which it is next."""


def _one_family(folder: Path, open_engine: OpenEngine) -> None:
    """From 3 to 4: a store that has no marks and one family of data stays so."""


STEPS: list[Step] = [_as_they_are, _meta_pages, _one_family]
"""The step at place N leads from version N + 1 to N + 2."""


def present_version() -> int:
    """The version in which stores are made and kept."""
    return 1 + len(STEPS)


class Identity(NamedTuple):
    """What ``store.json`` holds."""

    backend: str
    format_version: int

    def text(self) -> str:
        """The file's content, with a checksum: a flipped bit must not make it another backend's store."""
        return json.dumps({**self._asdict(), "checksum": self._checksum()}) + "\n"

    def _checksum(self) -> int:
        return crc32(f"{self.backend} {self.format_version}".encode())

    def fits(self, told: Mapping[str, object]) -> bool:
        """Whether ``told``, the file's content, is this and nothing else. The first stores had no checksum."""
        return told in (self._asdict(), {**self._asdict(), "checksum": self._checksum()})


def read_identity(path: Path) -> Identity:
    """What the store at ``path`` says it is. Raises: OSError, StoreCorruptedError where it says nothing sensible."""
    file = path / FILE
    try:
        told = read_json(file)
        if not isinstance(told, dict) or type(told["format_version"]) is not int:
            raise TypeError("it has no format version")
        identity = Identity(told["backend"], told["format_version"])
        if not identity.fits(told):
            raise ValueError("its checksum does not fit")
    except FileNotFoundError as error:
        raise StoreCorruptedError(f"{file} is gone: wipe the store and restore it from its changelog") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptedError(f"{file} can't be read: wipe the store and restore it from its changelog") from error
    if identity.format_version < 1:
        raise StoreCorruptedError(
            f"{file} tells of format version {identity.format_version}, which never was: wipe the store and restore it "
            "from its changelog"
        )
    return identity


def checked_identity(path: Path, backend: str) -> Identity:
    """The identity of the store at ``path``, which ``backend`` can open, after a migration where that is due.

    Raises: as ``read_identity``; StoreTooNewError; StoreIncompatibleError where it belongs to another backend.
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
