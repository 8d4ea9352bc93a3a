"""The files of a version log: an Arrow IPC stream, then a trailer with the CRC-32 of the stream.

A reader of Arrow streams stops at the stream's end, so any of them reads such a file. Files are checked before they are
parsed: Arrow does not check the offsets of damaged columns.

Files with other names than those below are not the log's, and are left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from itertools import islice
from struct import Struct
from typing import IO, TYPE_CHECKING, Any
from zlib import crc32

from stores.errors import ChangelogError
from stores.files.folder import ASIDE
from stores.files.plain_files import parsed_json

if TYPE_CHECKING:
    import pyarrow


FORMAT = 1
METADATA = b"txstores"
"""The key of the header in the metadata of the stream's schema."""
TRAILER = Struct("<8sQI")
"""``txstores``, the number of bytes before, their CRC-32; little-endian, as Arrow."""
MAGIC = b"txstores"
_CHUNK_BYTES = 1 << 20
_BATCH_RECORDS = 16_384
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class Header:
    """The header of a file. It is JSON in the schema's metadata."""

    kind: str
    """``version``, ``snapshot``, ``changes`` or ``rows``."""
    id: str
    """Unique: each attempt that writes a file has its own."""
    partition: int
    version: int
    """A version's number; the version that a snapshot holds; the version that the rows belong to."""
    previous: int | None = None
    """Of a version: the version before it, None for the first."""
    previous_id: str | None = None
    """Of a version: the ID of that one. A file of the same number with another ID is not the version before."""
    query: str | None = None
    """Of a version: the ID of the streaming query, None for a batch job."""
    job: str | None = None
    """Of a version: the ID of the batch job, None for a streaming query."""
    first: int = 0
    """Of a version: the version of the query's batch 0."""
    has_input: bool = True
    """Of a version: False if the batch had no rows in this partition."""
    has_times: bool = False
    """Of a version: True if its state has the store of timers, which the next version must have as well."""
    rows: str | None = None
    """Of a version: the name of the file with the rows that the batch gave out; None if it gave out none."""
    num_rows: int = 0
    """Of a version: how many rows those are."""
    figures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of a version: what it changed in each store, and what the store then holds; by store, then by figure."""
    restored: int = 0
    """Of a version: how many versions were read from the log, to bring a local copy to the version before."""
    previous_commit_ms: int | None = None
    """Of a version: how long the commit of the version before it took, None if another process made that."""
    parts: list[str] = field(default_factory=list)
    """Of changes: the files of snapshots that they continue, in this order; the first is a whole snapshot."""
    format: int = FORMAT


@dataclass
class StoreChanges:
    """The changes of one store in a version, or all that it has in a snapshot. A value of None deletes."""

    pairs: dict[bytes, bytes | None] = field(default_factory=dict)
    marks: dict[str, bytes | None] = field(default_factory=dict)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_id(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) is not None


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _are_parts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and _PART.fullmatch(name) for name in value)


_ROWS = re.compile(r"v[0-9]{12}-[0-9a-f]{16}\.rows\.arrows")
_PART = re.compile(r"v[0-9]{12}-[0-9a-f]{16}\.(?:snapshot|changes)\.arrows")
_FIELDS: Mapping[str, Callable[[object], bool]] = {
    "kind": lambda value: value in ("version", "snapshot", "changes", "rows"),
    "id": _is_id,
    "partition": _is_number,
    "version": _is_number,
    "previous": lambda value: value is None or _is_number(value),
    "previous_id": lambda value: value is None or _is_id(value),
    "query": _is_text,
    "job": _is_text,
    "first": _is_number,
    "has_input": lambda value: isinstance(value, bool),
    "has_times": lambda value: isinstance(value, bool),
    "rows": lambda value: value is None or (isinstance(value, str) and _ROWS.fullmatch(value) is not None),
    "num_rows": _is_number,
    "figures": lambda value: isinstance(value, dict) and all(map(_are_numbers, value.values())),
    "restored": _is_number,
    "previous_commit_ms": lambda value: value is None or _is_number(value),
    "parts": _are_parts,
    "format": _is_number,
}
"""The check of each field of a header: IDs, ``rows`` and ``parts`` become names of files."""


Record = tuple[str, bool, bytes, bytes | None]
"""A store's name, True for a mark, the key (of a mark: its name in UTF-8), and the value."""


def records_of(changes: Mapping[str, StoreChanges]) -> Iterator[Record]:
    """Return the records of ``changes``, by store; marks are first."""
    for store, of_store in changes.items():
        for name, mark in of_store.marks.items():
            yield store, True, name.encode(), mark
        for key, value in of_store.pairs.items():
            yield store, False, key, value


def encoded(header: Header, changes: Mapping[str, StoreChanges]) -> bytes:
    """Return a file with ``changes``."""
    target = BytesIO()
    write_batches(target, header, _schema(), _batches_with(changes))
    return target.getvalue()


def write_records(target: IO[bytes], header: Header, records: Iterable[Record]) -> None:
    """Write a file of records, in pieces of bounded size."""
    write_batches(target, header, _schema(), _in_batches(records))


