"""What a disk is sure to hold, and what it may hold, when the power is lost at a position of a recording.

Position p lies before effect p of a recording, behind effect p - 1; ``len`` of the effects is the last one. A state is
what was there before the recording, with those of the effects 0 .. p - 1 applied, in their order, that reached the
disk: all that are sure, and any legal choice of the others.

Bytes and sizes (writes, truncations, allocations that lengthen a file)
  * A sync or datasync of a file makes all earlier changes of that file sure; a sync of everything, those of every file.
  * A write through an O_SYNC or O_DSYNC descriptor is sure once it returned; earlier writes of the file are not, by it.
    At the position before such a write, states are added in which it was under way: whole or torn.
  * A sync of a file that failed leaves its earlier unsynced changes unsure for ever, whatever sync comes later: the
    system takes them for written. Only what is written anew, and synced, is sure. The same goes for the one write
    through an O_SYNC or O_DSYNC descriptor whose sync failed.
  * The others may reach the disk in any order, each or not, whatever the file is called by then: so a rename may be
    kept while bytes written before it are lost (delayed allocation; ext4's auto_da_alloc is not relied on). A write
    that is kept lengthens the file; what lies between is zeros.
  * Sectors of 512 bytes are atomic, and lie at multiples of 512 in a file. A write may be torn at any such place: only
    what is before it was written, or only what is behind, or what is before while the size is the whole write's and the
    rest is zeros. At 0 the last is a write of which only the size was written. Where the write lay behind the old end,
    the tear may lie between: some of the zeros are all that was written.
  * Space allocated inside a file lengthens it where the write is lost that had made it longer.
Names (creations, renames, links, unlinkings, folders made and removed) are atomic each, and are sure by a folder model
  * JOURNAL: as ext4 and xfs. Metadata lie in one ordered journal, and a sync commits it up to the file's last change in
    it: its creation, truncation, the last unsynced write that lengthened it (no further: the kernel may have written
    that back, and committed the size, before what came later), or (but for a datasync, and a write through O_DSYNC)
    the last change of its own names, or of the entries where it is a folder. A sync of a file that has no change to
    commit commits nothing of others.
  * GATE: less is sure. Of what JOURNAL would commit, only what concerns the file's own names, the folders above it,
    and its entries, where it is a folder. This is the model that promises are held to.
  * STRICT: less again, what POSIX says. Only a sync of each folder whose entries a change is in makes it sure.
  A sync of a folder that failed leaves the unsynced changes of its entries unsure, whatever sync comes later, until a
  later change of its entries is made sure: the folder is written anew with that. (A journal that can't be written is
  given up: ext4 and xfs refuse every later effect, which is for whoever plans the fault to play.)
  Of names that are not sure, GATE and JOURNAL lose the latest ones, so that a prefix is kept; STRICT loses any.
  A file whose name was lost is lost, and its bytes with it.
Every state of JOURNAL is one of GATE, and every one of GATE is one of STRICT.

Beyond the model, and generated only when asked for: noise instead of zeros behind a torn write, and tears at multiples
of 64 bytes. Not modelled: folders in parts, blocks that were another file's, disks that lie about syncs, writable maps.

Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), for states as subsets of unsynced effects;
fsync(2), open(2); ext4(5), auto_da_alloc; Rebello et al., "Can Applications Recover from fsync Failures?" (ATC 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from harness.disk.changes import Change, Entry, NameChange
from harness.disk.files import EMPTY, ROOT, Listing, Tree
from harness.disk.unsynced import File, Tear
from harness.effects.recording import NOT_COUNTED, Effect, Kind


class FolderModel(StrEnum):
    """When a name is sure; see above."""

    GATE = "gate"
    JOURNAL = "journal"
    STRICT = "strict"


class Disk:
    """A disk while a recording is played: what it holds for sure at ``position``, and what it may have lost.

    ``recording`` may hold notes. Raises: ValueError where its effects are not numbered from 0, or speak of files that
    are neither in ``base`` nor made by them.
    """

    def __init__(self, recording: Sequence[Effect], base: Tree, folder_model: FolderModel) -> None:
        self.effects = numbered(recording)
        self.position = 0
        self.folder_model = folder_model
        self._written = base.copy()
        self._names = dict(base.names)
        self._name_changes: list[NameChange] = []
        self._folders_left: dict[int, set[int]] = {}
        self._name_bits = self._sure_names = 0
        # Of all files the contents that are sure; and those files of which more was written.
        self._contents = dict(base.contents)
        self._changed: dict[int, File] = {}
        self._resized: dict[int, int] = {}
        self._named: dict[int, int] = {}
        self._listings: dict[int, tuple[dict[Entry, int], Listing]] = {}
        self._started: Effect | None = None
        # Syncs that failed, by the position behind them; and the changes, by file, that they took for good.
        self._failed: dict[int, list[Effect]] = {}
        for effect in recording:
            if effect.kind is Kind.SYNC_FAILED:
                self._failed.setdefault(effect.index, []).append(effect)
        self._forsaken: dict[int, int] = {}
        # By folder the name changes that it has forsaken, and the position behind the sync that failed.
        self._forsaken_names: dict[int, tuple[int, int]] = {}

    def advance(self) -> None:
        """Play the effect at ``position``."""
        self.start()
        self.finish()

    def start(self) -> None:
        """Begin the effect at ``position``: what it changes is among what may be lost, whatever the effect is."""
        if self._started is not None:
            return
        for failed in self._failed.pop(self.position, ()):
            for number in (*self._changed, *self._folders()) if failed.file < 0 else (self._written.number(failed),):
                self._forsake(number)
        effect = self._started = self.effects[self.position]
        change = self._written.change(effect)
        self._written.perform(effect, change)
        if isinstance(change, NameChange):
            self._start_names(effect, change)
        elif change is not None:
            if change.file not in self._changed:
                self._changed[change.file] = File(self._contents[change.file])
            self._changed[change.file].add(change)
            if effect.unkept:
                self._forsaken[change.file] = self._forsaken.get(change.file, 0) | change.bit
            if effect.kind is Kind.TRUNCATE or (effect.kind is Kind.ALLOCATE and change.grows):
                self._resized[change.file] = effect.index

    def finish(self) -> None:
        """End the effect that was begun: what it makes sure is sure."""
        effect = self._started
        assert effect is not None
        if effect.kind is Kind.SYNC_ALL:
            for number, file in list(self._changed.items()):
                self._make_sure(number, file.bits & ~self._forsaken.get(number, 0))
            self._make_names_sure(self._name_changes)
        elif effect.kind in (Kind.SYNC, Kind.DATASYNC):
            number = self._written.number(effect)
            grown_at = self._changed[number].grown_at() if number in self._changed else -1
            if number in self._changed:
                self._make_sure(number, self._changed[number].bits & ~self._forsaken.get(number, 0))
            self._sync_names(number, grown_at, data_only=effect.kind is Kind.DATASYNC)
        elif effect.synchronous and effect.kind is Kind.WRITE and effect.data:
            number = self._written.number(effect)
            grown_at = effect.index if self._changed[number].changes[-1].grows else -1
            self._make_sure(number, 1 << effect.index)
            self._sync_names(number, grown_at, data_only=True)
        for file in self._changed.values():
            file.turn()
        self._started = None
        self.position += 1

    def unsure(self) -> list[Change]:
        """What may be lost here, in its order. Left out: changes of files whose last name is gone for sure."""
        names = [change for change in self._name_changes if not change.bit & self._sure_names]
        named = {*self._names.values(), *(change.file for change in self._name_changes)}
        changes: list[Change] = [*names]
        for number in named:
            if file := self._changed.get(number):
                changes += [change for change in file.changes if not change.bit & file.sure_bits]
        return sorted(changes, key=lambda change: change.index)

    def changed(self, number: int) -> File | None:
        """File ``number`` with what it may have lost; None where all its bytes are sure. Not to be changed."""
        return self._changed.get(number)

    def tree(self, kept: int, tears: tuple[Tear, ...] = ()) -> Tree:
        """The state that keeps, beside what is sure, the changes whose bits are in ``kept``. Not to be changed."""
        names, listing = self._listed((kept | self._sure_names) & self._name_bits)
        contents = self._contents.copy()
        for number, file in self._changed.items():
            contents[number] = file.with_kept(kept, tears)
        return Tree(names, contents, listing)

    def _listed(self, bits: int) -> tuple[dict[Entry, int], Listing]:
        found = self._listings.get(bits)
        if found is None:
            names = dict(self._names)
            for change in self._name_changes:
                if change.bit & bits:
                    change.apply(names)
            found = self._listings[bits] = names, Listing(names)
        return found

    def _start_names(self, effect: Effect, change: NameChange) -> None:
        self._name_changes.append(change)
        self._name_bits |= change.bit
        self._folders_left[change.index] = set(change.folders)
        if effect.kind is Kind.CREATE:
            self._contents[change.file] = EMPTY
        for number in (change.file, *change.folders):
            self._named[number] = change.index
        if change.creates:
            self._resized[change.file] = change.index

    def _forsake(self, number: int) -> None:
        if number in self._changed:
            file = self._changed[number]
            self._forsaken[number] = self._forsaken.get(number, 0) | (file.bits & ~file.sure_bits)
        bits = sum(change.bit for change in self._name_changes if number in change.folders)
        if bits & ~self._sure_names:
            self._forsaken_names[number] = bits & ~self._sure_names, self.position

    def _folders(self) -> set[int]:
        return {folder for change in self._name_changes for folder in change.folders}

    def _make_sure(self, number: int, bits: int) -> None:
        file = self._changed[number]
        file.sure_bits |= bits
        if file.sure_bits == file.bits:
            self._contents[number] = file.with_kept(file.bits)
            del self._changed[number]

    def _sync_names(self, number: int, grown_at: int, data_only: bool) -> None:
        """Make those names sure that a sync of file or folder ``number`` does, which ``grown_at`` lengthened last."""
        if self.folder_model is FolderModel.STRICT:
            if data_only:
                return
            for change in self._name_changes:
                self._folders_left[change.index].discard(number)
            self._make_names_sure(change for change in self._name_changes if not self._folders_left[change.index])
            return
        upto = max(grown_at, self._resized.get(number, -1), -1 if data_only else self._named.get(number, -1))
        committed = [change for change in self._name_changes if change.index <= upto]
        if self.folder_model is FolderModel.GATE:
            own = self._with_folders_above(number)
            committed = [change for change in committed if change.file in own or number in change.folders]
        self._make_names_sure(committed)

    def _make_names_sure(self, changes: Iterable[NameChange]) -> None:
        committed = list(changes)
        for folder, (_, failed_at) in list(self._forsaken_names.items()):
            if any(folder in change.folders and change.index >= failed_at for change in committed):
                del self._forsaken_names[folder]
        forsaken = 0
        for bits, _ in self._forsaken_names.values():
            forsaken |= bits
        sure = 0
        for change in committed:
            sure |= change.bit & ~forsaken
        if not sure:
            return
        self._sure_names |= sure
        while self._name_changes and self._name_changes[0].bit & self._sure_names:
            change = self._name_changes.pop(0)
            change.apply(self._names)
            del self._folders_left[change.index]
        self._listings.clear()

    def _with_folders_above(self, number: int) -> set[int]:
        above, found = {number}, {number}
        while found:
            found = {folder for (folder, _), named in self._written.names.items() if named in found} - above - {ROOT}
            above |= found
        return above


def numbered(recording: Sequence[Effect]) -> list[Effect]:
    """The effects of ``recording`` without what doesn't count. Raises: ValueError where one is missing."""
    effects = [effect for effect in recording if effect.kind not in NOT_COUNTED]
    for place, effect in enumerate(effects):
        if effect.index != place:
            raise ValueError(f"a recording's effects count from 0: effect {place} says that it is {effect.index}")
    return effects
