"""No acknowledged commit is lost, as far as the durability level promises it.

The log keeps every acknowledged commit at every level. A store keeps it at PROCESS and DISK. At CHANGELOG a store may
be at any earlier commit, because the log's tail is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.checkers.evidence import Acknowledged, Evidence, Life, LogRecord
from harness.checkers.verdict import Verdict, verdict

KEPT_BY_STORES = ("PROCESS", "DISK")


def durability(evidence: Evidence) -> Verdict:
    """Check the log, and every store that keeps offsets, after each death."""
    return verdict("durability", _anomalies(evidence), evidence.missing)


def last_acknowledged(records: Sequence[LogRecord], log_end: int) -> int | None:
    """Return the offset of the last record below ``log_end``: the offset of a store at that commit."""
    return max((record.offset for record in records if record.offset < log_end), default=None)


def _anomalies(evidence: Evidence) -> Iterator[str]:
    for life in evidence.lives:
        if life.acknowledged:
            yield from _lost(evidence.durability, life, life.acknowledged[-1])


def _lost(level: str, life: Life, acknowledged: Acknowledged) -> Iterator[str]:
    if life.log.next_input < acknowledged.next_input:
        yield f"input up to {acknowledged.next_input} was acknowledged, the log has {life.log.next_input}"
    for store, found in sorted(life.found.items()):
        if level not in KEPT_BY_STORES or not found.persistent or not found.manages_offsets:
            continue
        promised = last_acknowledged(life.log.stores.get(store, ()), acknowledged.log_ends.get(store, 0))
        if promised is not None and (found.committed_offset is None or found.committed_offset < promised):
            yield f"store {store}: offset {promised} was acknowledged, it is at {found.committed_offset}"
