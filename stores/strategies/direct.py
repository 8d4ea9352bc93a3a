"""Writes go straight into the engine: how Kafka Streams worked before KIP-892. The baseline, and the negative control.

Nothing keeps uncommitted writes apart, so nothing can be rolled back, and offsets are left to a checkpoint file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from stores import marks
from stores.engines.engine import Writes
from stores.failpoints import declare, reach
from stores.interface import IsolationLevel, TopicPartition
from stores.merge import Pair, chunks_of
from stores.ranges import ScanRange
from stores.strategies.iterator import Pin
from stores.strategies.store import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, EngineStore, while_open

COMMIT = declare("direct.commit", "a store that has long written its records is told to commit them")


class DirectStore(EngineStore):
    """Not transactional: a rollback leaves the writes where they are, and readers of either level see them at once."""

    strategy: ClassVar[str] = "direct"
    failpoints: ClassVar[tuple[str, ...]] = (COMMIT, RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)

    @property
    def transactional(self) -> bool:
        return False

    @property
    def manages_offsets(self) -> bool:
        return False

    def _stage(self, key: bytes, value: bytes | None) -> None:
        self._engine.put(key, value)

    def _stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        self._engine.write([Writes((), writes)], {}, durable=False)

    def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self._engine.write([Writes([(start, end)], {})], {}, durable=False)

    def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None:
        reach(COMMIT)
        # Offsets and position are left to the checkpoint.
        changed = {key: entry for key, entry in meta.items() if key[:1] == marks.MARK}
        if changed:
            self._engine.write([], changed, durable=False)
        self._engine.sync()

    def _keep(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Offsets given to a store that does not manage them are ignored (KIP-892, ``managesOffsets``)."""

    @while_open
    def persist(self) -> None:
        self._engine.persist()

    def _rollback(self) -> None:
        """What is written is written."""

    def _is_clean(self) -> bool:
        return True

    def approximate_num_uncommitted_bytes(self) -> int:
        self._check_open()
        return 0

    def _get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        return self._engine.get(key)

    def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._engine.get_many(keys)

    def _scans(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool
    ) -> list[tuple[Iterator[list[Pair]], Pin]]:
        return [(chunks_of(scan), Pin(scan.close)) for scan in self._engine.scans(ranges, reverse=reverse)]
