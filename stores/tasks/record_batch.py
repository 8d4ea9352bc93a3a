"""A batch: records of one input partition in order, for a function that takes many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from stores.changelog.interface import Headers, K_co, Record, V_co, new_record
from stores.errors import ConfigError, DeserializationError, StoreError
from stores.extras import advice
from stores.interface import TopicPartition
from stores.records.arrow_serdes import deserialized
from stores.records.serdes import BYTES, Serde
from stores.tasks.arrow_records import ArrowRecords, header_type
from stores.tasks.column_records import COLUMNS, KeptInColumns, bytes_of, column_of
from stores.topic import Topic

if TYPE_CHECKING:
    import pyarrow

_ARROW_TYPES = {"bytes": "binary", "str": "string", "int64": "int64", "float64": "float64"}
"""The Arrow type of a column by the name of its serde. Arrow infers that of another one."""
_ATTRIBUTES = dict(zip(COLUMNS, ("offsets", "keys", "values", "timestamps_ms", "headers"), strict=True))
"""The attributes of a batch that have the columns."""


class Batch(Sequence[Record[K_co, V_co]], Generic[K_co, V_co]):
    """Some records of one input partition, in order: at least one. They never change.

    As a sequence it has ``Record``s; a slice is a batch, too. ``keys``, ``values``, ``timestamps_ms``, ``offsets`` and
    ``headers`` have a part of all records each, in the same order, and make no record. Keys and values are bytes, or
    what the serdes of the input's ``Topic`` read, when they are first asked for, once.

    Raises, where keys or values are read: DeserializationError, unless ``on_deserialization_error`` leaves out the
    records that can't be read. The batch is not committed then, even if the function catches the error.
    """

    def __init__(
        self, partition: TopicPartition, records: Sequence[Record], topic: Topic[Any, Any] | None = None
    ) -> None:
        self.partition = partition
        """The input partition."""
        self._raw, self._topic = records, topic
        self._columns: dict[str, list[Any]] = {}
        self._records: Sequence[Record[Any, Any]] | None = None
        if topic is None and not isinstance(records, KeptInColumns):
            self._records = records
        self._errors: list[DeserializationError] = []
        """The errors of records that could not be read, also by the slices of this batch, which share the list."""

    def read_by(self, topic: Topic[Any, Any]) -> Batch[Any, Any]:
        """Return the same records, with keys and values as the serdes of ``topic`` read them."""
        return Batch(self.partition, self._raw, topic)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(self)} records, {offsets_text(self)} of {partition_text(self.partition)}>"
        )

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, index: int) -> Record[K_co, V_co]: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            part = type(self)(self.partition, self._raw[index], self._topic)
            part._columns = {name: column[index] for name, column in self._columns.items()}
            part._errors = self._errors
            return part
        return self._all()[index]

    def __iter__(self) -> Iterator[Record[K_co, V_co]]:
        return iter(self._all())

    @property
    def keys(self) -> Sequence[K_co | None]:
        """The keys, None for a record without one."""
        return self._read("key")

    @property
    def values(self) -> Sequence[V_co | None]:
        """The values, None for a tombstone."""
        return self._read("value")

    @property
    def timestamps_ms(self) -> Sequence[int]:
        """The timestamps, -1 where one is unknown."""
        return self._column("timestamp_ms")

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets in the input partition. They rise, and may have gaps."""
        return self._column("offset")

    @property
    def headers(self) -> Sequence[Headers]:
        """The headers of each record."""
        return self._column("headers")

    def table(self) -> pyarrow.Table:
        """Return the batch as an Arrow table with the columns offset, key, value, timestamp_ms and headers.

        Arrow infers the type of keys and values unless their serde is BYTES, STR, INT64 or FLOAT64. It needs the extra
        ``arrow``. Raises: ConfigError without it; TypeError for values that Arrow has no type for.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ConfigError(f"batch.table() needs pyarrow: {advice('arrow')}") from error
        types = {"offset": pa.int64(), "timestamp_ms": pa.int64(), "headers": header_type(), **self._arrow_types(pa)}
        return pa.table({name: self._array(name, types[name]) for name in COLUMNS})

    def _serde(self, part: str) -> Serde[Any]:
        serde: Serde[Any] = BYTES if self._topic is None else getattr(self._topic, part)
        return serde

    def _arrow_types(self, pa: Any) -> dict[str, Any]:
        names = {part: _ARROW_TYPES.get(self._serde(part).name) for part in ("key", "value")}
        return {part: None if name is None else getattr(pa, name)() for part, name in names.items()}

    def _array(self, name: str, kind: Any) -> pyarrow.Array:
        """Return a column as an array of ``kind``, or of the type that Arrow infers for None. Raises: as ``table``."""
        import pyarrow as pa

        if isinstance(self._raw, ArrowRecords):
            column = self._raw.rows.column(name)
            read = deserialized(self._serde(name), column) if name in ("key", "value") else column
            if read is not None:
                return read
        column = getattr(self, _ATTRIBUTES[name])
        if name == "headers":
            column = [[{"key": name, "value": content} for name, content in pairs] for pairs in column]
        try:
            return pa.array(column, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise TypeError(f"Arrow has no type for the column {name!r} of this batch: {error}") from error

    def _all(self) -> Sequence[Record[K_co, V_co]]:
        if self._records is None:
            columns = (self.offsets, self.keys, self.values, self.timestamps_ms, self.headers)
            self._records = list(map(new_record, zip(*columns, strict=True)))
        return self._records

    def _column(self, name: str) -> list[Any]:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = column_of(self._raw, name)
        return column

    def _read(self, name: str) -> list[Any]:
        topic = self._topic
        if topic is None or name in self._columns:
            return self._column(name)
        try:
            column = topic.decoded_column(name, column_of(self._raw, name))
        except (StoreError, MemoryError):
            raise
        except Exception:
            self._refuse(topic)
            raise
        self._columns[name] = column
        return column

    def _refuse(self, topic: Topic[Any, Any]) -> None:
        """Raise the error that names the first record that can't be read."""
        try:
            for record in self._raw:
                topic.decoded(record)
        except DeserializationError as error:
            self._errors.append(error)
            raise


