"""Dual-store strategy: staged writes go to a staging store of the same engine, which stays open. Source: KIP-844.

A commit has these steps:

1. Write the staged writes to the staging store, with a commit record that names the commit's number.
2. Write the commit marker with the offsets. It is synced at DISK, and whenever the copy takes several writes.
3. Copy the writes to the regular store, together with the offsets and the number.
4. Empty the staging store and remove the marker.

On opening, a marker with a matching commit record is rolled forward, as often as that is interrupted. Otherwise the
staging store is emptied (rolled back).

Up to ``staging_buffer_bytes`` of recent writes wait in memory and reach the staging store in one write. A prototype
that wrote each one at once, and reopened the staging store at each commit, had 4 % of the regular store's speed
(KIP-892, "Motivation").

Readers of either isolation level never wait for a commit. A transaction that fits into memory is one write of the
regular store. During a copy in parts, readers are shown the staging store merged over the regular store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from typing import ClassVar

from stores.batch.merge import chunks_of
from stores.engines.engine import Engine, Writes
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError, must_reopen
from stores.failpoints import Part, declare, reach
from stores.files.store_directory import StoreDirectory
from stores.interface import Durability, RecoveryOutcome
from stores.strategies.batch_staging import BUFFER, PART, BatchStaging
from stores.strategies.spilled import (
    MARKER_SYNCED,
    MARKER_WRITTEN,
    TOKEN_BYTES,
    DamagedMarkerError,
    Marker,
    Spill,
    after,
)
from stores.strategies.staging import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Opened, build_engine, open_engine

BEFORE_SPILL = declare("dual_store.before_spill", "a commit begins, part of the writes may still be in memory")
SPILLED = declare(
    "dual_store.spilled", "all staged writes and the commit record are in the staging store; there is no marker yet"
)
MID_COPY = declare(
    "dual_store.mid_copy",
    "a part of the staged writes is in the regular store, not its offsets",
    options={"staging_buffer_bytes": 1 << 20},
    transaction_bytes=15 << 20,
)
COPIED = declare("dual_store.copied", "the regular store has everything, the staging store is not emptied")
TRUNCATED = declare("dual_store.truncated", "the staging store is empty, the marker is still there")
MARKER_REMOVED = declare("dual_store.marker_removed", "the commit is complete, the caller does not know yet")

_BEGUN: Mapping[str, str] = {
    Durability.CHANGELOG: MID_COPY,
    Durability.PROCESS: MARKER_SYNCED,
    Durability.DISK: MARKER_SYNCED,
}
"""The failpoints that leave a commit to roll forward. Without a WAL only a commit in parts survives a kill."""
RECOVER_BEFORE_COPY = declare(
    "dual_store.recover.before_copy",
    "opening found a marker and is about to roll it forward",
    part=Part.RECOVERY,
    after=_BEGUN,
    settled_before=True,
    twice=True,
)
RECOVER_COPIED = declare(
    "dual_store.recover.copied",
    "opening has copied, the staging store is not emptied",
    part=Part.RECOVERY,
    after=_BEGUN,
    settled_before=True,
)
RECOVER_TRUNCATED = declare(
    "dual_store.recover.truncated",
    "opening has emptied the staging store",
    part=Part.RECOVERY,
    after=_BEGUN,
    settled_before=True,
    twice=True,
    always=True,
)

_SEQUENCE = b"s"
"""Meta entry: number of the store's last commit; in the staging store, the commit record."""


_LARGE = b"l"
"""Meta entry: number of the last commit that was copied in parts."""
_MARKER = "commit"
"""The name of the marker in the store's folder."""


