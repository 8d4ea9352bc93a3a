"""SST files that RocksDB takes over whole, and the record of all meta entries in them.

rocksdict ingests files into one column family in a call, so the meta entries of a commit must be in the family of its
data. They are one record with an empty key, which no store accepts as a key and which is before all others. As long as
this record is there, the family of the meta entries does not count.

RocksDB makes five syncs, at every level of durability: of the file, of the manifest, of the file again after linking it
into its folder, of the folder, and of the manifest. The last is the commit point.
Source: RocksDB, ``ExternalSstFileIngestionJob::Prepare``; its system calls, recorded with strace.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rocksdict import IngestExternalFileOptions, Options, SstFileWriter

from stores.engines.engine import FilePart
from stores.engines.rocksdb.errors import file_error, writing_error
from stores.errors import damaged

META_KEY: Final = b""
"""The key of the record of all meta entries."""
FIRST_KEY: Final = b"\x00"
"""The first key that a store can have."""
_LENGTH = struct.Struct(">I")


def record_of(meta: Mapping[bytes, bytes | None]) -> bytes:
    """Return the record of ``meta``: each name and each entry, by name, with its length before it. None is left out."""
    fields = [field for name, entry in sorted(meta.items()) if entry is not None for field in (name, entry)]
    return b"".join([part for field in fields for part in (_LENGTH.pack(len(field)), field)])


def meta_of(record: bytes) -> dict[bytes, bytes]:
    """Return the meta entries in a record. Raises: StoreCorruptedError."""
    fields, at = [], 0
    while at + _LENGTH.size <= len(record):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(record, at)[0]
        fields.append(record[begin:at])
    if at != len(record) or len(fields) % 2:
        raise damaged("the record of offsets in the RocksDB database is damaged")
    return dict(zip(fields[::2], fields[1::2], strict=True))


def write_sst_file(
    options: Options,
    path: Path,
    record: bytes | None,
    parts: Iterable[FilePart],
) -> None:
    """Write a file of sorted entries, with the record of the meta entries first if it is given.

    Raises: CommitFailedError; no file is left.
    """
    try:
        writer = SstFileWriter(options)
        writer.open(str(path))
        put = writer.__setitem__
        if record is not None:
            put(META_KEY, record)
        for keys, values in parts:
            if None in values:
                for key, value in zip(keys, values, strict=True):
                    if value is None:
                        del writer[key]
                    else:
                        put(key, value)
            else:
                deque(map(put, keys, values), maxlen=0)
        writer.finish()
    except BaseException as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        # Reading what is to be written may fail as well, with an error of the store.
        if type(error) is Exception:
            raise file_error(error, path) from error
        raise


def take_over(family: Any, files: Sequence[Path]) -> None:
    """Ingest the files into a column family, in one atomic step. Raises: CommitFailedError."""
    options = IngestExternalFileOptions()
    # A hard link, and not a copy.
    options.set_move_files(True)
    try:
        family.ingest_external_file([str(file) for file in files], options)
    except Exception as error:
        raise writing_error(error) from error