def write_batches(
    target: IO[bytes], header: Header, schema: pyarrow.Schema, batches: Iterable[pyarrow.RecordBatch]
) -> None:
    """Write a file with the batches, all of which have ``schema``."""
    with BatchWriter(target, header, schema) as writer:
        for batch in batches:
            writer.write(batch)


class BatchWriter:
    """Writes a file batch by batch; the trailer is written at the end of its ``with`` block."""

    def __init__(self, target: IO[bytes], header: Header, schema: pyarrow.Schema) -> None:
        import pyarrow as pa

        self._sink = _Summed(target)
        with_header = schema.with_metadata({METADATA: json.dumps(asdict(header)).encode()})
        self._file = pa.PythonFile(self._sink, mode="w")
        self._stream = pa.ipc.new_stream(self._file, with_header, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._schema = with_header

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Write a batch that has the schema, apart from metadata."""
        self._stream.write_batch(batch.replace_schema_metadata(self._schema.metadata))

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._stream.close()
            self._sink.target.write(TRAILER.pack(MAGIC, self._sink.num_bytes, self._sink.checksum))


class _Summed:
    """A file that counts and sums what is written through it."""

    closed = False

    def __init__(self, target: IO[bytes]) -> None:
        self.target, self.num_bytes, self.checksum = target, 0, 0

    def write(self, data: Any) -> int:
        self.checksum = crc32(data, self.checksum)
        self.num_bytes += len(data)
        self.target.write(data)
        return len(data)

    def flush(self) -> None:
        """Leave it to the file below."""

    def close(self) -> None:
        """Leave it to the file below."""


def check(file: IO[bytes], what: str) -> None:
    """Read the file once, compare its checksum, and go back to its start. Raises: ChangelogError if it is damaged."""
    file.seek(0, 2)
    length = file.tell() - TRAILER.size
    file.seek(0)
    checksum, rest_bytes = 0, length
    while rest_bytes > 0:
        chunk = file.read(min(rest_bytes, _CHUNK_BYTES))
        if not chunk:
            break
        checksum, rest_bytes = crc32(chunk, checksum), rest_bytes - len(chunk)
    trailer = file.read(TRAILER.size) if length >= 0 else b""
    if trailer != TRAILER.pack(MAGIC, max(length, 0), checksum):
        raise damaged(what)
    file.seek(0)


def read_header(file: IO[bytes], what: str) -> tuple[Header, pyarrow.RecordBatchStreamReader]:
    """Return the header of a checked file, and the reader of its batches. Raises: ChangelogError."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_stream(file)
        fields = parsed_json(reader.schema.metadata[METADATA])
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise damaged(what) from error
    if not isinstance(fields, dict):
        raise damaged(what)
    if fields.get("format") != FORMAT:
        raise ChangelogError(
            f"{what} has format {fields.get('format')}, and this release reads {FORMAT}: read it with the release that "
            "wrote it"
        )
    try:
        header = Header(**fields)
    except TypeError as error:
        raise damaged(what) from error
    if not all(_FIELDS[name](value) for name, value in fields.items()):
        raise ChangelogError(
            f"{what} has a header that is none of this library's: {fields}. Bring the file back from a copy of the "
            "folder; no state was changed"
        )
    return header, reader


def batches_of(reader: pyarrow.RecordBatchStreamReader, what: str) -> Iterator[pyarrow.RecordBatch]:
    """Return the batches without the header in their schema. Raises: ChangelogError if one is not sound."""
    import pyarrow as pa

    batches = iter(reader)
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            # Arrow itself would read beyond a column whose offsets are wrong.
            batch.validate(full=True)
        except (pa.ArrowException, ValueError) as error:
            raise damaged(what) from error
        yield batch.replace_schema_metadata(None)


def changes_in(reader: pyarrow.RecordBatchStreamReader, what: str) -> Iterator[dict[str, StoreChanges]]:
    """Return the records of a file by store, in pieces. Raises: ChangelogError if it has others than these."""
    for batch in batches_of(reader, what):
        changes: dict[str, StoreChanges] = {}
        _add(changes, batch, what)
        yield changes


def all_changes_in(reader: pyarrow.RecordBatchStreamReader, what: str) -> dict[str, StoreChanges]:
    """Return the records of a file by store. Raises: ChangelogError if it has others than these."""
    changes: dict[str, StoreChanges] = {}
    for batch in batches_of(reader, what):
        _add(changes, batch, what)
    return changes


def _add(changes: dict[str, StoreChanges], batch: pyarrow.RecordBatch, what: str) -> None:
    """Add the records of a batch: as two columns if all are pairs of one store, which most batches have."""
    import pyarrow.compute as pc

    if not batch.schema.equals(_schema()) or any(batch.column(number).null_count for number in range(3)):
        raise damaged(what)
    if not batch.num_rows:
        return
    stores, marks, keys, values = (batch.column(name) for name in ("store", "mark", "key", "value"))
    try:
        extremes = pc.min_max(stores).as_py()
        pairs = zip(keys.to_pylist(), values.to_pylist(), strict=True)
        if extremes["min"] == extremes["max"] and not pc.any(marks).as_py():
            changes.setdefault(extremes["min"], StoreChanges()).pairs.update(pairs)
            return
        for store, is_mark, (key, value) in zip(stores.to_pylist(), marks.to_pylist(), pairs, strict=True):
            of_store = changes.setdefault(store, StoreChanges())
            if is_mark:
                of_store.marks[key.decode()] = value
            else:
                of_store.pairs[key] = value
    except UnicodeDecodeError as error:
        raise damaged(what) from error


def damaged(what: str) -> ChangelogError:
    """Return the error for a damaged file of the log."""
    return ChangelogError(
        f"{what} is damaged: its checksum does not fit its content. Bring the file back from a copy of the folder; no "
        "state was changed"
    )


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    return pa.schema([("store", pa.string()), ("mark", pa.bool_()), ("key", pa.binary()), ("value", pa.binary())])


def _batches_with(changes: Mapping[str, StoreChanges]) -> Iterator[pyarrow.RecordBatch]:
    """Return the records of ``changes``, by store; marks are first. Pairs are made columns without a row of each."""
    import pyarrow as pa

    for store, of_store in changes.items():
        if of_store.marks:
            yield from _in_batches(records_of({store: StoreChanges(marks=of_store.marks)}))
        all_keys, all_values = list(of_store.pairs), list(of_store.pairs.values())
        for at in range(0, len(all_keys), _BATCH_RECORDS):
            keys, values = all_keys[at : at + _BATCH_RECORDS], all_values[at : at + _BATCH_RECORDS]
            if sum(map(len, keys)) + sum(map(len, filter(None, values))) > _BATCH_BYTES:
                yield from _in_batches((store, False, *pair) for pair in zip(keys, values, strict=True))
                continue
            stores, marks = (pa.repeat(pa.scalar(each), len(keys)) for each in (store, False))
            columns = [stores, marks, pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
            yield pa.record_batch(columns, schema=_schema())


def _in_batches(records: Iterable[Record]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    schema, waiting = _schema(), iter(records)
    while piece := list(_bounded(waiting)):
        columns = zip(*piece, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


def _bounded(records: Iterator[Record]) -> Iterator[Record]:
    num_bytes = 0
    for record in islice(records, _BATCH_RECORDS):
        yield record
        num_bytes += len(record[2]) + len(record[3] or b"")
        if num_bytes >= _BATCH_BYTES:
            return


DESCRIPTION = "log.json"
ADDED = "added.json"
"""The stores that were added to the description."""
_NAME = re.compile(r"v(\d{12})(?:-([0-9a-f]{16})\.(rows|snapshot|changes))?\.arrows")
_ASIDE = re.compile(r"v(\d{12})(?:-[0-9a-f]{16})+" + re.escape(ASIDE))


def folder_name(partition: int) -> str:
    """Return the name of the folder of a partition."""
    return f"p{partition:05d}"


def version_name(version: int) -> str:
    """Return the name of a version's file."""
    return f"v{version:012d}.arrows"


def unique_name(version: int, writer: str, kind: str) -> str:
    """Return the name of a file that only its writer has: ``kind`` is ``rows``, ``snapshot`` or ``changes``."""
    return f"v{version:012d}-{writer}.{kind}.arrows"


def is_whole(name: str) -> bool:
    """Return True if the file of a snapshot has all records, False if it has changes."""
    return name.endswith(".snapshot.arrows")


def writer_of(name: str) -> str:
    """Return the ID in the name of a file that only its writer has."""
    return name.partition("-")[2].partition(".")[0]


@dataclass
class PartitionFiles:
    """The files of a partition: of each version, of each snapshot, rows and files that are not in place yet."""

    versions: dict[int, int] = field(default_factory=dict)
    """The size of each version's file."""
    snapshots: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """The names and sizes of the snapshots of each version, whole or changes; two attempts may have written the same.
    """
    rows: list[tuple[int, str]] = field(default_factory=list)
    asides: list[tuple[int, str]] = field(default_factory=list)

    @property
    def newest(self) -> int | None:
        """The newest version, None in an empty log."""
        return max(self.versions, default=None)


def listed(files: Mapping[str, int]) -> PartitionFiles:
    """Return what the names in a partition's folder say."""
    listing = PartitionFiles()
    for name, size in files.items():
        match = _NAME.fullmatch(name)
        if match is not None:
            version = int(match[1])
            if match[3] is None:
                listing.versions[version] = size
            elif size < TRAILER.size:
                # Azure shows an empty file while it is written, and after its writer was killed.
                listing.asides.append((version, name))
            elif match[3] == "rows":
                listing.rows.append((version, name))
            else:
                listing.snapshots.setdefault(version, []).append((name, size))
        elif (aside := _ASIDE.fullmatch(name)) is not None:
            listing.asides.append((int(aside[1]), name))
    return listing