class DualStoreStaging(BatchStaging):
    """The staging of a store for transactions larger than memory. It writes all data twice.

    All writes are in the staging store before the commit point, which is a marker file, and are copied after it. The
    staging store is a second engine beside the regular one, which stays open.

    Staged writes take up to ``staging_buffer_bytes`` of memory (``uncommitted_memory_bytes``). A commit copies the
    spilled writes in parts of about ``copy_part_bytes``, and takes that much memory for it.
    """

    strategy: ClassVar[str] = "dual-store"
    options: ClassVar[Mapping[str, object]] = {BUFFER: 16 << 20, PART: 4 << 20}
    failpoints: ClassVar[tuple[str, ...]] = (
        BEFORE_SPILL,
        SPILLED,
        MARKER_WRITTEN,
        MARKER_SYNCED,
        MID_COPY,
        COPIED,
        TRUNCATED,
        MARKER_REMOVED,
        RECOVER_BEFORE_COPY,
        RECOVER_COPIED,
        RECOVER_TRUNCATED,
        RESTORE_BEFORE_WRITE,
        RESTORE_AFTER_WRITE,
    )
    mid_copy: ClassVar[str] = MID_COPY
    large_commit_key: ClassVar[bytes | None] = _LARGE

    @classmethod
    def has_unfinished_commit(cls, folder: Path, meta: Mapping[bytes, bytes]) -> bool:
        try:
            marker = Marker.read(folder / _MARKER)
        except DamagedMarkerError:
            return True
        # Any other commit is one write.
        return marker is not None and marker.in_parts and marker.sequence == _number(meta.get(_SEQUENCE)) + 1

    @classmethod
    def folders(cls, directory: StoreDirectory) -> Sequence[Path]:
        return (directory.data, directory.staging)

    @classmethod
    def build(cls, engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
        super().build(engine, folder, durability, options)
        build_engine(engine, folder / "data.tmp", durability, options)

    def open_files(self, opened: Opened) -> None:
        directory = opened.directory
        assert directory is not None
        opened.access.max_key_bytes -= TOKEN_BYTES
        self._durability = opened.traits.durability
        self._marker = directory.path / _MARKER
        self._sequence = _number(opened.engine.meta().get(_SEQUENCE))
        self.second = open_engine(type(opened.engine), directory.staging, opened.traits.durability, opened.options)
        """The staging store."""

    def change_writer(self) -> None:
        super().change_writer()
        self.second.change_writer()

    def begin_spill(self) -> Spill:
        return Spill(self.second, b"\x00" + token_bytes(TOKEN_BYTES - 1), self.part_bytes)

    # Committing

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        reach(BEFORE_SPILL)
        in_parts = self.spill is not None
        if in_parts:
            self.spill_staged()
        batch = self.batch
        with batch.lock:
            layers = batch.layers()
        if not in_parts and not layers:
            # Offsets alone are a single write and need no marker.
            if meta:
                self._write_numbered([], meta)
            return
        spill = self.spill or self.begin_spill()
        ranges = tuple(spill.ranges) if in_parts else tuple(bounds for layer in layers for bounds in layer.ranges)
        marker = Marker(self._sequence + 1, spill.token, in_parts, ranges, meta)
        # Readers do not wait for these steps. Until the staging store is emptied, they are shown staged and spilled
        # writes merged over committed data. These hide the same keys, copied or not.
        try:
            self.second.write(spill.as_writes(layers), {_SEQUENCE: marker.seal})
            if in_parts:
                # A part may reach the regular store's files before the rest: the rest must survive a kill as well.
                self.second.persist()
            reach(SPILLED)
            marker.write(self._marker, durable=in_parts or self._durability is Durability.DISK)
        except OSError as error:
            self._withdraw(spill, in_parts=in_parts)
            raise CommitFailedError(f"{error.filename or self._marker}: {error.strerror}: commit again") from error
        try:
            if in_parts:
                # This is past the commit point.
                with self.shown_as_committed():
                    self.copy(spill, marker.ranges, _final(marker))
            else:
                self.engine.write([layer.as_writes() for layer in layers], _final(marker))
            reach(COPIED)
            self._sequence = marker.sequence
            with batch.lock:
                self.spill = None
            self._empty(spill)
            reach(TRUNCATED)
            self._marker.unlink(missing_ok=True)
        except (CommitFailedError, OSError) as error:
            # The marker may be in place: only opening the store again can complete the commit.
            raise must_reopen(str(error)) from error
        reach(MARKER_REMOVED)
        with batch.lock:
            batch.clear()

    def write_at_once(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        self._write_numbered(layers, meta)

    def _write_numbered(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        # Numbered like a commit: if a crash loses this write, the marker of a later commit must not be rolled forward.
        sequence = self._sequence + 1
        self.engine.write(layers, {**meta, _SEQUENCE: sequence.to_bytes(8, "big")})
        self._sequence = sequence

    def _withdraw(self, spill: Spill, *, in_parts: bool) -> None:
        """Remove the marker and the staging store's writes of a commit that failed before its commit point.

        Writes that were spilled before the commit stay, because they are still staged.
        """
        try:
            self._marker.unlink(missing_ok=True)
        except OSError as error:
            # The marker may be in place: only opening the store again can complete the commit.
            raise must_reopen(str(error)) from error
        if not in_parts:
            self._empty(spill)

    def _empty(self, spill: Spill) -> None:
        self.second.write([Writes([(spill.token, after(spill.token))], {})], {_SEQUENCE: None}, durable=False)
        self.spill = None

    def discard(self) -> None:
        with self.batch.lock:
            self.batch.clear()
            if self.spill is not None:
                self._empty(self.spill)

    # Recovering

    def recover(self) -> RecoveryOutcome | None:
        try:
            try:
                return self._recover()
            except (CommitFailedError, OSError) as error:
                raise StoreUnavailableError(
                    f"recovering {self._marker.parent} was interrupted: {error}. Remove the cause and open the store "
                    "again"
                ) from error
        except BaseException:
            with suppress(StoreError):
                self.second.close()
            raise

    def _recover(self) -> RecoveryOutcome | None:
        outcome = None
        sealed = self.second.meta().get(_SEQUENCE)
        try:
            marker = Marker.read(self._marker)
        except DamagedMarkerError as error:
            if sealed is not None and sealed[:9] == (self._sequence + 1).to_bytes(8, "big") + b"\x01":
                raise StoreCorruptedError(
                    f"{error}, and part of its commit may be in the store: wipe it and restore it from its changelog"
                ) from error
            marker = None
        if marker is not None and marker.sequence == self._sequence + 1:
            if sealed == marker.seal:
                reach(RECOVER_BEFORE_COPY)
                self.copy(Spill(self.second, marker.token, self.part_bytes), marker.ranges, _final(marker))
                reach(RECOVER_COPIED)
                self._sequence = marker.sequence
                outcome = RecoveryOutcome.ROLLED_FORWARD
            elif marker.in_parts:
                raise StoreCorruptedError(
                    f"the staged writes of commit {marker.sequence} in {self._marker.parent} are gone, and part of "
                    "them may be in the store: wipe it and restore it from its changelog"
                )
        elif marker is not None and marker.sequence == self._sequence:
            outcome = RecoveryOutcome.ROLLED_FORWARD
        if sealed is not None or next(chunks_of(self.second.scan()), None):
            self.second.write([Writes([(None, None)], {})], {_SEQUENCE: None}, durable=False)
        reach(RECOVER_TRUNCATED)
        self._marker.unlink(missing_ok=True)
        return outcome

    def metrics(self) -> Mapping[str, int]:
        figures = {f"staging_{name}": value for name, value in self.second.metrics().items()}
        return {**super().metrics(), **figures}

    def verify(self) -> None:
        super().verify()
        self.second.verify()

    def close_files(self) -> None:
        self.spill = None
        self.second.close()


def _final(marker: Marker) -> dict[bytes, bytes | None]:
    sequence = marker.sequence.to_bytes(8, "big")
    return {**marker.meta, _SEQUENCE: sequence, **({_LARGE: sequence} if marker.in_parts else {})}


def _number(entry: bytes | None) -> int:
    return int.from_bytes(entry, "big") if entry else 0
