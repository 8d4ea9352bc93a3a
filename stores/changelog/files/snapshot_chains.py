"""Snapshots of a partition: whole, or the changes since an earlier one.

A large state is not written again for a few changes. A file of changes has the newest change of each key since the last
snapshot, in the order of keys. Its header names the files that it continues. Changes are joined with those before
them until each file is more than twice as large as the next one, as a log-structured merge tree joins runs of one size
(O'Neil et al., "The Log-Structured Merge-Tree", 1996). So the number of files, and how often a record is written again,
grow with the logarithm of the state. Once the changes are as large as the whole snapshot, the next one is whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import groupby

from stores.changelog.files.format import (
    Header,
    PartitionFiles,
    Record,
    StoreChanges,
    changes_in,
    is_whole,
    records_of,
    unique_name,
    write_records,
    writer_of,
)
from stores.changelog.files.partition_folder import PartitionFolder

_GROWTH = 2
"""A file of changes is more than this many times as large as the next one."""


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


@dataclass(frozen=True)
class SnapshotChain:
    """A snapshot whose files are all there."""

    version: int
    id: str
    """The ID of that version."""
    names: tuple[str, ...]
    """The files in the order in which they are read: a whole snapshot, then changes."""
    sizes: tuple[int, ...]
    """The size of each file."""

    def unused(self, listing: PartitionFiles) -> list[str]:
        """Return the files of earlier snapshots that this one does not continue.

        A later one that continues this one has the first of its files. Any other lacks a file then, and does not count.
        """
        older = [name for version, files in listing.snapshots.items() if version < self.version for name, _ in files]
        return sorted(set(older) - set(self.names))


class SnapshotChains:
    """The snapshots in the folder of a partition. Raises, all methods: as ``PartitionFolder``."""

    def __init__(self, folder: PartitionFolder) -> None:
        self._folder = folder

    def newest(self, listing: PartitionFiles, to: int) -> SnapshotChain | None:
        """Return the newest snapshot up to version ``to``, None if there is none.

        Changes are no snapshot if a file is missing that they continue. An attempt that was slow has written them,
        after others had gone on and had removed that file.
        """
        for version in sorted(listing.snapshots, reverse=True):
            if version <= to:
                for name, _ in listing.snapshots[version]:
                    chain = self._chain(listing, version, name)
                    if chain is not None:
                        return chain
        return None

    def read(self, chain: SnapshotChain) -> Iterator[RestorePiece]:
        """Return the pieces of a snapshot. Raises: FileNotFoundError if one of its files was removed meanwhile."""
        fresh = True
        for name in chain.names:
            for changes in self._pieces(name):
                yield RestorePiece(changes, fresh, None)
                fresh = False
        yield RestorePiece({}, fresh, chain.version, chain.id)

    def write_whole(self, header: Header, records: Iterable[Record]) -> None:
        """Write all ``records`` of all stores at the version of ``header``."""
        self._write(replace(header, kind="snapshot"), records)

    def write_changes(
        self, header: Header, last: SnapshotChain, changes: Mapping[str, StoreChanges], num_bytes: int
    ) -> None:
        """Write the ``changes`` since the snapshot ``last``, about ``num_bytes`` in a file, joined with older ones."""
        first_joined = len(last.names)
        while first_joined > 1 and last.sizes[first_joined - 1] <= _GROWTH * num_bytes:
            first_joined -= 1
            num_bytes += last.sizes[first_joined]
        with ExitStack() as resources:
            older = [resources.enter_context(closing(self._records(name))) for name in last.names[first_joined:]]
            newest = _in_order(changes)
            header = replace(header, kind="changes", parts=list(last.names[:first_joined]))
            self._write(header, _newest_of_each_key(*older, newest))

    def _write(self, header: Header, records: Iterable[Record]) -> None:
        with self._folder.create(unique_name(header.version, header.id, header.kind)) as file:
            write_records(file, header, records)

    def _chain(self, listing: PartitionFiles, version: int, name: str) -> SnapshotChain | None:
        """Return the snapshot whose last file is ``name``, None if a file is missing."""
        sizes = {each: size for files in listing.snapshots.values() for each, size in files}
        names = [name]
        if not is_whole(name):
            try:
                with self._folder.opened(name) as (header, _):
                    names = [*header.parts, name]
            except FileNotFoundError:
                return None
        if not is_whole(names[0]) or not sizes.keys() >= {*names}:
            return None
        return SnapshotChain(version, writer_of(name), tuple(names), tuple(sizes[each] for each in names))

    def _pieces(self, name: str) -> Iterator[dict[str, StoreChanges]]:
        with self._folder.opened(name) as (header, reader):
            own_name = unique_name(header.version, header.id, header.kind)
            if (own_name, header.partition) != (name, self._folder.partition):
                raise self._folder.misplaced(name, header)
            yield from self._folder.translated(changes_in(reader, self._folder.place(name)), name)

    def _records(self, name: str) -> Generator[Record, None, None]:
        for changes in self._pieces(name):
            yield from records_of(changes)


def _order(record: Record) -> tuple[str, bool, bytes]:
    """The order of a file of changes: by store, marks first, then by key."""
    store, is_mark, key, _ = record
    return store, not is_mark, key


def _in_order(changes: Mapping[str, StoreChanges]) -> Iterator[Record]:
    for store in sorted(changes):
        marks, pairs = changes[store].marks, changes[store].pairs
        for name in sorted(marks, key=str.encode):
            yield store, True, name.encode(), marks[name]
        for key in sorted(pairs):
            yield store, False, key, pairs[key]


def _newest_of_each_key(*runs: Iterable[Record]) -> Iterator[Record]:
    """Return the records of sorted ``runs``, in order; of a key that several have, that of the last run."""
    for _, records in groupby(heapq.merge(*runs, key=_order), _order):
        *_, newest = records
        yield newest
