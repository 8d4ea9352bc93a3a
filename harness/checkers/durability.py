"""No acknowledged commit is lost, as far as the durability level promises it.

The log keeps what was acknowledged at every level. A store keeps it at PROCESS and DISK; at CHANGELOG it may be
at any earlier commit, which is what the replay of the log's tail is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.checkers.evidence import Acknowledged, Evidence, Life, LogRecord
from harness.checkers.verdict import Verdict, verdict

KEPT_BY_STORES = ("PROCESS", "DISK")


def durability(evidence: Evidence) -> Verdict:
    """Judge the log, and every store that keeps offsets, after each death."""
    return verdict("durability", _anomalies(evidence), evidence.missing)


def last_acknowledged(records: Sequence[LogRecord], log_end: int) -> int | None:
    """The offset of the last record below ``log_end``: what a store at that commit has reached."""
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
