"""A changelog's file that somebody else is writing to: whoever commits to it then waits until its time is up."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def occupied(changelog: Path) -> Iterator[None]:
    """Hold the file's write lock for the block, and write nothing."""
    with closing(sqlite3.connect(changelog, isolation_level=None)) as other:
        other.execute("begin immediate")
        yield
        other.rollback()
