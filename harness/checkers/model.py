"""The state that a store must have: a dictionary, rebuilt record by record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.checkers.evidence import Expected, LogRecord, State


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
