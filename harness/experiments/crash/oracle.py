"""The correct result of a trial's input, computed with dictionaries from the seed alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.checkers.evidence import Change, Expected
from harness.experiments.crash.layout import STORES
from harness.experiments.crash.operations import READING, Operation, output


def expected(input_records: Iterable[Sequence[Operation]]) -> Expected:
    """Return every change and every output of the input, in the order of its records."""
    states: dict[str, dict[bytes, bytes]] = {store: {} for store in STORES}
    changes: list[Change] = []
    outputs: list[tuple[bytes, bytes]] = []
    for number, operations in enumerate(input_records):
        reads = []
        for operation in operations:
            state = states[operation.store]
            read, writes = _step(operation, state)
            if operation.kind in READING:
                reads.append(read)
            for key, value in writes:
                changes.append(Change(number, operation.store, key, value))
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        outputs.append((output_key(number), output(reads)))
    return Expected(len(outputs), changes, outputs)


def output_key(number: int) -> bytes:
    """Return the key of input record ``number``, and of its output."""
    return b"%06d" % number


def _step(operation: Operation, state: dict[bytes, bytes]) -> tuple[bytes | None, list[tuple[bytes, bytes | None]]]:
    there = state.get(operation.key)
    if operation.kind == "put":
        return None, [(operation.key, operation.value)]
    if operation.kind == "put_if_absent":
        return there, [] if there is not None else [(operation.key, operation.value)]
    if operation.kind == "delete":
        return there, [(operation.key, None)]
    if operation.kind == "delete_range":
        assert operation.end is not None
        return None, [(key, None) for key in sorted(state) if operation.key <= key <= operation.end]
    return there, []
