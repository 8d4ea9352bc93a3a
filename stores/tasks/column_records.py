"""Records of one partition that are kept as columns: a record is made where it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, overload

from stores.changelog.interface import Record, RecordColumns, new_record

COLUMNS = Record._fields
"""The columns, which have no nulls but keys and values: the parts of a ``Record``, in their order."""


class KeptInColumns(Sequence[Record]):
    """Records that are kept as ``COLUMNS``. A slice is of the same kind."""

    @abstractmethod
    def column(self, name: str) -> list[Any]:
        """Return one of ``COLUMNS`` as Python has it. It must not be changed."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The bytes of all keys and values."""

    @property
    @abstractmethod
    def highest_ms(self) -> int:
        """The highest timestamp."""


class ColumnRecords(KeptInColumns):
    """The records of columns as a changelog reads them."""

    def __init__(self, columns: RecordColumns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns.offsets)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return new_record([self.column(name)[index] for name in COLUMNS])
        start, stop, step = index.indices(len(self))
        if step == 1:
            return ColumnRecords(self._columns.part(start, stop))
        return list(self)[index]

    def __iter__(self) -> Iterator[Record]:
        return self._columns.records()

    def column(self, name: str) -> list[Any]:
        column = self._columns[COLUMNS.index(name)]
        if column is None:
            return [()] * len(self)
        return column if isinstance(column, list) else list(column)

    @property
    def num_bytes(self) -> int:
        return bytes_of(self._columns.keys, self._columns.values)

    @property
    def highest_ms(self) -> int:
        return max(self._columns.timestamps_ms)


def bytes_of(*columns: Sequence[bytes | None]) -> int:
    """Return the bytes of all elements of columns."""
    return sum(map(len, filter(None, chain(*columns))))


def column_of(records: Sequence[Record], name: str) -> list[Any]:
    """Return one of ``COLUMNS`` of any records."""
    if isinstance(records, KeptInColumns):
        return records.column(name)
    return list(map(itemgetter(COLUMNS.index(name)), records))
