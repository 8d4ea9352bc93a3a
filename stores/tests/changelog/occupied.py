"""A changelog's file that somebody else is writing to, for as long as a test likes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from stores.changelog.sqlite import SqliteChangelog
from stores.files.sqlite_library import connect, roll_back


@contextmanager
def occupied(log: SqliteChangelog) -> Iterator[None]:
    """Within the block nobody else can write to the log's file: they wait until their time is up."""
    with closing(connect(log.path)) as other:
        other.execute("begin immediate")
        yield
        roll_back(other)
