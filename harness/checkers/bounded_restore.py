"""A restore replays only the records in doubt, however long the changelog is.

The records in doubt are those after the store's committed offset. A transactional store that survives a killed process
has every acknowledged commit, so at most the last, unacknowledged one is replayed.
If the changelog no longer reaches back to a store's offset, the store is wiped with a reason, and all of the changelog
is replayed. Source: KIP-892, "Motivation" and "Error Handling".
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.checkers.durability import KEPT_BY_STORES, last_acknowledged
from harness.checkers.evidence import Evidence, Found, Life, Restored
from harness.checkers.model import replay_all
from harness.checkers.verdict import Verdict, verdict


def bounded_restore(evidence: Evidence) -> Verdict:
    """Check every restore of a store that keeps its offsets."""
    return verdict("bounded_restore", _anomalies(evidence), evidence.missing)


def _anomalies(evidence: Evidence) -> Iterator[str]:
    for life in evidence.lives:
        for store, restored in sorted(life.restored.items()):
            found = life.found.get(store)
            if found is None or not found.manages_offsets:
                continue
            if restored.wiped and not restored.reason:
                yield f"store {store}: wiped, and nobody was told why"
            if life.truncated and found.persistent and found.committed_offset is not None:
                yield from _not_anew(store, restored, len(replay_all(life.log.stores.get(store, ()))))
                continue
            if restored.wiped and found.persistent:
                yield f"store {store}: wiped, although it is transactional"
            in_doubt = _in_doubt(evidence.durability, life, store, found)
            if restored.records > in_doubt:
                yield f"store {store}: {restored.records} records were replayed, {in_doubt} were in doubt"


def _not_anew(store: str, restored: Restored, keys: int) -> Iterator[str]:
    if not restored.wiped:
        yield f"store {store}: kept, although its changelog no longer reaches back to it"
    if restored.records > keys:
        yield f"store {store}: {restored.records} records were replayed, the changelog has {keys}"


def _in_doubt(level: str, life: Life, store: str, found: Found) -> int:
    records = life.log.stores.get(store, ())
    reached = -1 if found.committed_offset is None else found.committed_offset
    if level in KEPT_BY_STORES and found.persistent and life.acknowledged:
        promised = last_acknowledged(records, life.acknowledged[-1].log_ends.get(store, 0))
        reached = max(reached, -1 if promised is None else promised)
    return sum(record.offset > reached for record in records)
