"""After its restore a store equals the model at the changelog's end, and finally the model of the whole input.

Source: KIP-129, "Motivation": the effects of every input record on the state, exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.checkers.evidence import Evidence, Life
from harness.checkers.model import after, difference, replay_all
from harness.checkers.verdict import Verdict, verdict


def convergence(evidence: Evidence) -> Verdict:
    """Check each restore, and the end of the last process.

    Under at-least-once a store without isolation may be ahead of its changelog until the input is processed again. A
    replay may also start before the records of the log. So there only the end is compared with the input.
    """
    return verdict("convergence", _anomalies(evidence), evidence.missing)


def _anomalies(evidence: Evidence) -> Iterator[str]:
    for life in evidence.lives:
        yield from _after_restore(evidence, life)
    if evidence.missing:
        return
    if evidence.final_log.next_input != evidence.expected.records:
        yield f"the input ends at {evidence.expected.records}, the log says {evidence.final_log.next_input}"
    for store, state in sorted(evidence.final.items()):
        wrong = difference(state, after(evidence.expected, store, evidence.expected.records))
        if wrong:
            yield f"store {store}, at the end: not what the input leads to: {wrong}"
        if evidence.exactly_once:
            wrong = difference(state, replay_all(evidence.final_log.stores.get(store, ())))
            if wrong:
                yield f"store {store}, at the end: not the model at the changelog's end: {wrong}"


def _after_restore(evidence: Evidence, life: Life) -> Iterator[str]:
    for store, restored in sorted(life.restored.items()):
        kept_apart = store in life.found and life.found[store].transactional
        if evidence.exactly_once or kept_apart:
            wrong = difference(restored.state, replay_all(life.log.stores.get(store, ())))
            if wrong:
                yield f"store {store}, restored: not the model at the changelog's end: {wrong}"
        if evidence.exactly_once:
            wrong = difference(restored.state, after(evidence.expected, store, life.log.next_input))
            if wrong:
                yield f"store {store}, restored: not what the first {life.log.next_input} inputs lead to: {wrong}"
