"""An error while a task runs costs it the open transaction and nothing else: it continues from its last commit.

A store with isolation rolls its uncommitted writes back. It is not wiped when a commit times out or a function raises.
Source: KIP-892, "Error Handling"; KIP-129, "Better handling runtime errors".
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.checkers.evidence import Evidence, FellBack
from harness.checkers.model import after, difference
from harness.checkers.verdict import Verdict, verdict


def fallback(evidence: Evidence) -> Verdict:
    """Check each rollback to the last commit. Under at-least-once a state may correctly be ahead of its input."""
    return verdict(
        "fallback", (found for fell in evidence.fallen_back for found in _anomalies(evidence, fell)), evidence.missing
    )


def _anomalies(evidence: Evidence, fell: FellBack) -> Iterator[str]:
    if fell.next_input < fell.acknowledged:
        yield f"input up to {fell.acknowledged} was acknowledged, the task went on from {fell.next_input}"
    for store, kept in sorted(fell.stores.items()):
        if kept.wiped and store in fell.transactional:
            yield f"store {store}: wiped, although it could have been rolled back"
        if kept.wiped and not kept.reason:
            yield f"store {store}: wiped, and nobody was told why"
        if evidence.exactly_once:
            wrong = difference(kept.state, after(evidence.expected, store, fell.next_input))
            if wrong:
                yield f"store {store}: not what the first {fell.next_input} inputs lead to: {wrong}"
