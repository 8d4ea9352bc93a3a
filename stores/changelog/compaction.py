"""Compaction of the embedded changelog, in steps of bounded size and time.

A pass has two parts. The first reads the records after the last pass, and notes the last offset of each key. The second
reads the log from its start, and removes the records that these supersede and aborted records. A step is one
transaction of SQLite. A removed record is superseded even if its pass does not end: so a crash between steps loses only
the notes. Readers keep their snapshot, and offsets do not change.

The last record of a key is kept, even if it is a tombstone: a store that was closed long ago may still need it. It is
removed if its key is older than the retention of a window or session store. A restore drops such a key as well, at the
later record that has the stream time; that record is kept.

Source: Kafka, "Log Compaction" and ``LogCleaner`` (``min.cleanable.dirty.ratio``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil
from time import perf_counter

from stores.changelog.interface import IsExpired
from stores.files.sqlite_library import Connection

STEP_S = 0.05
"""The time limit of a step."""
STEP_RECORDS_MIN = 1_000
RECORDS_PER_APPENDED = 4
"""The number of records that a step reads for each record appended since the last: a pass reads new ones twice."""
NOTED_KEYS_MAX = 200_000
"""The most keys of one pass. If there are more, it ends early, and the next pass continues from there."""
_ROWS = 500
_KEY_BYTES = 32
"""Longer keys are noted by a digest. Source: Kafka, ``SkimpyOffsetMap``."""

ABORTED = "select transaction_id from log_transaction where state = 'ABORTED'"


@dataclass(slots=True)
class _Pass:
    """A pass: first it notes the new records before ``end``, then it compacts all before ``end``; ``at`` is next."""

    at: int
    end: int
    sweeping: bool = False
    kept: int = 0
    last: dict[bytes, int] = field(default_factory=dict)


class Compaction:
    """The compaction of one partition. It is called within a transaction of the log's writer."""

    def __init__(self, topic_id: int, partition: int, dirty_ratio: float, records_min: int) -> None:
        self._where = {"topic": topic_id, "partition": partition}
        self._dirty_ratio, self._records_min = dirty_ratio, records_min
        self._pass: _Pass | None = None
        self._seen_end = -1

    def share(self, reader: Connection, start: int, end: int) -> float:
        """Return the share of the partition's records that no pass has compacted yet: 0 for none, 1 for all."""
        num_clean, dirty = self._kept_and_dirty(reader, start, end)
        return dirty / (num_clean + dirty) if dirty else 0.0

    def due_at(self, reader: Connection, start: int, end: int) -> int:
        """Return the lowest end of the log at which a pass is due; 0 during a pass."""
        if self._pass is not None:
            return 0
        num_clean, dirty = self._kept_and_dirty(reader, start, end)
        dirty_share = min(self._dirty_ratio, 1 - 2**-20)
        return end - dirty + max(self._records_min, 1, ceil(num_clean * dirty_share / (1 - dirty_share)))

    def step(self, writer: Connection, start: int, end: int, is_expired: IsExpired | None = None) -> int:
        """Continue the pass, or begin one; return the number of removed records."""
        try:
            return self._step(writer, start, end, is_expired)
        except BaseException:
            # The transaction is rolled back, so the removed records are there again.
            self._pass = None
            raise

    def _step(self, writer: Connection, start: int, end: int, is_expired: IsExpired | None) -> int:
        if self._pass is None:
            self._pass = _Pass(max(self._clean_offset(writer)[0], start), end)
        appended = end - self._seen_end if self._seen_end >= 0 else 0
        self._seen_end = end
        budget = max(STEP_RECORDS_MIN, RECORDS_PER_APPENDED * appended)
        deadline = perf_counter() + STEP_S
        removed = 0
        while budget > 0 and self._pass is not None and perf_counter() < deadline:
            if self._pass.sweeping:
                removed += self._sweep(writer, self._pass, start, is_expired)
            else:
                self._note(writer, self._pass, start)
            budget -= _ROWS
        return removed

    def _note(self, writer: Connection, under_way: _Pass, start: int) -> None:
        rows = writer.execute(
            "select offset, key from record where topic_id = :topic and partition = :partition and offset >= :at "
            f"and offset < :end and transaction_id not in ({ABORTED}) order by offset limit {_ROWS}",
            {**self._where, "at": under_way.at, "end": under_way.end},
        ).fetchall()
        under_way.last.update((_noted(key), offset) for offset, key in rows if key is not None)
        if rows:
            under_way.at = rows[-1][0] + 1
        full = len(under_way.last) >= NOTED_KEYS_MAX
        if full:
            under_way.end = under_way.at
        if full or not rows:
            under_way.sweeping, under_way.at = True, start

    def _sweep(self, writer: Connection, under_way: _Pass, start: int, is_expired: IsExpired | None) -> int:
        rows = writer.execute(
            f"select offset, key, transaction_id in ({ABORTED}) from record where topic_id = :topic "
            f"and partition = :partition and offset >= :at and offset < :end order by offset limit {_ROWS}",
            {**self._where, "at": max(under_way.at, start), "end": under_way.end},
        ).fetchall()
        last = under_way.last
        superseded = [
            offset
            for offset, key, aborted in rows
            if aborted
            or (
                key is not None and (last.get(_noted(key), -1) > offset or (is_expired is not None and is_expired(key)))
            )
        ]
        writer.executemany(
            "delete from record where topic_id = ? and partition = ? and offset = ?",
            [(*self._where.values(), offset) for offset in superseded],
        )
        under_way.kept += len(rows) - len(superseded)
        if rows:
            under_way.at = rows[-1][0] + 1
        else:
            self._pass = None
            writer.execute(
                "insert or replace into cleaning values (:topic, :partition, :end, :kept)",
                {**self._where, "end": under_way.end, "kept": under_way.kept},
            )
        return len(superseded)

    def _kept_and_dirty(self, reader: Connection, start: int, end: int) -> tuple[int, int]:
        clean, num_clean = self._clean_offset(reader)
        if clean <= start:
            return 0, end - start
        # Truncation may have removed some of what was kept.
        return min(num_clean, clean - start), max(end - clean, 0)

    def _clean_offset(self, reader: Connection) -> tuple[int, int]:
        row = reader.execute(
            "select clean_offset, kept_records from cleaning where topic_id = :topic and partition = :partition",
            self._where,
        ).fetchone()
        return row or (0, 0)


def _noted(key: bytes) -> bytes:
    # A digest is longer than every key that is noted itself, so that they never collide.
    return key if len(key) <= _KEY_BYTES else blake2b(key, digest_size=_KEY_BYTES + 1).digest()
