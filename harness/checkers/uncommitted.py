"""No data is visible that no committed transaction wrote.

A transactional store must not show such data from its opening on. Any other store must have removed it after its
restore under exactly-once: here a background flush before an abort would show (KAFKA-20685).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.checkers.evidence import Evidence, LogRecord, State
from harness.checkers.verdict import Verdict, verdict


def uncommitted(evidence: Evidence) -> Verdict:
    """Check each store as it was found, and after its restore."""
    return verdict("uncommitted", _anomalies(evidence), evidence.missing)


def _anomalies(evidence: Evidence) -> Iterator[str]:
    for life in evidence.lives:
        for store, found in sorted(life.found.items()):
            if found.transactional:
                yield from _never_committed(store, "found", found.state, life.log.stores.get(store, ()))
        for store, restored in sorted(life.restored.items()):
            if evidence.exactly_once:
                yield from _never_committed(store, "restored", restored.state, life.log.stores.get(store, ()))


def _never_committed(store: str, when: str, state: State, records: Sequence[LogRecord]) -> Iterator[str]:
    written = {(record.key, record.value) for record in records}
    for key, value in sorted(state.items()):
        if (key, value) not in written:
            yield f"store {store}, as {when}: key {key!r} has {value[:16]!r}, which was never committed"
