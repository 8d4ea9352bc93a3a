"""Indexed-batch strategy: staged writes stay in a batch in memory; a commit is one engine write. Source: KIP-892.

A transaction that outgrows the batch continues in a spill database (``SecondStore``). Its commit has these steps:

1. Write a commit record to the spill, and sync the spill.
2. Write the spill's name into the regular store. This is the commit point.
3. Copy the spill. The last part also has the offsets and removes the name.
4. Remove the spill.

On opening, if the regular store has the name of a spill, that spill is copied (rolled forward), as often as this is
interrupted. All other spills are removed (rolled back).

The name has the role of a dual store's marker file (KIP-844), but lies in the same engine as the copied parts. An
engine keeps its writes in order, so no part can be there without the name. If a crash takes the store back by some
commits, the name goes with them. So ordinary commits need no number, and no write beside their one.

A spill database has the engine of the store, and a folder for each transaction, so keys need no token: its keys are
those of the store, of the same maximum length. It is opened at the highest durability level of the engine, whatever the
store's level is. It is written without a sync until its commit record: recovery needs the complete spill once the
commit point is durable (``IndexedBatchStaging.commit_spilled``).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from typing import ClassVar, Self, cast

from stores.engines.engine import Engine
from stores.engines.families import BOTH, FAMILIES, split_or_whole
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError, must_reopen
from stores.failpoints import Part, declare, reach
from stores.files.plain_files import sync_folder, translated_system_errors
from stores.interface import Durability, RecoveryOutcome
from stores.strategies.batch_staging import BUFFER, PART, BatchStaging
from stores.strategies.spilled import TOKEN_BYTES, DamagedMarkerError, Marker, Spill
from stores.strategies.staging import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Opened, open_engine

_SEAL = b"commit"
"""Meta entry: the commit record, in the form of a marker. It is written after all of the transaction."""


class SecondStore(Spill):
    """The spill of one transaction, in a folder with a random name."""

    def __init__(self, engine: Engine, folder: Path, part_bytes: int) -> None:
        super().__init__(engine, b"", part_bytes)
        self.folder = folder

    @property
    def name(self) -> bytes:
        """The random bytes that identify this transaction. In hexadecimal they are the folder's name."""
        return bytes.fromhex(self.folder.name)

    @classmethod
    def begin(
        cls, kind: type[Engine], parent: Path, options: Mapping[str, object], part_bytes: int, *, split: bool
    ) -> Self:
        """Create a spill database, with two data families if ``split``.

        Raises: CommitFailedError if the disk refuses it; then nothing of it is left.
        """
        folder = parent / token_bytes(TOKEN_BYTES).hex()
        try:
            folder.mkdir(parents=True)
            return cls(_opened(kind, folder, options, split=split), folder, part_bytes)
        except (OSError, StoreError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise CommitFailedError(
                f"there is no room in memory for more of this transaction, and {folder} can't be made: {error}. Mend "
                "that and write again, or commit what there is"
            ) from error

    @classmethod
    def find(cls, kind: type[Engine], folder: Path, options: Mapping[str, object], part_bytes: int) -> Self:
        """Open the spill database in ``folder``. Raises: OSError if there is none; the errors of ``Engine.open``."""
        if not any(folder.iterdir()):
            raise FileNotFoundError(0, "it is empty", str(folder))
        return cls(_opened(kind, folder, options, split=False), folder, part_bytes)

    def seal(self, meta: Mapping[bytes, bytes | None]) -> Marker:
        """Write the commit record with the meta entries of the commit, and sync the whole spill with its folders.

        May be repeated after more writes were spilled. Raises: OSError, CommitFailedError.
        """
        marker = Marker(0, self.name, True, tuple(self.ranges), meta)
        self.engine.write([], {_SEAL: marker.text().encode()})
        self.engine.persist()
        for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
            sync_folder(folder)
        return marker

    def sealed(self) -> Marker:
        """Return the commit record. Raises: DamagedMarkerError; the errors of ``Engine.meta``."""
        return Marker.read_text(self.engine.meta().get(_SEAL, b""), self.folder)

    def close(self) -> None:
        """Close the engine and ignore its errors: data without a commit record does not count."""
        with suppress(StoreError):
            self.engine.close()

    def remove(self) -> None:
        """Close the engine and remove the folder. Files that can't be removed go when the store is opened again."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()


def _opened(kind: type[Engine], folder: Path, options: Mapping[str, object], *, split: bool) -> Engine:
    """Open the engine in ``folder``. A new one gets two data families if ``split``; an existing one keeps its own."""
    level = next(level for level in reversed(Durability) if level in kind.durabilities)
    engine = open_engine(kind, folder, level, options)
    if split:
        # The same families as the regular store: then every key that the store accepts can also be spilled.
        engine.add_family()
        engine.write([], {FAMILIES: BOTH}, durable=False)
        engine.select_families()
    return split_or_whole(engine)


BEFORE_WRITE = declare("indexed_batch.before_write", "the batch is complete, the engine has seen nothing of it")
AFTER_WRITE = declare("indexed_batch.after_write", "the engine has taken the batch, the caller does not know yet")

_TINY = {BUFFER: 200, PART: 200}
"""Options that spill nearly every transaction and copy it in several parts."""
SEALED = declare(
    "indexed_batch.sealed", "the spill is complete and synced, the regular store does not name it", options=_TINY
)
DECIDED = declare(
    "indexed_batch.decided", "the regular store names the spill, and has none of its writes", options=_TINY
)
MID_COPY = declare(
    "indexed_batch.mid_copy", "a part of the spill is in the regular store, not its offsets", options=_TINY
)
COPIED = declare(
    "indexed_batch.copied", "the regular store has all of the spill, which is not removed yet", options=_TINY
)
RECOVER_BEFORE_COPY = declare(
    "indexed_batch.recover.before_copy",
    "opening found the name of a spill and is about to roll it forward",
    part=Part.RECOVERY,
    after=MID_COPY,
    twice=True,
)
RECOVER_COPIED = declare(
    "indexed_batch.recover.copied",
    "opening has copied the spill, which is not removed yet",
    part=Part.RECOVERY,
    after=MID_COPY,
)

_COPYING = b"c"
"""Meta entry: the name of the spill that is being copied."""


class IndexedBatchStaging(BatchStaging):
    """Keeps up to ``staging_buffer_bytes`` of a transaction in memory and spills the rest to disk.

    It spills only over a persistent engine. The commit copies a spill in parts of about ``copy_part_bytes``. Its commit
    point is a meta entry that names the spill. Without a spill a commit is one write of the engine.

    The limit is in bytes of memory (``uncommitted_memory_bytes``): a pair takes some 92 in addition to its key and
    value. After a spill each write costs a lookup in it. The limit applies to each store separately.
    """

    strategy: ClassVar[str] = "indexed-batch"
    failpoints: ClassVar[tuple[str, ...]] = (BEFORE_WRITE, AFTER_WRITE, RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)
    persistent_failpoints: ClassVar[tuple[str, ...]] = (
        SEALED,
        DECIDED,
        MID_COPY,
        COPIED,
        RECOVER_BEFORE_COPY,
        RECOVER_COPIED,
    )
    persistent_options: ClassVar[Mapping[str, object]] = {BUFFER: 64 << 20, PART: 4 << 20}
    """``staging_buffer_bytes`` follows the limit of uncommitted bytes, if that is set (``StoreConfig``)."""
    mid_copy: ClassVar[str] = MID_COPY

    @classmethod
    def has_unfinished_commit(cls, folder: Path, meta: Mapping[bytes, bytes]) -> bool:
        return _COPYING in meta

    def open_files(self, opened: Opened) -> None:
        self._options = opened.options
        self._retired: list[SecondStore] = []
        """Spills of ended transactions that still have open scans."""
        self.spills = opened.directory is not None
        if opened.directory is not None:
            self._parent = opened.directory.staging
            """The folder of the spills."""

    def begin_spill(self) -> SecondStore:
        self._remove_retired()
        return SecondStore.begin(self.engine.kind, self._parent, self._options, self.part_bytes, split=self.is_split)

    # Ending

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        reach(BEFORE_WRITE)
        if self.spill is not None:
            self.commit_spilled(cast(SecondStore, self.spill), meta)
            return
        batch = self.batch
        # Without the lock: staged writes hide the same keys before and after the engine has them, and only this thread
        # changes a layer.
        layers = batch.as_writes()
        if layers or meta:
            self.engine.write(layers, meta)
        reach(AFTER_WRITE)
        if layers:
            batch.remember(layers)
            with batch.lock:
                batch.clear()
        if self._retired:
            self._remove_retired()

    def commit_spilled(self, spill: SecondStore, meta: Mapping[bytes, bytes | None]) -> None:
        """Commit a transaction that was spilled."""
        self.spill_staged()
        try:
            marker = spill.seal(meta)
        except OSError as error:
            raise CommitFailedError(f"{error.filename or spill.folder}: {error.strerror}: commit again") from error
        reach(SEALED)
        # Readers do not wait for these steps. Before the copy they are shown the spill as staged writes, during the
        # copy as committed ones.
        self.decided = True
        try:
            self.engine.write([], {_COPYING: spill.name})
        except CommitFailedError as error:
            # If it is unknown whether the name was written, the spill must stay for the next opening.
            self.decided = error.reopen
            raise
        try:
            with self.shown_as_committed():
                # Atomicity does not need this sync. With it, a crash leads to a roll forward and not to a replay.
                self.engine.persist()
                reach(DECIDED)
                self.copy(spill, marker.ranges, _final(marker))
        except StoreError as error:
            # This is past the commit point.
            raise must_reopen(str(error)) from error
        reach(COPIED)
        self.batch.forget_recent()
        with self.batch.lock:
            self._forget()
        self._remove_retired()
        reach(AFTER_WRITE)

    def discard(self) -> None:
        with self.batch.lock:
            self._forget()
        self._remove_retired()

    def _forget(self) -> None:
        self.batch.clear()
        if self.spill is not None:
            self._retired.append(cast(SecondStore, self.spill))
            self.spill = None

    def _remove_retired(self) -> None:
        if self._retired:
            free = [spill for spill in self._retired if not spill.pins]
            self._retired = [spill for spill in self._retired if spill.pins]
            for spill in free:
                spill.remove()

    def close_files(self) -> None:
        spill, self.spill = self.spill, None
        if spill is not None and self.decided:
            cast(SecondStore, spill).close()
        elif spill is not None:
            self._retired.append(cast(SecondStore, spill))
        self._remove_retired()

    # Recovering

    def recover(self) -> RecoveryOutcome | None:
        if not self.spills:
            return None
        parent = self._parent
        name = self.engine.meta().get(_COPYING)
        try:
            if name is not None:
                self._roll_forward(parent / name.hex())
        except (CommitFailedError, OSError) as error:
            raise StoreUnavailableError(
                f"recovering {parent.parent} was interrupted: {error}. Remove the cause and open the store again"
            ) from error
        with translated_system_errors(parent):
            has_spills = parent.exists()
        if has_spills:
            shutil.rmtree(parent, ignore_errors=True)
        return None if name is None else RecoveryOutcome.ROLLED_FORWARD

    def _roll_forward(self, folder: Path) -> None:
        try:
            spill = SecondStore.find(self.engine.kind, folder, self._options, self.part_bytes)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _gone(folder, error) from error
        try:
            marker = spill.sealed()
            reach(RECOVER_BEFORE_COPY)
            self.copy(spill, marker.ranges, _final(marker))
        except DamagedMarkerError as error:
            raise _gone(folder, error) from error
        finally:
            spill.close()
        reach(RECOVER_COPIED)


def _final(marker: Marker) -> dict[bytes, bytes | None]:
    return {**marker.meta, _COPYING: None}


def _gone(folder: Path, cause: Exception) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"the staged writes in {folder} are gone ({cause}), and part of them may be in the store: wipe it and "
        "restore it from its changelog"
    )
