"""Direct strategy: writes go straight into the engine, as in Kafka Streams before KIP-892.

It is the baseline and the negative control of the experiments. Uncommitted writes are not isolated, so that they can't
be rolled back. Offsets are kept in a checkpoint file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from stores.engines.engine import Engine, Writes
from stores.failpoints import declare, reach
from stores.interface import IsolationLevel
from stores.ordered import ScanRange
from stores.strategies.staging import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Scanned, Staging

COMMIT = declare("direct.commit", "a commit begins; the engine has had all its records since they were put")


class DirectStaging(Staging):
    """No staging: a rollback undoes nothing, and readers of either level see each write at once."""

    strategy: ClassVar[str] = "direct"
    failpoints: ClassVar[tuple[str, ...]] = (COMMIT, RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)
    transactional: ClassVar[bool] = False
    manages_offsets: ClassVar[bool] = False

    def use(self, engine: Engine) -> None:
        super().use(engine)
        self.lookup = engine.get

    def stage(self, key: bytes, value: bytes | None) -> None:
        self.engine.put(key, value)

    def stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        self.engine.write([Writes((), writes)], {}, durable=False)

    def stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self.engine.write([Writes([(start, end)], {})], {}, durable=False)

    def is_clean(self) -> bool:
        return True

    def num_bytes(self) -> int:
        return 0

    def get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        return self.engine.get(key)

    def get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.engine.get_many(keys)

    def scans(self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Scanned]:
        return self.scans_committed(ranges, reverse)

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        reach(COMMIT)
        # Offsets and position belong to the checkpoint file; the store has written each mark when it was set.
        self.engine.sync()

    def rollback(self) -> None:
        """Do nothing: writes in the engine can't be undone."""
