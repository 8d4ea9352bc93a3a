"""The log of one partition: append, snapshots, restores from snapshots and versions, and the removal of old files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stores.changelog.files.format import (
    BatchWriter,
    Header,
    PartitionFiles,
    Record,
    StoreChanges,
    all_changes_in,
    batches_of,
    encoded,
    is_whole,
    unique_name,
    version_name,
    writer_of,
)
from stores.changelog.files.partition_folder import Created, PartitionFolder
from stores.changelog.files.snapshot_chains import RestorePiece, SnapshotChain, SnapshotChains
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

ROWS_WRITTEN = declare(
    "version_log.rows_written", "the rows of a batch are in their file, which no version names yet", part=Part.CHANGE
)
APPENDED = declare("version_log.appended", "a version is in the log, and no store has it", part=Part.CHANGE)
SNAPSHOT_WRITTEN = declare(
    "version_log.snapshot_written", "a snapshot is complete, and no older file is removed yet", part=Part.CHANGE
)
FAILPOINTS = ("version_log.aside_written", "version_log.in_place", ROWS_WRITTEN, APPENDED, SNAPSHOT_WRITTEN)
"""The failpoints of an append with rows and a snapshot."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retention:
    """When snapshots are written, and for how long versions are kept. Raises: ValueError."""

    snapshot_versions: int = 50
    """A snapshot is due this many versions after the last one,"""
    snapshot_bytes: int = 16 << 20
    """or when the versions since then have this size. Their changes are in memory while they are written."""
    keep_versions: int = 100
    """The newest versions that can be read by number; the newest itself does not count."""

    def __post_init__(self) -> None:
        for name in ("snapshot_versions", "snapshot_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more, not {getattr(self, name)}")
        if self.keep_versions < 0:
            raise ValueError(f"keep_versions is 0 or more, not {self.keep_versions}")


