"""Checkers of stores: atomicity, durability, uncommitted data and convergence, each against a model.

The model is the state that a store must have: a dictionary, rebuilt record by record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.checkers.evidence import (
    Acknowledged,
    Evidence,
    Expected,
    FellBack,
    FoundStore,
    LaterProcess,
    LogRecord,
    RestoredStore,
    State,
    checker,
)

KEPT_BY_STORES = ("PROCESS", "DISK")


@checker
def atomicity(evidence: Evidence) -> Iterator[str]:
    """Check every recovery of every store that claims to be transactional.

    A recovered store is the model at exactly its committed offset: all of each commit up to it, nothing of a later one.
    Source: KIP-892, "Consistency Problem"; KIP-844, ``recover``.
    """
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


def _anomaly(found: FoundStore, records: Sequence[LogRecord]) -> str:
    if not found.persistent and (found.state or found.committed_offset is not None):
        return "kept something although it says that it keeps nothing"
    if found.committed_offset is not None and (not records or found.committed_offset > records[-1].offset):
        return f"its committed offset {found.committed_offset} leads its changelog"
    wrong = difference(found.state, replay(records, found.committed_offset))
    return f"not the model at its committed offset {found.committed_offset}: {wrong}" if wrong else ""


def _between_commits(found: FoundStore, life: LaterProcess, store: str) -> str:
    """Return an error if the committed offset is not that of an acknowledged commit or of the log's last record."""
    records = life.log.stores.get(store, ())
    commits = {last_acknowledged(records, commit.log_ends.get(store, 0)) for commit in life.acknowledged}
    commits |= {None, records[-1].offset if records else None}
    offset = found.committed_offset
    return "" if offset in commits else f"its committed offset {offset} lies inside a commit"


def _wrong_position(found: FoundStore, expected: Expected, store: str) -> str:
    if found.position is None:
        return ""
    wrong = difference(found.state, after(expected, store, found.position + 1))
    return f"not the model at its position {found.position}: {wrong}" if wrong else ""


@checker
def durability(evidence: Evidence) -> Iterator[str]:
    """Check the log, and every store that keeps offsets, after each death.

    No acknowledged commit is lost, as far as the durability level promises it. The log keeps every acknowledged commit
    at every level. A store keeps it at PROCESS and DISK. At CHANGELOG a store may be at any earlier commit, because the
    log's tail is replayed.
    """
    for life in evidence.lives:
        if life.acknowledged:
            yield from _lost(evidence.durability, life, life.acknowledged[-1])


def last_acknowledged(records: Sequence[LogRecord], log_end: int) -> int | None:
    """Return the offset of the last record below ``log_end``: the offset of a store at that commit."""
    return max((record.offset for record in records if record.offset < log_end), default=None)


def _lost(level: str, life: LaterProcess, acknowledged: Acknowledged) -> Iterator[str]:
    if life.log.next_input < acknowledged.next_input:
        yield f"input up to {acknowledged.next_input} was acknowledged, the log has {life.log.next_input}"
    for store, found in sorted(life.found.items()):
        if level not in KEPT_BY_STORES or not found.persistent or not found.manages_offsets:
            continue
        promised = last_acknowledged(life.log.stores.get(store, ()), acknowledged.log_ends.get(store, 0))
        if promised is not None and (found.committed_offset is None or found.committed_offset < promised):
            yield f"store {store}: offset {promised} was acknowledged, it is at {found.committed_offset}"


@checker
def uncommitted(evidence: Evidence) -> Iterator[str]:
    """Check each store as it was found, and after its restore.

    No data is visible that no committed transaction wrote. A transactional store must not show such data from its
    opening on. Any other store must have removed it after its restore under exactly-once: here a background flush
    before an abort would show (KAFKA-20685).
    """
    for life in evidence.lives:
        for store, found in sorted(life.found.items()):
            if found.transactional:
                yield from _never_committed(store, "found", found.state, life.log.stores.get(store, ()))
        for store, restored in sorted(life.restored.items()):
            if evidence.exactly_once:
                yield from _never_committed(store, "restored", restored.state, life.log.stores.get(store, ()))


def _never_committed(store: str, when: str, state: State, records: Sequence[LogRecord]) -> Iterator[str]:
    pairs = {(record.key, record.value) for record in records}
    for key, value in sorted(state.items()):
        if (key, value) not in pairs:
            yield f"store {store}, as {when}: key {key!r} has {value[:16]!r}, which was never committed"


@checker
def convergence(evidence: Evidence) -> Iterator[str]:
    """Check each restore, and the end of the last process.

    After its restore a store equals the model at the changelog's end, and finally the model of the whole input. Source:
    KIP-129, "Motivation": the effects of every input record on the state, exactly once.

    Under at-least-once a store without isolation may be ahead of its changelog until the input is processed again. A
    replay may also start before the records of the log. So there only the end is compared with the input.
    """
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


def _after_restore(evidence: Evidence, life: LaterProcess) -> Iterator[str]:
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


