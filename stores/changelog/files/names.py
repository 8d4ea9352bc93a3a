"""The names of a version log's files. Files with any other name are not the log's, and are left alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stores.changelog.files.folder import ASIDE
from stores.changelog.files.format import TRAILER

DESCRIPTION = "log.json"
ADDED = "added.json"
"""The stores that were added to the description."""
_NAME = re.compile(r"v(\d{12})(?:-([0-9a-f]{16})\.(rows|snapshot))?\.arrows")
_ASIDE = re.compile(r"v(\d{12})(?:-[0-9a-f]{16})+" + re.escape(ASIDE))


def folder_name(partition: int) -> str:
    """Return the name of the folder of a partition."""
    return f"p{partition:05d}"


def version_name(version: int) -> str:
    """Return the name of a version's file."""
    return f"v{version:012d}.arrows"


def unique_name(version: int, writer: str, kind: str) -> str:
    """Return the name of a file that only its writer has: ``kind`` is ``rows`` or ``snapshot``."""
    return f"v{version:012d}-{writer}.{kind}.arrows"


@dataclass
class Listing:
    """The files of a partition: of each version, of each snapshot, rows and files that are not in place yet."""

    versions: dict[int, int] = field(default_factory=dict)
    """The size of each version's file."""
    snapshots: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """The names and sizes of the snapshots of each version; two attempts may have written the same."""
    rows: list[tuple[int, str]] = field(default_factory=list)
    asides: list[tuple[int, str]] = field(default_factory=list)

    @property
    def newest(self) -> int | None:
        """The newest version, None in an empty log."""
        return max(self.versions, default=None)


def listed(files: Mapping[str, int]) -> Listing:
    """Return what the names in a partition's folder say."""
    found = Listing()
    for name, size in files.items():
        match = _NAME.fullmatch(name)
        if match is not None:
            version = int(match[1])
            if match[3] is None:
                found.versions[version] = size
            elif size < TRAILER.size:
                # Azure shows an empty file while it is written, and after its writer was killed.
                found.asides.append((version, name))
            elif match[3] == "rows":
                found.rows.append((version, name))
            else:
                found.snapshots.setdefault(version, []).append((name, size))
        elif (aside := _ASIDE.fullmatch(name)) is not None:
            found.asides.append((int(aside[1]), name))
    return found
