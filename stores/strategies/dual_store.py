"""Uncommitted writes go to a second store of the same engine, which stays open. Source: KIP-844.

A commit: the staged writes are in the second store, sealed with the commit's number; a marker with the offsets is
put beside it, and synced at DISK, or where the copy takes several writes; they are copied to the regular store
together with the offsets and the number; the second store is emptied; the marker is removed. On opening, a marker
whose seal is there is carried out (rolled forward), as often as that is interrupted; otherwise the second store is
emptied (rolled back).

Recent writes wait in memory, up to ``staging_buffer_bytes``, and reach the second store in one write: a prototype
that wrote each at once, and reopened the second store at each commit, was as slow as 4 % of the regular store
(KIP-892, "Motivation").

Readers of committed data never wait for a commit: one that fits into memory is one write of the regular store, and
while one in parts is copied they are shown what comes out of it, the second store laid over the regular one. Those of
uncommitted data wait while a commit is being marked as ready, and while a spill is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from threading import Lock
from typing import ClassVar, Self, cast

from stores.buffer import MISSING, Layer, Missing, lookup
from stores.directory import StoreDirectory
from stores.engines.engine import Engine, Scan, Writes
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.failpoints import declare, reach
from stores.interface import Durability, IsolationLevel, RecoveryOutcome, TopicPartition
from stores.merge import Pair, chunks_of, lay_over
from stores.ranges import Bounds, KeyRanges
from stores.strategies.indexed_batch import IndexedBatchStore
from stores.strategies.iterator import Pin
from stores.strategies.marker import MARKER_SYNCED, MARKER_WRITTEN, DamagedMarkerError, Marker
from stores.strategies.opening import build_engine, open_engine
from stores.strategies.spilled import TOKEN_BYTES, SpilledWrites, after, tagged, untagged
from stores.strategies.store import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Traits

BEFORE_SPILL = declare("dual_store.before_spill", "a commit begins, part of the writes may still be in memory")
SPILLED = declare("dual_store.spilled", "all staged writes are in the second store, sealed; there is no marker yet")
MID_COPY = declare("dual_store.mid_copy", "a part of the staged writes is in the regular store, not its offsets")
COPIED = declare("dual_store.copied", "the regular store has everything, the second one is not emptied")
TRUNCATED = declare("dual_store.truncated", "the second store is empty, the marker is still there")
MARKER_REMOVED = declare("dual_store.marker_removed", "the commit is complete, the caller does not know yet")
RECOVER_BEFORE_COPY = declare("dual_store.recover.before_copy", "opening found a marker and is about to carry it out")
RECOVER_COPIED = declare("dual_store.recover.copied", "opening has copied, the second store is not emptied")
RECOVER_TRUNCATED = declare("dual_store.recover.truncated", "opening has emptied the second store")

_SEQUENCE = b"s"
"""Meta entry: number of the store's last commit; in the second store, number of the commit it is sealed for."""


