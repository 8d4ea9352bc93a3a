"""Uncommitted writes stay in an indexed batch in memory; a commit is one engine write. Source: KIP-892.

A transaction that outgrows the batch goes on in a second store (``SecondStore``), which is made for it. Its commit: the
second store is sealed, which makes it survive power loss; its name is written into the regular store, and from this
moment on the transaction is committed; it is copied, the offsets and the removal of that name with the last part; the
second store is removed. On opening, a name that is found in the regular store has its second store copied once more
(rolled forward), as often as that is interrupted; whatever else was spilled is removed (rolled back).

The name is what a marker file is to a dual store (KIP-844), and lies where the parts go: an engine keeps its writes in
order, so that no part is there without it, and where a crash takes the store some commits back it is gone with them.
So ordinary commits need no number, and nothing beside their one write.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self, cast

from stores.directory import StoreDirectory
from stores.engines.engine import Engine
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.failpoints import declare, reach
from stores.files import system_errors_told
from stores.interface import RecoveryOutcome, TopicPartition
from stores.strategies.marker import DamagedMarkerError, Marker
from stores.strategies.second_store import SecondStore
from stores.strategies.spilling import SpillingStore
from stores.strategies.store import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Traits

BEFORE_WRITE = declare("indexed_batch.before_write", "the batch is complete, the engine has seen nothing of it")
AFTER_WRITE = declare("indexed_batch.after_write", "the engine has taken the batch, the caller does not know yet")
SEALED = declare("indexed_batch.sealed", "what was spilled is complete and synced, the regular store does not know")
DECIDED = declare("indexed_batch.decided", "the regular store names what was spilled, and has nothing of it")
MID_COPY = declare("indexed_batch.mid_copy", "a part of what was spilled is in the regular store, not its offsets")
COPIED = declare("indexed_batch.copied", "the regular store has all that was spilled, which is not removed yet")
RECOVER_BEFORE_COPY = declare("indexed_batch.recover.before_copy", "opening found a commit that was begun")
RECOVER_COPIED = declare("indexed_batch.recover.copied", "opening has copied, what was spilled is not removed yet")

_RECENT_BYTES_MAX = 16 << 20
"""Writes of a commit up to this size stay readable from memory until the next one: as much as a write buffer."""
_COPYING = b"c"
"""Meta entry: the name of the second store that is being copied."""
_BUFFER, _PART = "staging_buffer_bytes", "copy_part_bytes"


class IndexedBatchStore(SpillingStore):
    """Keeps up to ``staging_buffer_bytes`` of a transaction in memory, and what goes beyond that in a second store, if
    the engine is persistent. Such a commit is copied in parts of about ``copy_part_bytes``.

    Bytes are those of memory (``uncommitted_memory_bytes``): a pair takes some 92 beside its key and value. Beyond the
    bound a write costs a lookup in the second store. The bound is each store's own.
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
    persistent_options: ClassVar[Mapping[str, object]] = {_BUFFER: 64 << 20, _PART: 4 << 20}
    """The first is the default of what may be uncommitted, and follows that where it is set (``StoreConfig``)."""
    mid_copy: ClassVar[str] = MID_COPY

    def __init__(
        self,
        engine: Engine,
        directory: StoreDirectory | None,
        traits: Traits,
        options: Mapping[str, object] | None = None,
    ) -> None:
        sizes = {_BUFFER: engine.max_value_bytes, _PART: engine.max_value_bytes, **(options or {})}
        super().__init__(engine, directory, traits, cast(int, sizes[_BUFFER]), cast(int, sizes[_PART]))
        self._options = options or {}
        self._retired: list[SecondStore] = []
        """Of transactions that have ended, while scans are open on them."""
        if directory is not None:
            self._recover(directory.staging)

    @classmethod
    def _over(cls, engine: Engine, directory: StoreDirectory, options: Mapping[str, object], traits: Traits) -> Self:
        return cls(engine, directory, traits, options)

    def _begin_spill(self) -> SecondStore:
        self._remove_retired()
        assert self._directory is not None
        return SecondStore.begin(
            self._engine.kind, self._directory.staging, self._options, self._part_bytes, split=self.is_split
        )

    def _spill_staged(self) -> None:
        # What is in memory only has nowhere to go.
        if self._directory is not None:
            super()._spill_staged()

    # Ending

    def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None:
        reach(BEFORE_WRITE)
        if self._spill is not None:
            self._commit_spilled(cast(SecondStore, self._spill), meta)
            return
        batch = self._batch
        # Without the lock: what is staged hides the same keys whether or not the engine has it already, and only this
        # thread changes a layer.
        layers = batch.as_writes()
        if layers or meta:
            self._engine.write(layers, meta)
        reach(AFTER_WRITE)
        if layers:
            small = len(layers) == 1 and not layers[0].ranges and batch.num_bytes <= _RECENT_BYTES_MAX
            with batch.lock:
                self._recent = layers[0].writes if small else {}
                batch.clear()
        if self._retired:
            self._remove_retired()

    def _commit_spilled(self, spill: SecondStore, meta: Mapping[bytes, bytes | None]) -> None:
        self._spill_staged()
        try:
            marker = spill.seal(meta)
        except OSError as error:
            raise CommitFailedError(f"{error.filename or spill.folder}: {error.strerror}: commit again") from error
        reach(SEALED)
        # Readers do not wait for any of it. Until it is being copied they are shown what was spilled as staged; while
        # it is, as committed; afterwards it is both.
        self._decided = True
        try:
            self._engine.write([], {_COPYING: spill.name})
        except CommitFailedError as error:
            # Where nobody can tell whether it is there, opening again must find what it names.
            self._decided = error.reopen
            raise
        try:
            with self._shown_as_committed():
                # Not needed for a whole commit: so that what was decided is carried out, and not replayed.
                self._engine.persist()
                reach(DECIDED)
                self._copy(spill, marker.ranges, _final(marker))
        except StoreError as error:
            # Nothing undoes it any more.
            raise CommitFailedError(
                f"{error}. Close the store, open it again and go on from its committed offset", reopen=True
            ) from error
        reach(COPIED)
        with self._batch.lock:
            self._recent = {}
            self._forget()
        self._remove_retired()
        reach(AFTER_WRITE)

    def _rollback(self) -> None:
        if self._decided:
            # Opening again carries it out.
            return
        with self._batch.lock:
            self._forget()
        self._remove_retired()

    def _forget(self) -> None:
        self._batch.clear()
        if self._spill is not None:
            self._retired.append(cast(SecondStore, self._spill))
            self._spill = None

    def _remove_retired(self) -> None:
        if self._retired:
            free = [spill for spill in self._retired if not spill.pins]
            self._retired = [spill for spill in self._retired if spill.pins]
            for spill in free:
                spill.remove()

    def _close_staging(self) -> None:
        super()._close_staging()
        spill, self._spill = self._spill, None
        if spill is not None and self._decided:
            cast(SecondStore, spill).close()
        elif spill is not None:
            self._retired.append(cast(SecondStore, spill))
        self._remove_retired()

    # Recovering

    def _recover(self, parent: Path) -> None:
        name = self._engine.meta().get(_COPYING)
        try:
            if name is not None:
                self._roll_forward(parent / name.hex())
        except (CommitFailedError, OSError) as error:
            raise StoreUnavailableError(
                f"recovering {parent.parent} was interrupted: {error}. Mend that and open the store again"
            ) from error
        with system_errors_told(parent):
            left = parent.exists()
        if left:
            shutil.rmtree(parent, ignore_errors=True)

    def _roll_forward(self, folder: Path) -> None:
        try:
            spill = SecondStore.find(self._engine.kind, folder, self._options, self._part_bytes)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _gone(folder, error) from error
        try:
            marker = spill.sealed()
            reach(RECOVER_BEFORE_COPY)
            self._copy(spill, marker.ranges, _final(marker))
        except DamagedMarkerError as error:
            raise _gone(folder, error) from error
        finally:
            spill.close()
        reach(RECOVER_COPIED)
        self._outcome = RecoveryOutcome.ROLLED_FORWARD
        self._load_meta()


def _final(marker: Marker) -> dict[bytes, bytes | None]:
    return {**marker.meta, _COPYING: None}


def _gone(folder: Path, cause: Exception) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"the staged writes in {folder} are gone ({cause}), and part of them may be in the store: wipe it and "
        "restore it from its changelog"
    )
