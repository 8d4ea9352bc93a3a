"""The files that say what a store's folder holds: its identity, and the mark that the store is open.

The identity is the backend and the version of the format on disk. A step leads from each version to the next. A store
is brought to the present version when it is opened (``stores.files.store_directory``). A version is new where an older
release would misread the files.

An opening writes the mark, the file ``open``, so that it survives power loss, which takes two syncs. After a kill, the
next opening in the same boot finds a mark with the same content. It needs no sync if those of that mark have succeeded.
So the mark has a note, written in place after its syncs, without another one. Only this boot reads the note: it is in
the page cache. It names the file, its folder and its time of change, because a copy of the files need not survive power
loss.

Only a mark of a level that power loss may tear has a note. After power loss such a store is never used again, so
nothing else in the folder has to be synced, and neither a torn nor a missing note changes anything.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from stores.engines.engine import Engine
from stores.errors import StoreCorruptedError, StoreIncompatibleError, StoreTooNewError
from stores.files.plain_files import StrangeFileError, open_plain, read_head, read_json, replace_file

IDENTITY_FILE = "store.json"

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
    file = path / IDENTITY_FILE
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


MARK_FILE = "open"
_NOTE = "synced"
_NOTE_CHARS = 84
"""Four numbers of up to 20 digits, and a space after each."""
_NOTING_NS = 1_000_000_000
"""The time of change that a note names is this much earlier than that of the mark, at most: writing it changes that."""
_CHANGING = ("pid", _NOTE)
"""The fields in which marks of the same meaning differ."""


def read_mark(folder: Path) -> dict[str, Any] | None:
    """Return the mark of the store in ``folder``, or None if the store was closed.

    Raises: StoreCorruptedError for a file that the library did not write; OSError.
    """
    mark = folder / MARK_FILE
    try:
        content = read_json(mark)
        if not isinstance(content, dict) or not content.keys() >= {"boot", "tearable"}:
            raise ValueError("the file is no mark")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreCorruptedError(f"{mark} can't be read: wipe the store and restore it from its changelog") from error
    return content


def check_not_torn(folder: Path, mark: Mapping[str, Any], boot: str) -> None:
    """Check that power loss has not torn the store in ``folder``, whose mark is left. Raises: StoreCorruptedError."""
    if mark["tearable"] and mark["boot"] != boot:
        raise StoreCorruptedError(
            f"{folder} was open when the machine stopped, at a durability level at which power loss may damage it: "
            "wipe the store and restore it from its changelog"
        )


def write_mark(folder: Path, mark: Mapping[str, object], *, durable: bool) -> None:
    """Replace the mark of the store in ``folder`` by ``mark``; unless ``durable``, power loss may undo it.

    Raises: OSError.
    """
    text = json.dumps({**mark, _NOTE: " " * _NOTE_CHARS} if mark["tearable"] else mark)
    replace_file(folder / MARK_FILE, text, durable=durable)
    if durable and mark["tearable"]:
        # Without a note, the next opening writes its mark again.
        with suppress(OSError):
            _write_note(folder, len(text) - len('"}') - _NOTE_CHARS)


def is_durable(folder: Path, found: Mapping[str, object], mark: Mapping[str, object]) -> bool:
    """Return True if the mark ``found`` in ``folder`` survives power loss and means what ``mark`` would mean.

    Both are of the present boot. Raises: OSError.
    """
    if not mark["tearable"] or _meaning(found) != _meaning(mark):
        return False
    try:
        *noted, noted_ns = map(int, str(found.get(_NOTE)).split())
    except ValueError:
        return False
    *present, changed_ns = _place(folder)
    return noted == present and 0 <= changed_ns - noted_ns <= _NOTING_NS


def boot_id() -> str:
    """Return a name for the machine's present boot, which is different after each restart."""
    try:
        return read_head(Path("/proc/sys/kernel/random/boot_id"), 64).decode().strip()
    except (OSError, StrangeFileError):
        # Without Linux's boot ID: the time of the boot, to the minute.
        return f"boot-{int((time.time() - time.monotonic()) // 60)}"


def _meaning(mark: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in mark.items() if name not in _CHANGING}


def _write_note(folder: Path, at: int) -> None:
    text = " ".join(map(str, _place(folder)))
    descriptor = open_plain(folder / MARK_FILE, os.O_WRONLY)
    try:
        os.pwrite(descriptor, text.encode(), at)
    finally:
        os.close(descriptor)


def _place(folder: Path) -> tuple[int, int, int, int]:
    """Return the device, the folder, the file and its time of change: no copy of the mark has the same."""
    file = os.lstat(folder / MARK_FILE)
    return file.st_dev, os.stat(folder).st_ino, file.st_ino, file.st_ctime_ns
