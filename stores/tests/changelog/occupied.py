"""A changelog's file that somebody else is writing to, for as long as a test likes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from stores.changelog.sqlite import SqliteChangelog


@contextmanager
def occupied(log: SqliteChangelog) -> Iterator[None]:
    """Within the block nobody else can write to the log's file: they wait until their time is up."""
    with closing(sqlite3.connect(log.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        yield
        other.rollback()
