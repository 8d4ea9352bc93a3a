"""Direct strategy: writes go straight into the engine, as in Kafka Streams before KIP-892.

It is the baseline and the negative control of the experiments. Uncommitted writes are not isolated, so that they can't
be rolled back. Offsets are kept in a checkpoint file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from stores.batch.merge import Pair, chunks_of
from stores.contract import marks
from stores.engines.engine import Writes
from stores.failpoints import declare, reach
from stores.interface import IsolationLevel, TopicPartition
from stores.ordered.ranges import ScanRange
from stores.strategies.iterator import Pin
from stores.strategies.store import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, EngineStore, while_open

COMMIT = declare("direct.commit", "a commit begins; the engine has had all its records since they were put")


class DirectStore(EngineStore):
    """A store without transactions: a rollback undoes nothing, and readers of either level see each write at once."""

    strategy: ClassVar[str] = "direct"
    failpoints: ClassVar[tuple[str, ...]] = (COMMIT, RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)
    transactional: ClassVar[bool] = False
    manages_offsets: ClassVar[bool] = False

    def _stage(self, key: bytes, value: bytes | None) -> None:
        self._engine.put(key, value)

    def _stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        self._engine.write([Writes((), writes)], {}, durable=False)

    def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self._engine.write([Writes([(start, end)], {})], {}, durable=False)

    @while_open
    def set_mark(self, name: str, value: bytes | None) -> None:
        # Write it before the data that it describes, which can't be undone: windows above the stream time are hidden.
        super().set_mark(name, value)
        changed = marks.changed(self._marks, self._staged_marks)
        if changed:
            self._engine.write([], marks.encode(self._marks, changed), durable=False)
            self._marks = marks.merge(self._marks, changed)

    def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None:
        reach(COMMIT)
        # Offsets and position belong to the checkpoint file; ``set_mark`` has written the marks.
        self._engine.sync()

    def _keep(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Ignore the offsets: this store does not manage them (KIP-892, ``managesOffsets``)."""

    @while_open
    def persist(self) -> None:
        self._engine.persist()

    def _rollback(self) -> None:
        """Do nothing: writes in the engine can't be undone."""

    def _shows_staged(self) -> bool:
        return True

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
