"""The persistence model: what a disk holds after power loss at a position of a recording, and what it may hold.

Position p is before I/O operation p of a recording, behind operation p - 1; ``len`` of the operations is the last one.
A crash state is the initial content, with those of the operations 0 .. p - 1 applied, in order, that reached the disk:
all durable ones, and any legal selection of the pending ones. ``docs/power-loss-model.md`` explains it for readers.

Bytes and sizes (writes, truncations, allocations that make a file longer)
  * A sync or datasync of a file makes all earlier changes of that file durable; a sync of everything, those of all.
  * A write through an O_SYNC or O_DSYNC descriptor is durable when it returns. Earlier writes of the file are not made
    durable by it. At the position before such a write, states are added in which it was in progress: whole or torn.
  * After a failed sync of a file its earlier pending changes stay pending for ever, whatever sync follows: the kernel
    has marked the pages clean. Only data that is written again, and synced, is durable. The same holds for the one
    write through an O_SYNC or O_DSYNC descriptor whose sync failed.
  * Pending changes may reach the disk in any order, each or not, whatever the file is called by then. So a rename may
    be kept while bytes written before it are lost (delayed allocation; ext4's auto_da_alloc is not relied on). A write
    that is kept extends the file; the gap is zeros.
  * Sectors of 512 bytes are atomic, at multiples of 512 in a file. A write may be torn at any such place. Then only the
    part before is written, or only the part behind, or the part before with the size of the whole write and zeros for
    the rest. At 0 the last is a write of which only the size was written. If the write was behind the old end, the tear
    may be in the gap: then some of the zeros are all that was written.
  * Space allocated inside a file extends it if the write is lost that had extended it.
Names (creations, renames, links, unlinkings, folders made and removed) are atomic each. Three models make them durable:
  * JOURNAL: as ext4 and xfs. Metadata is in one ordered journal. A sync commits it up to the file's last change in it:
    its creation, truncation, or the last pending write that extended it. It commits no later write: the kernel may have
    written that one back, and committed the size, before later changes. Except for a datasync, and a write through
    O_DSYNC, it is also the last change of the file's names, or of its entries if it is a folder. A sync of a file that
    has no change to commit commits nothing of others.
  * NAMES: less is durable. Of what JOURNAL would commit, only what concerns the file's own names, the folders above it,
    and its entries, if it is a folder. Promises are checked against this model.
  * STRICT: less again, as POSIX says. Only a sync of each folder whose entries a change is in makes it durable.
  A failed sync of a folder leaves the pending changes of its entries pending, whatever sync follows, until a later
  change of its entries is made durable: the folder is written again with that. (A journal that can't be written is
  given up: ext4 and xfs refuse every later operation. The code that injects the fault has to do that.)
  Of pending names, NAMES and JOURNAL lose the latest ones, so that a prefix is kept; STRICT loses any.
  A file whose name was lost is lost, and its bytes with it.
Every state of JOURNAL is one of NAMES, and every one of NAMES is one of STRICT.

Beyond the model, and generated only on request: noise instead of zeros behind a torn write, and tears at multiples of
64 bytes. Not modelled: partially written folders, blocks of another file, disks that ignore syncs, writable maps.

Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), for states as subsets of unsynced
operations; fsync(2), open(2); ext4(5), auto_da_alloc; Rebello et al., "Can Applications Recover from fsync Failures?"
(ATC 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from harness.crash_states.changes import Change, Entry, File, NameChange, WriteTear
from harness.crash_states.files import EMPTY, ROOT, PathListing, Tree
from harness.io_trace.recorder import NOT_COUNTED, IoOperation, Kind


class FolderModel(StrEnum):
    """The rule by which a name becomes durable; see above."""

    NAMES = "names"
    JOURNAL = "journal"
    STRICT = "strict"


class Disk:
    """A disk while a recording is replayed: its durable content at ``position``, and its pending changes.

    ``recording`` may contain notes. Raises: ValueError if its operations are not numbered from 0, or use files that are
    neither in ``base`` nor created by them.
    """

    def __init__(self, recording: Sequence[IoOperation], base: Tree, folder_model: FolderModel) -> None:
        self.operations = numbered(recording)
        self.position = 0
        self.folder_model = folder_model
        self._written = base.copy()
        self._names = dict(base.names)
        self._name_changes: list[NameChange] = []
        self._folders_left: dict[int, set[int]] = {}
        self._name_bits = self._durable_names = 0
        # The durable contents of all files, and the files with pending changes.
        self._contents = dict(base.contents)
        self._changed: dict[int, File] = {}
        self._resized: dict[int, int] = {}
        self._named: dict[int, int] = {}
        self._listings: dict[int, tuple[dict[Entry, int], PathListing]] = {}
        self._started: IoOperation | None = None
        # Syncs that failed, by the position after them; and by file, the changes that they lost for good.
        self._failed: dict[int, list[IoOperation]] = {}
        for operation in recording:
            if operation.kind is Kind.SYNC_FAILED:
                self._failed.setdefault(operation.index, []).append(operation)
        self._lost: dict[int, int] = {}
        # By folder, the name changes that a failed sync lost, and the position after that sync.
        self._lost_names: dict[int, tuple[int, int]] = {}

    def advance(self) -> None:
        """Replay the operation at ``position``."""
        self.start()
        self.finish()

    def start(self) -> None:
        """Begin the operation at ``position``: its change is pending now, whatever the operation is."""
        if self._started is not None:
            return
        for file in self._failed.pop(self.position, ()):
            for number in (*self._changed, *self._folders()) if file.file < 0 else (self._written.number(file),):
                self._lose(number)
        operation = self._started = self.operations[self.position]
        change = self._written.change(operation)
        self._written.perform(operation, change)
        if isinstance(change, NameChange):
            self._start_names(operation, change)
        elif change is not None:
            if change.file not in self._changed:
                self._changed[change.file] = File(self._contents[change.file])
            self._changed[change.file].add(change)
            if operation.unkept:
                self._lost[change.file] = self._lost.get(change.file, 0) | change.bit
            if operation.kind is Kind.TRUNCATE or (operation.kind is Kind.ALLOCATE and change.grows):
                self._resized[change.file] = operation.index

    def finish(self) -> None:
        """End the operation that was begun: changes that it makes durable are durable now."""
        operation = self._started
        assert operation is not None
        if operation.kind is Kind.SYNC_ALL:
            for number, file in list(self._changed.items()):
                self._make_durable(number, file.bits & ~self._lost.get(number, 0))
            self._make_names_durable(self._name_changes)
        elif operation.kind in (Kind.SYNC, Kind.DATASYNC):
            number = self._written.number(operation)
            grown_at = self._changed[number].grown_at() if number in self._changed else -1
            if number in self._changed:
                self._make_durable(number, self._changed[number].bits & ~self._lost.get(number, 0))
            self._sync_names(number, grown_at, data_only=operation.kind is Kind.DATASYNC)
        elif operation.synchronous and operation.kind is Kind.WRITE and operation.data:
            number = self._written.number(operation)
            grown_at = operation.index if self._changed[number].changes[-1].grows else -1
            self._make_durable(number, 1 << operation.index)
            self._sync_names(number, grown_at, data_only=True)
        for file in self._changed.values():
            file.turn()
        self._started = None
        self.position += 1

    def pending(self) -> list[Change]:
        """Return the pending changes in order, without those of files whose last name is durably removed."""
        names = [change for change in self._name_changes if not change.bit & self._durable_names]
        named = {*self._names.values(), *(change.file for change in self._name_changes)}
        changes: list[Change] = [*names]
        for number in named:
            if file := self._changed.get(number):
                changes += [change for change in file.changes if not change.bit & file.durable_bits]
        return sorted(changes, key=lambda change: change.index)

    def changed(self, number: int) -> File | None:
        """Return file ``number`` with its pending changes, or None if it has none. It must not be changed."""
        return self._changed.get(number)

    def tree(self, kept: int, tears: tuple[WriteTear, ...] = ()) -> Tree:
        """Return the state with all durable changes and those whose bits are in ``kept``. It must not be changed."""
        names, listing = self._listed((kept | self._durable_names) & self._name_bits)
        contents = self._contents.copy()
        for number, file in self._changed.items():
            contents[number] = file.with_kept(kept, tears)
        return Tree(names, contents, listing)

    def _listed(self, bits: int) -> tuple[dict[Entry, int], PathListing]:
        listing = self._listings.get(bits)
        if listing is None:
            names = dict(self._names)
            for change in self._name_changes:
                if change.bit & bits:
                    change.apply(names)
            listing = self._listings[bits] = names, PathListing(names)
        return listing

    def _start_names(self, operation: IoOperation, change: NameChange) -> None:
        self._name_changes.append(change)
        self._name_bits |= change.bit
        self._folders_left[change.index] = set(change.folders)
        if operation.kind is Kind.CREATE:
            self._contents[change.file] = EMPTY
        for number in (change.file, *change.folders):
            self._named[number] = change.index
        if change.creates:
            self._resized[change.file] = change.index

    def _lose(self, number: int) -> None:
        if number in self._changed:
            file = self._changed[number]
            self._lost[number] = self._lost.get(number, 0) | (file.bits & ~file.durable_bits)
        bits = sum(change.bit for change in self._name_changes if number in change.folders)
        if bits & ~self._durable_names:
            self._lost_names[number] = bits & ~self._durable_names, self.position

    def _folders(self) -> set[int]:
        return {folder for change in self._name_changes for folder in change.folders}

    def _make_durable(self, number: int, bits: int) -> None:
        file = self._changed[number]
        file.durable_bits |= bits
        if file.durable_bits == file.bits:
            self._contents[number] = file.with_kept(file.bits)
            del self._changed[number]

    def _sync_names(self, number: int, grown_at: int, data_only: bool) -> None:
        """Make the names durable that a sync of ``number`` commits; ``grown_at`` is its last extension."""
        if self.folder_model is FolderModel.STRICT:
            if data_only:
                return
            for change in self._name_changes:
                self._folders_left[change.index].discard(number)
            self._make_names_durable(change for change in self._name_changes if not self._folders_left[change.index])
            return
        upto = max(grown_at, self._resized.get(number, -1), -1 if data_only else self._named.get(number, -1))
        committed = [change for change in self._name_changes if change.index <= upto]
        if self.folder_model is FolderModel.NAMES:
            own = self._with_folders_above(number)
            committed = [change for change in committed if change.file in own or number in change.folders]
        self._make_names_durable(committed)

    def _make_names_durable(self, changes: Iterable[NameChange]) -> None:
        committed = list(changes)
        for folder, (_, failed_at) in list(self._lost_names.items()):
            if any(folder in change.folders and change.index >= failed_at for change in committed):
                del self._lost_names[folder]
        excluded = 0
        for bits, _ in self._lost_names.values():
            excluded |= bits
        durable = 0
        for change in committed:
            durable |= change.bit & ~excluded
        if not durable:
            return
        self._durable_names |= durable
        while self._name_changes and self._name_changes[0].bit & self._durable_names:
            change = self._name_changes.pop(0)
            change.apply(self._names)
            del self._folders_left[change.index]
        self._listings.clear()

    def _with_folders_above(self, number: int) -> set[int]:
        above, parents = {number}, {number}
        while parents:
            parents = {folder for (folder, _), file in self._written.names.items() if file in parents} - above - {ROOT}
            above |= parents
        return above


def numbered(recording: Sequence[IoOperation]) -> list[IoOperation]:
    """Return the operations of ``recording`` that are counted. Raises: ValueError if one is missing."""
    operations = [operation for operation in recording if operation.kind not in NOT_COUNTED]
    for place, operation in enumerate(operations):
        if operation.index != place:
            raise ValueError(
                f"a recording's operations count from 0: operation {place} says that it is {operation.index}"
            )
    return operations
