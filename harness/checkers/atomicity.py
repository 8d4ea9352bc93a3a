"""A recovered store is the model at exactly its committed offset: all of each commit up to it, nothing of a later one.

Source: KIP-892, "Consistency Problem"; KIP-844, ``recover``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.checkers.durability import last_acknowledged
from harness.checkers.evidence import Evidence, Expected, Found, Life, LogRecord
from harness.checkers.model import after, difference, replay
from harness.checkers.verdict import Verdict, verdict


def atomicity(evidence: Evidence) -> Verdict:
    """Check every recovery of every store that claims to be transactional."""
    return verdict("atomicity", _anomalies(evidence), evidence.missing)


def _anomalies(evidence: Evidence) -> Iterator[str]:
    for number, life in enumerate(evidence.lives):
        for store, found in sorted(life.found.items()):
            if found.transactional:
                records = life.log.stores.get(store, ())
                anomaly = _anomaly(found, records)
                # The second process restores in parts of its own, and only the last part has a position. After that a
                # store may correctly be inside a commit, with a position older than its state.
                if not anomaly and number == 0 and evidence.exactly_once:
                    anomaly = _between_commits(found, life, store) or _wrong_position(found, evidence.expected, store)
                if anomaly:
                    yield f"store {store}: {anomaly}"


def _anomaly(found: Found, records: Sequence[LogRecord]) -> str:
    if not found.persistent and (found.state or found.committed_offset is not None):
        return "kept something although it says that it keeps nothing"
    if found.committed_offset is not None and (not records or found.committed_offset > records[-1].offset):
        return f"its committed offset {found.committed_offset} leads its changelog"
    wrong = difference(found.state, replay(records, found.committed_offset))
    return f"not the model at its committed offset {found.committed_offset}: {wrong}" if wrong else ""


def _between_commits(found: Found, life: Life, store: str) -> str:
    """Return an error if the committed offset is not that of an acknowledged commit or of the log's last record."""
    records = life.log.stores.get(store, ())
    commits = {last_acknowledged(records, done.log_ends.get(store, 0)) for done in life.acknowledged}
    commits |= {None, records[-1].offset if records else None}
    offset = found.committed_offset
    return "" if offset in commits else f"its committed offset {offset} lies inside a commit"


def _wrong_position(found: Found, expected: Expected, store: str) -> str:
    if found.position is None:
        return ""
    wrong = difference(found.state, after(expected, store, found.position + 1))
    return f"not the model at its position {found.position}: {wrong}" if wrong else ""
