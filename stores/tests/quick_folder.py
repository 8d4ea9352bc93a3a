"""Folders in memory for tests, if possible: none needs the disk, on which each sync takes its time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30
"""The free memory that temporary files of a whole run may need at most, with a wide margin."""
QUICK_FOLDER = _MEMORY if os.access(_MEMORY, os.W_OK) else None
"""The folder of single stores, which end with their test; None stands for where temporary files go anyway."""


def keep_temporary_files_in_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let temporary files of this process and of those that it starts be in memory, unless ``TMPDIR`` is set.

    They stay on disk where memory has no room, or no program may be run from there.
    """
    if "TMPDIR" not in environment and _has_room(_MEMORY) and _runs_programs(_MEMORY):
        environment["TMPDIR"] = str(_MEMORY)
        # It may have been determined already.
        tempfile.tempdir = None


def _has_room(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM_BYTES


def _runs_programs(folder: Path) -> bool:
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC
