"""A changelog whose SQLite connection answers with an error, as it does where the disk has one for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from stores.changelog.sqlite import SqliteChangelog


class Failing:
    """In the ``with`` block, ``statement`` fails by the error of SQLite's that is named, up to ``times``.

    ``done`` lets it do its work before. A connection can't be patched, so something stands in front of it.
    """

    def __init__(self, log: SqliteChangelog, statement: str, error: str, *, done: bool = False, times: int = 1) -> None:
        self.hits = 0
        self._log, self._statement, self._error, self._done, self._times = log, statement, error, done, times
        self._writer = log._file.writer

    def execute(self, statement: str, *given: Any) -> Any:
        return self._run(self._writer.execute, statement, *given)

    def executemany(self, statement: str, *given: Any) -> Any:
        return self._run(self._writer.executemany, statement, *given)

    def _run(self, run: Callable[..., Any], statement: str, *given: Any) -> Any:
        if not statement.startswith(self._statement) or self.hits >= self._times:
            return run(statement, *given)
        self.hits += 1
        if self._done:
            run(statement, *given)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = self._error
        raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def __enter__(self) -> Self:
        self._log._file.writer = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log._file.writer = self._writer
