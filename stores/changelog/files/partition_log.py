"""The log of one partition: append, snapshots, and the removal of old files. Its reading side is ``reading``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stores.changelog.files.format import BatchWriter, Header
from stores.failpoints import Part, declare, reach

if TYPE_CHECKING:
    import pyarrow

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stores.changelog.files.folder import Folder
from stores.changelog.files.format import (
    Listing,
    Record,
    StoreChanges,
    encoded,
    unique_name,
    version_name,
    write_records,
)
from stores.changelog.files.reading import PartitionReader
from stores.errors import ProducerFencedError, StoreUnavailableError

if TYPE_CHECKING:
    import pyarrow


ROWS_WRITTEN = declare(
    "version_log.rows_written", "the rows of a batch are in their file, which no version names yet", part=Part.CHANGE
)
APPENDED = declare("version_log.appended", "a version is in the log, and no store has it", part=Part.CHANGE)
SNAPSHOT_WRITTEN = declare(
    "version_log.snapshot_written", "a snapshot is complete, and no older file is removed yet", part=Part.CHANGE
)
FAILPOINTS = ("version_log.aside_written", "version_log.in_place", ROWS_WRITTEN, APPENDED, SNAPSHOT_WRITTEN)
"""The failpoints of an append with rows and a snapshot."""


@dataclass(frozen=True)
class Retention:
    """When snapshots are written, and for how long versions are kept. Raises: ValueError."""

    snapshot_versions: int = 50
    """A snapshot is due this many versions after the last one,"""
    snapshot_bytes: int = 64 << 20
    """or when the versions since then have this size, if that is not less than the last snapshot's."""
    keep_versions: int = 100
    """The newest versions that can be read by number; the newest itself does not count."""

    def __post_init__(self) -> None:
        for name in ("snapshot_versions", "snapshot_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more, not {getattr(self, name)}")
        if self.keep_versions < 0:
            raise ValueError(f"keep_versions is 0 or more, not {self.keep_versions}")


class PartitionLog(PartitionReader):
    """The log of one partition. Any number of processes may use it; a version has one writer, the first.

    Raises, all methods: StoreUnavailableError if the file system fails; ChangelogError for a damaged file.
    """

    def __init__(self, folder: Folder, partition: int, retention: Retention) -> None:
        super().__init__(folder, partition)
        self._retention = retention

    def append(self, header: Header, changes: Mapping[str, StoreChanges]) -> Header:
        """Put the version of ``header`` in the log, unless another attempt was first; return the header in the log.

        Compare its ``id``: if it is not yours, your changes and rows count for nothing, and the state of this version
        is in the log. It survives power loss either way.

        Raises: ProducerFencedError if the log has later versions: this attempt is a zombie.
        """
        try:
            placed = self._folder.put_if_absent(self._path(version_name(header.version)), encoded(header, changes))
        except StoreUnavailableError as error:
            # The log has gone on, and what this attempt had left aside was removed.
            self._check_newest(header.version, error, least=True)
            raise
        self._check_newest(header.version, None)
        written = header if placed else self._read_header(header.version)
        reach(APPENDED)
        return written

    def _check_newest(self, version: int, cause: StoreUnavailableError | None, *, least: bool = False) -> None:
        """Check that ``version`` is the newest; with ``least``, that none is newer. Raises: ProducerFencedError.

        Old versions are removed, so that their names are free again. Only a zombie still writes one. Its file stays: it
        may also be the version that all others have gone on from, if this attempt was only slow.
        """
        newest = self.listing().newest
        if newest == version or (least and (newest is None or newest < version)):
            return
        raise ProducerFencedError(
            f"version {version} of partition {self.partition} in {self._folder.location} was written too late: the log "
            f"is at {newest}. Stop this attempt, because another one has done its work"
        ) from cause

    def snapshot_due(self, listing: Listing) -> bool:
        """Return True if a snapshot of the newest version should be written."""
        newest = listing.newest
        if newest is None or newest in listing.snapshots:
            return False
        last = max(listing.snapshots, default=-1)
        since = [size for version, size in listing.versions.items() if version > last]
        last_bytes = min((size for _, size in listing.snapshots.get(last, [])), default=0)
        rule = self._retention
        return len(since) >= rule.snapshot_versions or sum(since) >= max(rule.snapshot_bytes, last_bytes)

    def write_snapshot(self, header: Header, records: Iterable[Record]) -> None:
        """Write a snapshot: all records of all stores at the version of ``header``, which must be in the log."""
        with self._create(unique_name(header.version, header.id, "snapshot")) as file:
            write_records(file, header, records)
        reach(SNAPSHOT_WRITTEN)

    def write_rows(self, header: Header, schema: pyarrow.Schema) -> RowsFile:
        """Return a new file for the rows of the version of ``header``, which counts once that version names it."""
        name = unique_name(header.version, header.id, "rows")
        return RowsFile(name, lambda: self._create(name), header, schema)

    def remove_old(self, listing: Listing) -> int:
        """Remove the files that nothing can ask for; return their number.

        These are versions and snapshots before the newest snapshot from which each kept version can be restored, rows
        of versions before the newest, and files that were left aside.
        """
        newest = listing.newest
        if newest is None:
            return 0
        oldest_kept = newest - self._retention.keep_versions
        base = max((version for version in listing.snapshots if version <= oldest_kept), default=-1)
        doomed = [name for version, name in (*listing.rows, *listing.asides) if version < newest]
        doomed += [name for version, files in listing.snapshots.items() if version < base for name, _ in files]
        # The version of the base itself is kept: it is what a state of that version is asked for by.
        doomed += [version_name(version) for version in sorted(listing.versions) if version < base]
        for name in doomed:
            self._folder.remove(self._path(name))
        return len(doomed)

    def _create(self, name: str) -> Any:
        return self._folder.create(self._path(name))


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
