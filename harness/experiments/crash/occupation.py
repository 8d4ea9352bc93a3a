"""A changelog file that another connection has locked: a commit to it waits until its timeout."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def occupied(changelog: Path) -> Iterator[None]:
    """Hold the file's write lock during the block, and write nothing."""
    with closing(sqlite3.connect(changelog, isolation_level=None)) as other:
        other.execute("begin immediate")
        yield
        other.rollback()
