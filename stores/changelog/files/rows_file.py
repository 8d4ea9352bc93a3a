"""The file with the rows that one attempt at a version gives out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stores.changelog.files.format import BatchWriter, Header
from stores.failpoints import Part, declare, reach

if TYPE_CHECKING:
    import pyarrow

ROWS_WRITTEN = declare(
    "version_log.rows_written", "the rows of a batch are in their file, which no version names yet", part=Part.CHANGE
)


class RowsFile:
    """The rows of one attempt at a version. The file is made with the first row, in place at ``finish``."""

    def __init__(self, name: str, create: Callable[[], Any], header: Header, schema: pyarrow.Schema) -> None:
        self._name, self._create, self._header, self._schema = name, create, header, schema
        self._context: Any = None
        self._writer: BatchWriter | None = None
        self.num_rows = 0

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Write a batch of rows."""
        if self._writer is None:
            self._context = self._create()
            self._writer = BatchWriter(self._context.__enter__(), self._header, self._schema)
        self._writer.write(batch)
        self.num_rows += batch.num_rows

    def finish(self) -> str | None:
        """Put the file in place; return its name, None if there are no rows."""
        if self._writer is None:
            return None
        writer, self._writer = self._writer, None
        try:
            writer.__exit__(None, None, None)
        except BaseException as error:
            self._leave(error)
            raise
        self._context.__exit__(None, None, None)
        reach(ROWS_WRITTEN)
        return self._name

    def discard(self, error: BaseException) -> None:
        """Leave no file, because of ``error``. No effect after ``finish``."""
        if self._writer is not None:
            self._writer = None
            self._leave(error)

    def _leave(self, error: BaseException) -> None:
        try:
            self._context.__exit__(type(error), error, error.__traceback__)
        except BaseException as again:
            if again is not error:
                raise
