"""RocksDB databases of Kafka Streams, opened for reads without a change to their files.

A key-value store of Kafka Streams has its pairs in the family ``default``. A timestamped one has them in the family
``keyValueWithTimestamp``, and the values begin with eight bytes of their time. Its ``default`` has the pairs from
before it had timestamps, which Kafka Streams moves when it next writes or reads their keys. The segments of a window
or session store are such databases, and a versioned store is a plain one.

From Kafka Streams 4.3 on, each database has a family ``offsets``. It has the offset under ``TOPIC-PARTITION``, the
position, and a status, which is 1 while Kafka Streams has the database open. All families are flushed together.

Source: Kafka Streams 4.4, ``AbstractColumnFamilyAccessor``, ``PositionSerde`` (KIP-1035); Kafka Streams 4.1,
``RocksDBStore``, ``RocksDBTimestampedStore``, ``KeyValueSegment``, ``TimestampedSegment``,
``LogicalKeyValueSegments``; KIP-258.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import Any

from rocksdict import AccessType, Rdict

from stores.engines.engine import converted
from stores.engines.rocksdb.database import (
    close_handle,
    column_families,
    database_options,
    manifest_of,
    opening_error,
    reading_error,
)
from stores.engines.rocksdb.engine import RocksDBEngine
from stores.engines.rocksdb.reader import Mirror, mirrored
from stores.engines.rocksdb.scan import RocksDBScan
from stores.errors import StoreCorruptedError
from stores.interface import TopicPartition
from stores.ordered import WHOLE, ScanRange

PLAIN, TIMESTAMPED = "default", "keyValueWithTimestamp"
"""The column families of databases of Kafka Streams, which have records."""
_OFFSETS = "offsets"
_STATUS, _POSITION = b"status", b"position"
_CLOSED = bytes(8)
_COUNT, _PARTITION_OFFSET = Struct(">i"), Struct(">iq")


class StreamsDatabase:
    """The database in the folder ``path``, which no process has open. For one thread.

    Raises, all methods: StoreCorruptedError for damage; StoreUnavailableError; the constructor also OSError.
    """

    def __init__(self, path: Path) -> None:
        RocksDBEngine._note_use(path)
        if manifest_of(path) is None or RocksDBEngine.is_doubtful(path):
            raise StoreCorruptedError(f"{path} is damaged: its WAL or its manifest is not one that RocksDB writes")
        RocksDBEngine.check_closed(path)
        self._path = path
        families = column_families(path)
        self.families = families - {_OFFSETS}
        """The names of all column families, but for that of offsets."""
        self._keeps_end = _OFFSETS in families
        # rocksdict writes its own settings at each opening, so it gets a folder with links to the files.
        self._mirror: Mirror | None = mirrored(path)
        self._handles: dict[str, Any] = {}
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        assert self._mirror is not None
        options = database_options(RocksDBEngine.options)
        names = self.families & {PLAIN, TIMESTAMPED} | ({_OFFSETS} if self._keeps_end else set())
        families = {name: database_options(RocksDBEngine.options) for name in names}
        with converted(Exception, lambda error: opening_error(error, path)):
            database = Rdict(
                self._mirror.name, options=options, column_families=families, access_type=AccessType.read_only(False)
            )
            self._handles[PLAIN] = database
            for name in names - {PLAIN}:
                self._handles[name] = database.get_column_family(name)

    def end(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]] | None:
        """Return the offsets and the position that the database keeps, None if Kafka Streams keeps them in files.

        Both are empty if it was not closed cleanly.
        """
        if not self._keeps_end:
            return None
        entries = {key: data for chunk in self.chunks(_OFFSETS) for key, data in chunk}
        position = entries.pop(_POSITION, b"")
        if entries.pop(_STATUS, _CLOSED) != _CLOSED:
            return {}, {}
        try:
            offsets = {_partition(key): _offset(data) for key, data in entries.items()}
            return offsets, _position(position)
        except (ValueError, struct_error) as error:
            raise StoreCorruptedError(f"the offsets in {self._path} can't be read: {error}") from error

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of ``key`` in ``family``."""
        try:
            return self._handles[family].get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise reading_error(error) from error

    def chunks(self, family: str, bounds: ScanRange = WHOLE) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the pairs of ``family`` within ``bounds`` in order, some hundred or about a megabyte at a time."""
        scan = RocksDBScan(self._handles[family], bounds)
        try:
            while chunk := scan.fetch():
                yield chunk
        finally:
            scan.close()

    def is_empty(self, family: str) -> bool:
        """Return whether ``family`` has no pair. Only the first pairs are read."""
        return next(self.chunks(family), None) is None

    def close(self) -> None:
        """Close the database. May be called more than once."""
        handles, self._handles = self._handles, {}
        mirror, self._mirror = self._mirror, None
        try:
            with converted(Exception, reading_error):
                for handle in handles.values():
                    close_handle(handle)
        finally:
            if mirror is not None:
                mirror.cleanup()


def _partition(key: bytes) -> TopicPartition:
    topic, _, number = key.decode().rpartition("-")
    return TopicPartition(topic, int(number))


def _offset(data: bytes) -> int:
    offset = int.from_bytes(data, "big", signed=True)
    if len(data) != len(_CLOSED) or offset < 0:
        raise ValueError(f"{data!r} is no offset")
    return offset


def _position(data: bytes) -> dict[TopicPartition, int]:
    """Return a position: a byte for the version, then for each topic its name, and offsets by partition."""
    position: dict[TopicPartition, int] = {}
    if not data:
        return position
    if data[0]:
        raise ValueError(f"the position has version {data[0]}")
    (topics,), at = _COUNT.unpack_from(data, 1), 1 + _COUNT.size
    for _ in range(topics):
        (length,) = _COUNT.unpack_from(data, at)
        topic = data[at + _COUNT.size : (at := at + _COUNT.size + length)].decode()
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        for _ in range(count):
            number, offset = _PARTITION_OFFSET.unpack_from(data, at)
            position[TopicPartition(topic, number)] = offset
            at += _PARTITION_OFFSET.size
    return position
