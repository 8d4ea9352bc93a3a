"""Records of bytes in the columns of an Arrow record batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from stores.changelog.interface import Headers, Record, new_record
from stores.tasks.column_records import COLUMNS, KeptInColumns

if TYPE_CHECKING:
    import pyarrow


def header_type() -> pyarrow.DataType:
    """Return the type of the column of headers."""
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class ArrowRecords(KeptInColumns):
    """The rows of a record batch with ``COLUMNS`` as records, which are made where they are asked for.

    A slice is of the same kind, and copies nothing.
    """

    def __init__(self, rows: pyarrow.RecordBatch) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> ArrowRecords: ...

    def __getitem__(self, index: int | slice) -> Any:
        places = range(len(self))[index]
        if isinstance(places, int):
            return self._records(self.rows.slice(places, 1))[0]
        if places.step == 1:
            return ArrowRecords(self.rows.slice(places.start, len(places)))
        return ArrowRecords(self.rows.take(list(places)))

    def __iter__(self) -> Any:
        return iter(self._records(self.rows))

    def column(self, name: str) -> list[Any]:
        return _as_python(self.rows, name)

    @property
    def num_bytes(self) -> int:
        import pyarrow.compute as pc

        return sum(pc.sum(pc.binary_length(self.rows.column(name))).as_py() or 0 for name in ("key", "value"))

    @property
    def highest_ms(self) -> int:
        import pyarrow.compute as pc

        return int(pc.max(self.rows.column("timestamp_ms")).as_py())

    @staticmethod
    def _records(rows: pyarrow.RecordBatch) -> list[Record]:
        return list(map(new_record, zip(*(_as_python(rows, name) for name in COLUMNS), strict=True)))


def _as_python(rows: pyarrow.RecordBatch, name: str) -> list[Any]:
    column = rows.column(name)
    return _headers(column) if name == "headers" else column.to_pylist()


def _headers(column: pyarrow.Array) -> list[Headers]:
    if not len(column.flatten()):
        return [()] * len(column)
    return [tuple((one["key"], one["value"]) for one in some) for some in column.to_pylist()]
