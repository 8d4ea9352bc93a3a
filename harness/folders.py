"""Where runs and scenarios lie, in the folder of the harness itself wherever it is started from; where trials work."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import harness

ROOT = Path(harness.__file__).resolve().parents[1]
RUNS = ROOT / "runs"
SCENARIOS = ROOT / "scenarios"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


def quick_folder() -> Path:
    """Where processes that are killed do their work: in memory where a file system there has room, else on disk.

    To a process that is killed both are the same: what it wrote is the kernel's. Only a sync takes time on disk.
    Whoever sets TMPDIR has said where.
    """
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    return _MEMORY if roomy and "TMPDIR" not in os.environ else Path(tempfile.gettempdir())
