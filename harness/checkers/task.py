"""Checkers of a task: its outputs, the length of its restores, and its rollbacks to the last commit."""

from __future__ import annotations

from collections.abc import Iterator

from harness.checkers.evidence import Evidence, FellBack, Found, Life, Restored, Verdict, verdict
from harness.checkers.state import KEPT_BY_STORES, after, difference, last_acknowledged, replay_all


def outputs(evidence: Evidence) -> Verdict:
    """Check the committed records of the output.

    Every input has its output: exactly one under exactly-once, in order; at least one otherwise. Source: KIP-129,
    "Motivation"; a reader of the output sees committed records only.

    Under at-least-once only their keys count: an input that is processed again may read its own earlier writes.
    """
    return verdict("outputs", _wrong_outputs(evidence), evidence.missing)


def _wrong_outputs(evidence: Evidence) -> Iterator[str]:
    if evidence.missing:
        return
    got = [(record.key, record.value) for record in evidence.final_log.outputs]
    wanted = list(evidence.expected.outputs)
    lost = sorted({key for key, _ in wanted} - {key for key, _ in got})
    if lost:
        yield f"{len(lost)} inputs have no output, first {lost[0]!r}"
    if not evidence.exactly_once:
        return
    keys = [key for key, _ in got]
    twice = sorted({key for key in keys if key is not None and keys.count(key) > 1})
    if twice:
        yield f"{len(twice)} inputs have several outputs, first {twice[0]!r}"
    for at, (one, other) in enumerate(zip(got, wanted, strict=False)):
        if one != other:
            yield f"output {at} is {one!r} instead of {other!r}"
    if len(got) != len(wanted):
        yield f"{len(got)} outputs instead of {len(wanted)}"


def bounded_restore(evidence: Evidence) -> Verdict:
    """Check every restore of a store that keeps its offsets.

    It replays only the records in doubt, however long the changelog is: those after the store's committed offset. A
    transactional store that survives a killed process has every acknowledged commit, so at most the last,
    unacknowledged one is replayed. If the changelog no longer reaches back to a store's offset, the store is wiped with
    a reason, and all of the changelog is replayed. Source: KIP-892, "Motivation" and "Error Handling".
    """
    return verdict("bounded_restore", _not_bounded(evidence), evidence.missing)


def _not_bounded(evidence: Evidence) -> Iterator[str]:
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


def fallback(evidence: Evidence) -> Verdict:
    """Check each rollback to the last commit. Under at-least-once a state may correctly be ahead of its input.

    An error while a task runs costs it the open transaction and nothing else: it continues from its last commit. A
    store with isolation rolls its uncommitted writes back. It is not wiped when a commit times out or a function
    raises. Source: KIP-892, "Error Handling"; KIP-129, "Better handling runtime errors".
    """
    return verdict(
        "fallback",
        (found for fell in evidence.fallen_back for found in _not_rolled_back(evidence, fell)),
        evidence.missing,
    )


def _not_rolled_back(evidence: Evidence, fell: FellBack) -> Iterator[str]:
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
