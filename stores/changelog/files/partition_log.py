"""The log of one partition: append, snapshots, restores from snapshots and versions, and the removal of old files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from stores.changelog.files.format import (
    BatchWriter,
    Header,
    PartitionFiles,
    Record,
    StoreChanges,
    all_changes_in,
    batches_of,
    changes_in,
    check,
    encoded,
    folder_name,
    listed,
    read_header,
    records_of,
    unique_name,
    version_name,
    write_records,
)
from stores.errors import (
    ChangelogError,
    ChangelogLostError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StoreUnavailableError,
)
from stores.failpoints import Part, declare, reach
from stores.files.folder import Folder
from stores.files.plain_files import translated_system_errors

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
Created = AbstractContextManager[IO[bytes]]

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


@dataclass(frozen=True)
class RestorePiece:
    """A part of a restore. With ``fresh``, the state begins with it: what was there before does not count."""

    changes: Mapping[str, StoreChanges]
    fresh: bool
    reached: int | None
    """The version that the state has with this piece, None if more pieces of it follow."""
    id: str | None = None
    """The ID of that version."""

    @property
    def records(self) -> Iterator[Record]:
        """The records, by store; marks are first."""
        return records_of(self.changes)


class PartitionLog:
    """The log of one partition. Any number of processes may use it; a version has one writer, the first.

    A version counts if the newest one is built on it: each version names the ID of the one before. The name of a
    removed version is free, so a late attempt may write it again; such a file is no version.

    Raises, all methods: StoreUnavailableError if the file system fails; ChangelogError for a damaged file.
    """

    def __init__(self, folder: Folder, partition: int, retention: Retention) -> None:
        self._folder = folder
        self.partition = partition
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
        header_in_log = header if placed else self._read_header(header.version)
        reach(APPENDED)
        return header_in_log

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

    def snapshot_due(self, listing: PartitionFiles) -> bool:
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

    def remove_old(self, listing: PartitionFiles) -> int:
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

    def _create(self, name: str) -> Created:
        return self._folder.create(self._path(name))

    def listing(self) -> PartitionFiles:
        """Return the files of the partition."""
        return listed(self._folder.names(folder_name(self.partition)))

    def header(self, version: int) -> Header:
        """Return the header of a version, which survives power loss from now on.

        Raises: OffsetOutOfRangeError if it is not in the log.
        """
        name = self._path(version_name(version))
        header = self._read_header(version)
        self._folder.settle(name)
        return header

    def id_of(self, version: int) -> str | None:
        """Return the ID of a version, None if it is not in the log."""
        try:
            return self._read_header(version).id
        except OffsetOutOfRangeError:
            return None

    def read(self, version: int) -> tuple[Header, dict[str, StoreChanges]]:
        """Return the header and the changes of a version. Raises: OffsetOutOfRangeError if it is not in the log."""
        what = self._what(version_name(version))
        with self._opened(version) as (header, reader), translated_system_errors(Path(what)):
            return header, all_changes_in(reader, what)

    def restore(self, after: int | None, to: int) -> Iterator[RestorePiece]:
        """Return the pieces that bring a state from version ``after`` (None: an empty state) to version ``to``.

        They are the versions in between, or the newest snapshot up to ``to`` and the versions after that, if versions
        in between are removed or there are fewer bytes to read. Each version is checked against the one before. If
        ``to`` is not the newest, it is also checked against those after it, up to the next snapshot.

        Raises: OffsetOutOfRangeError if ``to`` is not in the log, or is older than the versions that are kept;
        ChangelogLostError if a version in between is missing.
        """
        listing = self.listing()
        if to not in listing.versions:
            raise self._out_of_range(to, listing)
        if after == to:
            return
        self._check_followed(to, listing)
        oldest = min(listing.snapshots, default=-1)
        snapshot = max((version for version in listing.snapshots if version <= to), default=None)
        chain = _between(listing, after, to)
        # Below the oldest snapshot versions may be removed, and a zombie may have written one of them again.
        first = None if after is None or after < oldest <= to else self._follower(chain, after)
        after_id: str | None = None  # Not known for a local copy, which has numbers only.
        if first is None and snapshot is None:
            first = self._follower(chain, after)
            if first is None and chain:
                raise self._unlinked(self._read_header(chain[0]), after, to, listing)
        elif snapshot is not None and (first is None or _is_smaller(listing, snapshot, chain, after)):
            after_id = yield from self._from_snapshot(listing, snapshot)
            chain, after, first = _between(listing, snapshot, to), snapshot, None
        while chain:
            header, changes = first or self.read(chain[0])
            first = None
            if header.previous == after and after_id in (None, header.previous_id):
                after, after_id = chain.pop(0), header.id
                yield RestorePiece(changes, False, after, after_id)
            elif snapshot is not None and (after is None or after < snapshot):
                # After power loss some files are back that were removed, and others are not.
                after_id = yield from self._from_snapshot(listing, snapshot)
                chain, after = _between(listing, snapshot, to), snapshot
            else:
                raise self._unlinked(header, after, to, listing)

    def read_rows(self, header: Header) -> Iterator[pyarrow.RecordBatch]:
        """Return the rows of a version.

        Raises: OffsetOutOfRangeError if they are removed, because the log has a later version; ChangelogLostError if
        they are missing for another reason.
        """
        if header.rows is None:
            return
        try:
            with self._checked(header.rows) as file:
                _, reader = self._header_in(file, header.rows)
                yield from self._translated(batches_of(reader, self._what(header.rows)), header.rows)
        except FileNotFoundError as error:
            if self.listing().newest == header.version:
                raise ChangelogLostError(
                    f"{self._what(header.rows)} is missing, which has the rows of the newest version: bring it back "
                    "from a copy"
                ) from error
            raise OffsetOutOfRangeError(
                f"the rows of version {header.version} of partition {self.partition} in {self._folder.location} are "
                "removed: only the newest version is given out again"
            ) from error

    def _check_followed(self, version: int, listing: PartitionFiles) -> None:
        """Check that the versions after ``version`` are built on it, up to one with a snapshot, or the newest.

        A snapshot is of a version that counts, and its name has the ID of that one.

        Raises: OffsetOutOfRangeError, ChangelogLostError.
        """
        if version == listing.newest:
            return
        header, later = self._read_header(version), sorted(each for each in listing.versions if each > version)
        while later and header.version not in listing.snapshots:
            following = self._read_header(later.pop(0))
            if (following.previous, following.previous_id) != (header.version, header.id):
                raise self._unlinked(following, header.version, version, listing)
            header = following
        names = [name for name, _ in listing.snapshots.get(header.version, ())]
        if names and unique_name(header.version, header.id, "snapshot") not in names:
            raise self._out_of_range(version, listing)

    def _unlinked(
        self, header: Header, before: int | None, wanted: int, listing: PartitionFiles
    ) -> OffsetOutOfRangeError | ChangelogLostError:
        """Return the error for a version that is not built on ``before``, when ``wanted`` is asked for."""
        if wanted < min(listing.snapshots, default=wanted):
            return self._out_of_range(wanted, listing)
        if before is None:
            predecessor = "there is none before it"
        elif before == header.previous:
            predecessor = "the one before it is another one of that number"
        else:
            predecessor = f"the one before it is {before}"
        return ChangelogLostError(
            f"partition {self.partition} in {self._folder.location} lacks a version: {header.version} follows "
            f"{header.previous}, and {predecessor}. Bring the files back from a copy"
        )

    def _follower(self, chain: list[int], after: int | None) -> tuple[Header, dict[str, StoreChanges]] | None:
        """Return the first version of ``chain``, None if it does not follow the version ``after``."""
        if not chain:
            return None
        first = self.read(chain[0])
        return first if first[0].previous == after else None

    def _from_snapshot(self, listing: PartitionFiles, version: int) -> Generator[RestorePiece, None, str]:
        """Yield the pieces of a snapshot; return the ID of its version."""
        name, _ = min(listing.snapshots[version])
        fresh = True
        with self._content(version, name) as (header, reader):
            for changes in self._translated(changes_in(reader, self._what(name)), name):
                yield RestorePiece(changes, fresh, None)
                fresh = False
        yield RestorePiece({}, fresh, version, header.id)
        return header.id

    def _read_header(self, version: int) -> Header:
        with self._opened(version) as (header, _):
            return header

    @contextmanager
    def _opened(self, version: int) -> Iterator[tuple[Header, pyarrow.RecordBatchStreamReader]]:
        """Open the file of a version. Raises: OffsetOutOfRangeError if it is not in the log; ChangelogError."""
        name = version_name(version)
        with self._content(version, name) as (header, reader):
            if (header.kind, header.version, header.partition) != ("version", version, self.partition):
                raise ChangelogError(
                    f"{self._what(name)} holds version {header.version} of partition {header.partition}: bring the "
                    "right file back from a copy"
                )
            yield header, reader

    @contextmanager
    def _content(self, version: int, name: str) -> Iterator[tuple[Header, pyarrow.RecordBatchStreamReader]]:
        try:
            file = self._checked(name)
        except FileNotFoundError as error:
            raise self._out_of_range(version, self.listing()) from error
        with file:
            yield self._header_in(file, name)

    def _out_of_range(self, version: int, listing: PartitionFiles) -> OffsetOutOfRangeError:
        oldest = min(listing.versions, default=None)
        if version in listing.versions:
            # It was removed, and a late attempt has written a file of its name.
            oldest = min(listing.snapshots, default=oldest)
        available = "no version" if oldest is None else f"versions {oldest} to {listing.newest}"
        return OffsetOutOfRangeError(
            f"partition {self.partition} in {self._folder.location} has {available}, and version {version} is asked for"
        )

    def _checked(self, name: str) -> IO[bytes]:
        file = self._folder.open(self._path(name))
        try:
            with translated_system_errors(Path(self._what(name))):
                check(file, self._what(name))
        except BaseException:
            file.close()
            raise
        return file

    def _header_in(self, file: IO[bytes], name: str) -> tuple[Header, pyarrow.RecordBatchStreamReader]:
        with translated_system_errors(Path(self._what(name))):
            return read_header(file, self._what(name))

    def _translated(self, pieces: Iterator[T], name: str) -> Iterator[T]:
        """Return the pieces of a file. Raises: StoreUnavailableError for an error of the file system."""
        with translated_system_errors(Path(self._what(name))):
            yield from pieces

    def _path(self, name: str) -> str:
        return f"{folder_name(self.partition)}/{name}"

    def _what(self, name: str) -> str:
        return f"{self._folder.location}/{self._path(name)}"


class RowsFile:
    """The rows of one attempt at a version. The file is made with the first row, in place at ``finish``."""

    def __init__(self, name: str, create: Callable[[], Created], header: Header, schema: pyarrow.Schema) -> None:
        self._name, self._create, self._header, self._schema = name, create, header, schema
        self._resources = ExitStack()
        self._writer: BatchWriter | None = None
        self.num_rows = 0

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Write a batch of rows."""
        if self._writer is None:
            file = self._resources.enter_context(self._create())
            self._writer = self._resources.enter_context(BatchWriter(file, self._header, self._schema))
        self._writer.write(batch)
        self.num_rows += batch.num_rows

    def finish(self) -> str | None:
        """Put the file in place; return its name, None if there are no rows."""
        if self._writer is None:
            return None
        self._writer = None
        self._resources.close()
        reach(ROWS_WRITTEN)
        return self._name

    def discard(self, error: BaseException) -> None:
        """Leave no file, because of ``error``. No effect after ``finish``."""
        if self._writer is not None:
            self._writer = None
            self._resources.__exit__(type(error), error, error.__traceback__)


def _between(listing: PartitionFiles, after: int | None, to: int) -> list[int]:
    return sorted(version for version in listing.versions if (after is None or version > after) and version <= to)


def _is_smaller(listing: PartitionFiles, snapshot: int, chain: list[int], after: int | None) -> bool:
    """Return True if the snapshot has fewer bytes than the versions of ``chain`` that it makes unnecessary."""
    if after is not None and snapshot <= after:
        return False
    size = min(size for _, size in listing.snapshots[snapshot])
    return size < sum(listing.versions[version] for version in chain if version <= snapshot)