class DualStore(IndexedBatchStore):
    """Carries transactions larger than memory, at the price of writing everything twice.

    Writes wait in memory up to ``staging_buffer_bytes``; what has left it is copied by a commit in parts of about
    ``copy_part_bytes``, which is what that takes of memory.
    """

    strategy: ClassVar[str] = "dual-store"
    options: ClassVar[Mapping[str, object]] = {"staging_buffer_bytes": 16 << 20, "copy_part_bytes": 4 << 20}
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

    def __init__(
        self,
        engine: Engine,
        directory: StoreDirectory,
        staging: Engine,
        options: Mapping[str, object],
        traits: Traits,
    ) -> None:
        super().__init__(engine, directory, traits)
        self._max_key_bytes -= TOKEN_BYTES
        self._staging = staging
        self._buffer_bytes = cast(int, options["staging_buffer_bytes"])
        self._part_bytes = cast(int, options["copy_part_bytes"])
        self._marker = directory.path / "commit"
        self._view = Lock()
        """Held for a moment, while a reader takes hold of what it shows, and where ``_decided`` changes."""
        self._decided = False
        """Whether a commit in parts is being copied: the regular store is then in between."""
        self._ranges = KeyRanges()
        self._begin()
        self._sequence = _number(engine.meta().get(_SEQUENCE))
        try:
            self._recover()
        except (CommitFailedError, OSError) as error:
            raise StoreUnavailableError(
                f"recovering {directory.path} was interrupted: {error}. Mend that and open the store again"
            ) from error

    @classmethod
    def _over(cls, engine: Engine, directory: StoreDirectory, options: Mapping[str, object], traits: Traits) -> Self:
        staging = open_engine(type(engine), directory.staging, traits.durability, options)
        try:
            return cls(engine, directory, staging, options, traits)
        except BaseException:
            with suppress(StoreError):
                staging.close()
            raise

    @classmethod
    def _build(cls, engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
        super()._build(engine, folder, durability, options)
        build_engine(engine, folder / "data.tmp", durability, options)

    # Staging

    def put(self, key: bytes, value: bytes | None) -> None:
        super().put(key, value)
        if self._batch.num_bytes > self._buffer_bytes:
            self._spill_if_full()

    def _stage(self, key: bytes, value: bytes | None) -> None:
        super()._stage(key, value)
        self._spill_if_full()

    def _spill_if_full(self) -> None:
        if self._batch.num_bytes_held() > self._buffer_bytes:
            self._spill()

    def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
        if self._spilled:
            self._spill()
        # Staged in memory first: a reader on another thread must not see what lies below for a moment.
        super()._stage_range(start, end)
        if self._spilled:
            for pairs in chunks_of(self._scan_spilled(start, end)):
                self._batch.forget_drained(sum(len(key) - TOKEN_BYTES + len(kept) - 1 for key, kept in pairs))
            self._staging.write([Writes([self._staged_bounds(start, end)], {})], {}, durable=False)

    def _spill(self) -> None:
        """Move what is staged in memory to the second store."""
        with self._batch.lock:
            self._staging.write(self._tagged(), {}, durable=False)
            for ranges, _ in self._layers():
                for start, end in ranges:
                    self._ranges.add(start, end)
            self._batch.drain(self._get_spilled)
            self._spilled = True

    def _layers(self) -> list[Writes]:
        return [layer.as_writes() for layer in self._batch.layers()]

    def _tagged(self) -> list[Writes]:
        """The layers as the second store keeps them: keys behind the transaction's token, values behind a tag."""
        token = self._token
        # Ranges matter where something older is: nothing is below the first layer of what was not spilled yet.
        return [
            Writes(
                [self._staged_bounds(start, end) for start, end in ranges] if self._spilled or number else (),
                {token + key: tagged(value) for key, value in writes.items()},
            )
            for number, (ranges, writes) in enumerate(self._layers())
        ]

    def _staged_bounds(self, start: bytes | None, end: bytes | None) -> tuple[bytes, bytes]:
        """``start`` and ``end`` as keys of the second store; no key of its own is a bare token."""
        return self._token + (start or b""), after(self._token) if end is None else self._token + end

    def _scan_spilled(
        self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False
    ) -> Scan:
        first, last = self._staged_bounds(start, end)
        return self._staging.scan(first, last, end_open=end_open, reverse=reverse)

    def _get_spilled(self, key: bytes) -> bytes | Missing | None:
        kept = self._staging.get(self._token + key)
        return MISSING if kept is None else untagged(kept)

    # Reading: memory, then the second store, then the regular one (KIP-844)

    def get(self, key: bytes) -> bytes | None:
        return self._get_uncommitted(key) if self._spilled and isinstance(key, bytes) else super().get(key)

    def _get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        with self._view:
            if self._decided:
                return self._get_uncommitted(key)
            if level is IsolationLevel.READ_COMMITTED:
                return self._engine.get(key)
        with self._batch.lock:
            # No spill is seen half done.
            return self._get_uncommitted(key)

    def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._view:
            if self._decided:
                # Nothing is staged meanwhile: single lookups are all of one moment.
                return [self._get_uncommitted(key) for key in keys]
            if level is IsolationLevel.READ_COMMITTED:
                return self._engine.get_many(keys)
        return super()._get_many(level, keys)

    def _get_many_below(self, layers: tuple[Layer, ...], keys: Sequence[bytes]) -> list[bytes | None]:
        if not self._spilled:
            return super()._get_many_below(layers, keys)
        return [self._get_below(lookup(layers, key), key) for key in keys]

    def _get_uncommitted(self, key: bytes) -> bytes | None:
        return self._get_below(self._batch.get(key), key)

    def _get_below(self, value: bytes | Missing | None, key: bytes) -> bytes | None:
        """``value``, which the layers in memory have, or what lies below them."""
        if value is MISSING and self._spilled:
            value = self._get_spilled(key)
            if value is MISSING and key in self._ranges:
                return None
        return self._engine.get(key) if value is MISSING else value  # type: ignore[return-value]

    def _scan(
        self, level: IsolationLevel, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
    ) -> tuple[Iterator[list[Pair]], Pin]:
        with self._view:
            if self._decided:
                held = self._hold(start, end, end_open=end_open, reverse=reverse)
            elif level is IsolationLevel.READ_COMMITTED:
                return super()._scan(level, start, end, end_open=end_open, reverse=reverse)
            else:
                held = None
        if held is None:
            with self._batch.lock:
                held = self._hold(start, end, end_open=end_open, reverse=reverse)
        scan, spilled, hidden, layers = held
        below = chunks_of(scan)
        if spilled is not None:
            below = lay_over(below, SpilledWrites(spilled, reverse=reverse), hidden, reverse=reverse)
        chunks = self._lay_layers(below, layers, start, end, end_open=end_open, reverse=reverse)

        def release() -> None:
            if spilled is not None:
                spilled.close()
            self._release(scan, layers)

        return chunks, Pin(release)

    def _hold(
        self, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
    ) -> tuple[Scan, Scan | None, KeyRanges, tuple[Layer, ...]]:
        """The uncommitted state of this moment, from below: the regular store, the second one, what is in memory."""
        scan = self._engine.scan(start, end, end_open=end_open, reverse=reverse)
        spilled = self._scan_spilled(start, end, end_open=end_open, reverse=reverse) if self._spilled else None
        hidden = KeyRanges()
        hidden.update(self._ranges)
        return scan, spilled, hidden, self._batch.freeze()

    # Committing

    def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None:
        reach(BEFORE_SPILL)
        in_parts = self._spilled
        if in_parts:
            self._spill()
        with self._batch.lock:
            layers = self._layers()
        if not in_parts and not layers:
            # Offsets alone are one write anyway.
            if meta:
                self._write_at_once([], meta)
            return
        ranges = tuple(self._ranges) if in_parts else tuple(bounds for layer in layers for bounds in layer.ranges)
        marker = Marker(self._sequence + 1, self._token, in_parts, ranges, meta)
        with self._batch.lock:
            try:
                self._staging.write(self._tagged(), {_SEQUENCE: marker.seal})
                if in_parts:
                    # A part may get into the regular store's files before the rest: the rest must survive as well.
                    self._staging.persist()
                reach(SPILLED)
                marker.write(self._marker, durable=in_parts or self._durability is Durability.DISK)
            except OSError as error:
                self._withdraw(in_parts=in_parts)
                raise CommitFailedError(f"{error.filename or self._marker}: {error.strerror}: commit again") from error
            try:
                if in_parts:
                    # Nothing undoes the commit any more. From here to the end of the copy readers of either level are
                    # shown what comes out of it, without waiting: laid over it, a part that is copied changes nothing.
                    with self._view:
                        self._decided = True
                    self._copy(marker)
                    with self._view:
                        self._decided = False
                else:
                    self._engine.write(layers, self._final(marker))
                reach(COPIED)
                self._sequence = marker.sequence
                self._empty()
                reach(TRUNCATED)
                self._marker.unlink(missing_ok=True)
            except (CommitFailedError, OSError) as error:
                raise _marker_stands(error) from error
            reach(MARKER_REMOVED)
            self._batch.clear()

    def _write_at_once(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        # Numbered like a commit: where this write is lost, a later commit's marker must not be carried out.
        sequence = self._sequence + 1
        super()._write_at_once(layers, {**meta, _SEQUENCE: sequence.to_bytes(8, "big")})
        self._sequence = sequence

    def _withdraw(self, *, in_parts: bool) -> None:
        """Take back what a commit that failed before its marker stood has left in the second store."""
        try:
            self._marker.unlink(missing_ok=True)
        except OSError as error:
            raise _marker_stands(error) from error
        if not in_parts:
            self._empty()

    def _copy(self, marker: Marker) -> None:
        """Write the second store's entries into the regular one; repeating it changes nothing."""
        ranges: tuple[Bounds, ...] = marker.ranges
        part: dict[bytes, bytes | None] = {}
        num_bytes = 0
        for pairs in chunks_of(self._staging.scan(marker.token, after(marker.token))):
            for key, kept in pairs:
                part[key[TOKEN_BYTES:]] = untagged(kept)
                num_bytes += len(key) + len(kept)
                if num_bytes >= self._part_bytes:
                    self._engine.write([Writes(ranges, part)], {}, durable=False)
                    reach(MID_COPY)
                    ranges, part, num_bytes = (), {}, 0
        self._engine.write([Writes(ranges, part)], self._final(marker))
        if marker.in_parts:
            # A part may be in the engine's files and the end in its memory only: no kill may come between any more.
            self._engine.persist()

    @staticmethod
    def _final(marker: Marker) -> dict[bytes, bytes | None]:
        return {**marker.meta, _SEQUENCE: marker.sequence.to_bytes(8, "big")}

    def _empty(self) -> None:
        self._staging.write([Writes([(self._token, after(self._token))], {})], {_SEQUENCE: None}, durable=False)
        self._begin()

    def _begin(self) -> None:
        self._token = b"\x00" + token_bytes(TOKEN_BYTES - 1)
        self._spilled = False
        self._ranges = KeyRanges()

    def _rollback(self) -> None:
        with self._batch.lock:
            self._batch.clear()
            if self._spilled:
                self._empty()

    def _is_clean(self) -> bool:
        return super()._is_clean() and not self._spilled

    # Recovering

    def _recover(self) -> None:
        sealed = self._staging.meta().get(_SEQUENCE)
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
                self._copy(marker)
                self._roll_forward(marker)
            elif marker.in_parts:
                raise StoreCorruptedError(
                    f"the staged writes of commit {marker.sequence} in {self._marker.parent} are gone, and part of "
                    "them may be in the store: wipe it and restore it from its changelog"
                )
        elif marker is not None and marker.sequence == self._sequence:
            self._outcome = RecoveryOutcome.ROLLED_FORWARD
        if sealed is not None or next(chunks_of(self._staging.scan(None, None)), None):
            self._staging.write([Writes([(None, None)], {})], {_SEQUENCE: None}, durable=False)
        reach(RECOVER_TRUNCATED)
        self._marker.unlink(missing_ok=True)

    def _roll_forward(self, marker: Marker) -> None:
        reach(RECOVER_COPIED)
        self._sequence = marker.sequence
        self._outcome = RecoveryOutcome.ROLLED_FORWARD
        self._load_meta()

    def _read_engines(self) -> Mapping[str, int]:
        staging = {f"staging_{name}": value for name, value in self._staging.metrics().items()}
        return {**super()._read_engines(), **staging}

    def _close_staging(self) -> None:
        super()._close_staging()
        self._spilled = False
        self._staging.close()


def _marker_stands(cause: Exception) -> CommitFailedError:
    """Only opening the store again can tell how far a commit went whose marker is in place."""
    return CommitFailedError(
        f"{cause}. Close the store, open it again and go on from its committed offset", reopen=True
    )


def _number(entry: bytes | None) -> int:
    return int.from_bytes(entry, "big") if entry else 0