def place_of(batch: Batch[Any, Any]) -> Record[Any, Any]:
    """Return the current record of a batch: the record itself if it is alone, as it is in its topic.

    That of several has the batch as its value, the last offset, the highest timestamp, and no key.
    """
    raw = batch._raw
    if len(raw) == 1:
        return raw[0]
    highest_ms = raw.highest_ms if isinstance(raw, KeptInColumns) else max(batch.timestamps_ms)
    return Record(raw[-1].offset, None, batch, highest_ms)


def num_bytes(records: Sequence[Record]) -> int:
    """Return the bytes of the keys and values of records as they are in their topic."""
    if isinstance(records, KeptInColumns):
        return records.num_bytes
    return bytes_of(column_of(records, "key"), column_of(records, "value"))


def within_bytes(records: Sequence[Record], count: int, max_bytes: int) -> int:
    """Return how many of the first ``count`` records have no more than ``max_bytes``, or 1."""
    if num_bytes(records[:count]) <= max_bytes:
        return count
    sums = accumulate(num_bytes([record]) for record in records[:count])
    return max(1, sum(sum_bytes <= max_bytes for sum_bytes in sums))


def partition_text(partition: TopicPartition) -> str:
    """Return a partition as messages name it."""
    return f"{partition.topic}-{partition.partition}"


def offsets_text(batch: Batch[Any, Any]) -> str:
    """Return the offsets of a batch as messages name them."""
    first, last = batch._raw[0].offset, batch._raw[-1].offset
    return f"offset {first}" if first == last else f"offsets {first} to {last}"
