"""A folder for stores that end with their test, in memory if possible: no test needs the disk."""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")
QUICK_FOLDER = _MEMORY if os.access(_MEMORY, os.W_OK) else None
"""None stands for where temporary files go anyway."""
