"""The file that records the guarantee under which the stores of a task were written.

It matters for stores that do not isolate uncommitted writes: their content is only known to be committed after an
exactly-once task has closed them cleanly. The file is durable before a task makes its first write to such a store, and
says CLEAN only after a clean close. The guarantee of a store without an entry is unknown.

JSON with a checksum: ``{"stores": {"NAME": "exactly_once"}, "checksum": 1}``. A store that isolates uncommitted writes
and keeps its offsets with its data needs no entry. A task that only has such stores has no such file.

Source: KIP-129, ``processing.guarantee`` ("swap and restart").
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from zlib import crc32

from stores.files.plain_files import read_json, replace_file, sync_folder, translated_system_errors

_BYTES_MAX = 16 << 20


class Origin(StrEnum):
    """The knowledge of a task about a store's content and its changelog."""

    CLEAN = "clean"
    """Its task was closed cleanly: it matches its changelog up to its offset."""
    EXACTLY_ONCE = "exactly_once"
    """An exactly-once task has it open, or did not close it cleanly: it may have writes that were never committed."""
    AT_LEAST_ONCE = "at_least_once"
    """It may have writes that were never committed, even from before the last opening: an at-least-once task keeps
    them."""


class OriginFile:
    """The file at ``path``, always replaced atomically. Raises, all methods: StoreUnavailableError on a disk error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """The origins of the stores ``names`` that have an entry; AT_LEAST_ONCE for each if the file is damaged."""
        with translated_system_errors(self.path):
            try:
                content = read_json(self.path, _BYTES_MAX)
            except FileNotFoundError:
                return {}
            except ValueError:
                content = None
            # Its writer may have been killed before the name was synced, and later writes rely on this file.
            sync_folder(self.path.parent)
        try:
            if not isinstance(content, dict):
                raise TypeError("it is not a JSON object")
            stores = {name: Origin(origin) for name, origin in content["stores"].items()}
            if content["checksum"] == _checksum(stores):
                return stores
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        return dict.fromkeys(names, Origin.AT_LEAST_ONCE)

    def write(self, stores: Mapping[str, Origin]) -> None:
        """Replace the file by one with these entries, or remove it if there are none; durable on return."""
        with translated_system_errors(self.path):
            if stores:
                entries = dict(sorted(stores.items()))
                replace_file(self.path, json.dumps({"stores": entries, "checksum": _checksum(entries)}) + "\n")
            elif os.path.lexists(self.path):
                self.path.unlink()
                sync_folder(self.path.parent)


class SplitOrigins:
    """An ``OriginFile`` that is split by store."""

    def __init__(self, files: Mapping[str, OriginFile]) -> None:
        self._files = files

    def read(self, names: Iterable[str]) -> dict[str, Origin]:
        """Return the origins of the stores ``names`` that have an entry; AT_LEAST_ONCE if a file is damaged."""
        found: dict[str, Origin] = {}
        for name in names:
            found |= self._files[name].read([name])
        return found

    def write(self, stores: Mapping[str, Origin]) -> None:
        """Replace each file, or remove it if ``stores`` has no entry for it; durable on return."""
        for name, file in self._files.items():
            file.write({name: stores[name]} if name in stores else {})


def _checksum(stores: Mapping[str, Origin]) -> int:
    return crc32(json.dumps(dict(sorted(stores.items()))).encode())