def replay(records: Iterable[LogRecord], through_offset: int | None) -> dict[bytes, bytes]:
    """Return the state after all records up to and including ``through_offset``; None means before the first."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if through_offset is not None and record.offset <= through_offset and record.key is not None:
            _set(state, record.key, record.value)
    return state


def replay_all(records: Sequence[LogRecord]) -> dict[bytes, bytes]:
    """Return the state at the log's end."""
    return replay(records, records[-1].offset if records else None)


def after(expected: Expected, store: str, inputs: int) -> dict[bytes, bytes]:
    """Return the state of ``store`` after the first ``inputs`` records of the input."""
    state: dict[bytes, bytes] = {}
    for change in expected.changes:
        if change.store == store and change.number < inputs:
            _set(state, change.key, change.value)
    return state


def difference(state: State, model: State) -> str:
    """Return how ``state`` differs from ``model``, by the first key that does; empty where they are equal."""
    wrong = sorted(key for key in state.keys() | model.keys() if state.get(key) != model.get(key))
    if not wrong:
        return ""
    key = wrong[0]
    return f"{len(wrong)} keys differ, first {key!r}: {_shown(state.get(key))} instead of {_shown(model.get(key))}"


def _set(state: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:16])


@checker
def outputs(evidence: Evidence) -> Iterator[str]:
    """Check the committed records of the output.

    Every input has its output: exactly one under exactly-once, in order; at least one otherwise. Source: KIP-129,
    "Motivation"; a reader of the output sees committed records only.

    Under at-least-once only their keys count: an input that is processed again may read its own earlier writes.
    """
    if evidence.missing:
        return
    actual = [(record.key, record.value) for record in evidence.final_log.outputs]
    expected = list(evidence.expected.outputs)
    lost = sorted({key for key, _ in expected} - {key for key, _ in actual})
    if lost:
        yield f"{len(lost)} inputs have no output, first {lost[0]!r}"
    if not evidence.exactly_once:
        return
    keys = [key for key, _ in actual]
    twice = sorted({key for key in keys if key is not None and keys.count(key) > 1})
    if twice:
        yield f"{len(twice)} inputs have several outputs, first {twice[0]!r}"
    for at, (one, other) in enumerate(zip(actual, expected, strict=False)):
        if one != other:
            yield f"output {at} is {one!r} instead of {other!r}"
    if len(actual) != len(expected):
        yield f"{len(actual)} outputs instead of {len(expected)}"


@checker
def bounded_restore(evidence: Evidence) -> Iterator[str]:
    """Check every restore of a store that keeps its offsets.

    It replays only the records in doubt, however long the changelog is: those after the store's committed offset. A
    transactional store that survives a killed process has every acknowledged commit, so at most the last,
    unacknowledged one is replayed. If the changelog no longer reaches back to a store's offset, the store is wiped with
    a reason, and all of the changelog is replayed. Source: KIP-892, "Motivation" and "Error Handling".
    """
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


def _not_anew(store: str, restored: RestoredStore, keys: int) -> Iterator[str]:
    if not restored.wiped:
        yield f"store {store}: kept, although its changelog no longer reaches back to it"
    if restored.records > keys:
        yield f"store {store}: {restored.records} records were replayed, the changelog has {keys}"


def _in_doubt(level: str, life: LaterProcess, store: str, found: FoundStore) -> int:
    records = life.log.stores.get(store, ())
    reached = -1 if found.committed_offset is None else found.committed_offset
    if level in KEPT_BY_STORES and found.persistent and life.acknowledged:
        promised = last_acknowledged(records, life.acknowledged[-1].log_ends.get(store, 0))
        reached = max(reached, -1 if promised is None else promised)
    return sum(record.offset > reached for record in records)


@checker
def fallback(evidence: Evidence) -> Iterator[str]:
    """Check each rollback to the last commit. Under at-least-once a state may correctly be ahead of its input.

    An error while a task runs costs it the open transaction and nothing else: it continues from its last commit. A
    store with isolation rolls its uncommitted writes back. It is not wiped when a commit times out or a function
    raises. Source: KIP-892, "Error Handling"; KIP-129, "Better handling runtime errors".
    """
    for fell in evidence.fallen_back:
        yield from _not_rolled_back(evidence, fell)


def _not_rolled_back(evidence: Evidence, fell: FellBack) -> Iterator[str]:
    if fell.next_input < fell.acknowledged:
        yield f"input up to {fell.acknowledged} was acknowledged, the task went on from {fell.next_input}"
    for store, restored in sorted(fell.stores.items()):
        if restored.wiped and store in fell.transactional:
            yield f"store {store}: wiped, although it could have been rolled back"
        if restored.wiped and not restored.reason:
            yield f"store {store}: wiped, and nobody was told why"
        if evidence.exactly_once:
            wrong = difference(restored.state, after(evidence.expected, store, fell.next_input))
            if wrong:
                yield f"store {store}: not what the first {fell.next_input} inputs lead to: {wrong}"