class PartitionLog:
    """The log of one partition. Any number of processes may use it; a version has one writer, the first.

    A version counts if the newest one is built on it: each version names the ID of the one before. The name of a
    removed version is free, so a late attempt may write it again; such a file is no version.

    Raises, all methods: StoreUnavailableError if the file system fails; ChangelogError for a damaged file.
    """

    def __init__(self, folder: Folder, partition: int, retention: Retention) -> None:
        self._files = PartitionFolder(folder, partition)
        self._snapshots = SnapshotChains(self._files)
        self._location = folder.location
        self.partition = partition
        self._retention = retention

    def append(self, header: Header, changes: Mapping[str, StoreChanges]) -> Header:
        """Put the version of ``header`` in the log, unless another attempt was first; return the header in the log.

        Compare its ``id``: if it is not yours, your changes and rows count for nothing, and the state of this version
        is in the log. It survives power loss either way.

        Raises: ProducerFencedError if the log has later versions: this attempt is a zombie.
        """
        try:
            placed = self._files.put_if_absent(version_name(header.version), encoded(header, changes))
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
            f"version {version} of partition {self.partition} in {self._location} was written too late: the log "
            f"is at {newest}. Stop this attempt, because another one has done its work"
        ) from cause

    def snapshot_due(self, listing: PartitionFiles) -> bool:
        """Return True if a snapshot of the newest version should be written."""
        newest = listing.newest
        if newest is None or newest in listing.snapshots:
            return False
        last = max(listing.snapshots, default=-1)
        since = [size for version, size in listing.versions.items() if version > last]
        return len(since) >= self._retention.snapshot_versions or sum(since) >= self._retention.snapshot_bytes

    def write_snapshot(self, header: Header, records: Iterable[Record]) -> None:
        """Write a snapshot of the version of ``header``, which must be in the log.

        ``records`` are all records of all stores. They are not read if the changes since the last snapshot are written
        in their place.
        """
        if not self._wrote_changes(header):
            self._snapshots.write_whole(header, records)
        reach(SNAPSHOT_WRITTEN)

    def _wrote_changes(self, header: Header) -> bool:
        """Write the changes since the last snapshot, if they are less than the state; return False if they are not."""
        listing = self.listing()
        try:
            last = self._snapshot(listing, header.version - 1)
            since = [] if last is None else _between(listing, last.version, header.version)
            num_bytes = sum(listing.versions[version] for version in since)
            if last is None or num_bytes + sum(last.sizes[1:]) >= last.sizes[0]:
                return False
            changes = self._changes_since(last, since)
            if changes is None:
                return False
            newest, share = changes
            self._snapshots.write_changes(header, last, newest, round(num_bytes * share))
        except ChangelogError as error:
            # A file is damaged or missing, and this state is not.
            _log.warning("%s", error)
            return False
        return True

    def _changes_since(self, last: SnapshotChain, since: list[int]) -> tuple[dict[str, StoreChanges], float] | None:
        """Return the newest change of each key in the versions ``since`` a snapshot, and their share in all changes.

        None if one of the versions is not built on the one before.
        """
        before, num_all = (last.version, last.id), 0
        newest: dict[str, StoreChanges] = {}
        for version in since:
            header, changes = self.read(version)
            if (header.previous, header.previous_id) != before:
                return None
            before = header.version, header.id
            for store, of_store in changes.items():
                of_newest = newest.setdefault(store, StoreChanges())
                of_newest.pairs.update(of_store.pairs)
                of_newest.marks.update(of_store.marks)
                num_all += len(of_store.pairs) + len(of_store.marks)
        return newest, sum(len(each.pairs) + len(each.marks) for each in newest.values()) / max(num_all, 1)

    def write_rows(self, header: Header, schema: pyarrow.Schema) -> RowsFile:
        """Return a new file for the rows of the version of ``header``, which counts once that version names it."""
        name = unique_name(header.version, header.id, "rows")
        return RowsFile(name, lambda: self._files.create(name), header, schema)

    def remove_old(self, listing: PartitionFiles) -> int:
        """Remove the files that nothing can ask for; return their number.

        These are versions before the newest snapshot from which each kept version can be restored, snapshots before
        that which no later one continues, rows of versions before the newest, and files that were left aside.
        """
        newest = listing.newest
        if newest is None:
            return 0
        doomed = [name for version, name in (*listing.rows, *listing.asides) if version < newest]
        oldest_kept = newest - self._retention.keep_versions
        base = max((version for version in listing.snapshots if version <= oldest_kept), default=-1)
        if min(listing.versions) < base:
            doomed += self._before_base(listing, oldest_kept)
        for name in doomed:
            self._files.remove(name)
        return len(doomed)

    def _before_base(self, listing: PartitionFiles, oldest_kept: int) -> list[str]:
        """Return the versions and snapshots that a restore of the version ``oldest_kept`` does not need."""
        try:
            base = self._snapshot(listing, oldest_kept)
        except ChangelogError as error:
            _log.warning("%s", error)
            return []
        if base is None:
            return []
        # The version of the base itself is kept: it is what a state of that version is asked for by.
        versions = [version_name(version) for version in sorted(listing.versions) if version < base.version]
        return [*base.unused(listing), *versions]

    def listing(self) -> PartitionFiles:
        """Return the files of the partition."""
        return self._files.listing()

    def header(self, version: int) -> Header:
        """Return the header of a version, which survives power loss from now on.

        Raises: OffsetOutOfRangeError if it is not in the log.
        """
        header = self._read_header(version)
        self._files.settle(version_name(version))
        return header

    def id_of(self, version: int) -> str | None:
        """Return the ID of a version, None if it is not in the log."""
        try:
            with self._files.opened(version_name(version)) as (header, _):
                return header.id
        except FileNotFoundError:
            return None

    def read(self, version: int) -> tuple[Header, dict[str, StoreChanges]]:
        """Return the header and the changes of a version. Raises: OffsetOutOfRangeError if it is not in the log."""
        what = self._files.place(version_name(version))
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
        chain = _between(listing, after, to)
        first = None
        after_id: str | None = None  # Not known for a local copy, which has numbers only.
        # Below the oldest snapshot versions may be removed, and a zombie may have written one of them again.
        if after is not None and not after < self._oldest(listing, -1) <= to:
            first = self._follower(chain, after)
        if first is None or _may_be_smaller(listing, chain, to):
            snapshot = self._snapshot(listing, to)
            if snapshot is not None and (first is None or _is_smaller(listing, snapshot, chain, after)):
                yield from self._from_snapshot(snapshot)
                after, after_id, first = snapshot.version, snapshot.id, None
                chain = _between(listing, after, to)
            elif first is None:
                first = self._follower(chain, after)
                if first is None and chain:
                    raise self._unlinked(self._read_header(chain[0]), after, to, listing)
        while chain:
            header, changes = first or self.read(chain[0])
            first = None
            if header.previous == after and after_id in (None, header.previous_id):
                after, after_id = chain.pop(0), header.id
                yield RestorePiece(changes, False, after, after_id)
                continue
            # After power loss some files are back that were removed, and others are not.
            snapshot = self._snapshot(listing, to)
            if snapshot is None or (after is not None and after >= snapshot.version):
                raise self._unlinked(header, after, to, listing)
            yield from self._from_snapshot(snapshot)
            after, after_id = snapshot.version, snapshot.id
            chain = _between(listing, after, to)

    def read_rows(self, header: Header) -> Iterator[pyarrow.RecordBatch]:
        """Return the rows of a version.

        Raises: OffsetOutOfRangeError if they are removed, because the log has a later version; ChangelogLostError if
        they are missing for another reason.
        """
        if header.rows is None:
            return
        try:
            with self._files.opened(header.rows) as (_, reader):
                yield from self._files.translated(batches_of(reader, self._files.place(header.rows)), header.rows)
        except FileNotFoundError as error:
            if self.listing().newest == header.version:
                raise ChangelogLostError(
                    f"{self._files.place(header.rows)} is missing, which has the rows of the newest version: bring it "
                    "back from a copy"
                ) from error
            raise OffsetOutOfRangeError(
                f"the rows of version {header.version} of partition {self.partition} in {self._location} are "
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
        ids = {writer_of(name) for name, _ in listing.snapshots.get(header.version, ())}
        if ids and header.id not in ids:
            raise self._out_of_range(version, listing)

    def _unlinked(
        self, header: Header, before: int | None, wanted: int, listing: PartitionFiles
    ) -> OffsetOutOfRangeError | ChangelogLostError:
        """Return the error for a version that is not built on ``before``, when ``wanted`` is asked for."""
        if wanted < self._oldest(listing, wanted):
            return self._out_of_range(wanted, listing)
        if before is None:
            predecessor = "there is none before it"
        elif before == header.previous:
            predecessor = "the one before it is another one of that number"
        else:
            predecessor = f"the one before it is {before}"
        return ChangelogLostError(
            f"partition {self.partition} in {self._location} lacks a version: {header.version} follows "
            f"{header.previous}, and {predecessor}. Bring the files back from a copy"
        )

    def _follower(self, chain: list[int], after: int | None) -> tuple[Header, dict[str, StoreChanges]] | None:
        """Return the first version of ``chain``, None if it does not follow the version ``after``."""
        if not chain:
            return None
        first = self.read(chain[0])
        return first if first[0].previous == after else None

    def _snapshot(self, listing: PartitionFiles, to: int) -> SnapshotChain | None:
        """Return the newest snapshot up to version ``to``, None if there is none.

        One of another version than the log has under its number is left from a history that a copy has replaced.
        """
        snapshot = self._snapshots.newest(listing, to)
        while snapshot is not None and not self._has(listing, snapshot.version, {snapshot.id}, if_damaged=True):
            snapshot = self._snapshots.newest(listing, snapshot.version - 1)
        return snapshot

    def _has(self, listing: PartitionFiles, version: int, ids: Set[str], *, if_damaged: bool) -> bool:
        """Return True if the version in the log has one of ``ids``, or is removed; ``if_damaged`` for a damaged one."""
        try:
            return version not in listing.versions or self.id_of(version) in (None, *ids)
        except ChangelogError:
            return if_damaged

    def _from_snapshot(self, snapshot: SnapshotChain) -> Iterator[RestorePiece]:
        try:
            yield from self._snapshots.read(snapshot)
        except FileNotFoundError as error:
            raise self._out_of_range(snapshot.version, self.listing()) from error

    def _oldest(self, listing: PartitionFiles, otherwise: int) -> int:
        """Return the oldest version that has a snapshot and is not removed, ``otherwise`` if there is none.

        An older snapshot may be there because a later one continues it. A file with the number of its version is that
        of a zombie.
        """
        for version in sorted(listing.snapshots.keys() & listing.versions.keys()):
            if self._has(
                listing, version, {writer_of(name) for name, _ in listing.snapshots[version]}, if_damaged=False
            ):
                return version
        return otherwise

    def _read_header(self, version: int) -> Header:
        with self._opened(version) as (header, _):
            return header

    @contextmanager
    def _opened(self, version: int) -> Iterator[tuple[Header, pyarrow.RecordBatchStreamReader]]:
        """Open the file of a version. Raises: OffsetOutOfRangeError if it is not in the log; ChangelogError."""
        name = version_name(version)
        with ExitStack() as resources:
            try:
                header, reader = resources.enter_context(self._files.opened(name))
            except FileNotFoundError as error:
                raise self._out_of_range(version, self.listing()) from error
            if (header.kind, header.version, header.partition) != ("version", version, self.partition):
                raise self._files.misplaced(name, header)
            yield header, reader

    def _out_of_range(self, version: int, listing: PartitionFiles) -> OffsetOutOfRangeError:
        oldest = min(listing.versions, default=None)
        if oldest is not None and version in listing.versions:
            # It was removed, and a late attempt has written a file of its name.
            oldest = self._oldest(listing, oldest)
        available = "no version" if oldest is None else f"versions {oldest} to {listing.newest}"
        return OffsetOutOfRangeError(
            f"partition {self.partition} in {self._location} has {available}, and version {version} is asked for"
        )


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


def _may_be_smaller(listing: PartitionFiles, chain: list[int], to: int) -> bool:
    """Return True if a snapshot up to ``to`` may have fewer bytes than the versions of ``chain``."""
    snapshots = [file for version, files in listing.snapshots.items() if version <= to for file in files]
    whole = min((size for name, size in snapshots if is_whole(name)), default=None)
    return whole is not None and whole < sum(listing.versions[version] for version in chain)


def _is_smaller(listing: PartitionFiles, snapshot: SnapshotChain, chain: list[int], after: int | None) -> bool:
    """Return True if the snapshot has fewer bytes than the versions of ``chain`` that it makes unnecessary."""
    if after is not None and snapshot.version <= after:
        return False
    return sum(snapshot.sizes) < sum(listing.versions[version] for version in chain if version <= snapshot.version)
