"""The input of a crash trial and its correct result, both from the seed alone.

The input is numbered records, each with a few operations on two stores. ``apply`` is how a process carries one out on a
store. ``expected`` is the oracle: it computes the correct result with dictionaries, and shares no code with ``apply``
or with any store.

The mix is chosen to show crash anomalies. There are few keys, so nearly every write overwrites. Values name the record
and operation that wrote them, so a wrong state shows its origin. There are deletes, range deletes, and writes that
depend on the present value; keys with zero and 0xff bytes; empty values. Each record has one output with the results of
its reads.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from harness.checkers.evidence import Change, Expected
from stores.errors import ConfigError

STORES = ("left", "right")
_KINDS = ("put", "put_if_absent", "delete", "delete_range", "get")
READING = ("put_if_absent", "delete", "get")
"""The operations whose result is in the output."""
_WEIGHTS = (50, 14, 14, 4, 18)


@dataclass(frozen=True, slots=True)
class Mix:
    """The size of the input: ``records`` over ``keys`` keys, with values of about ``value_bytes``."""

    records: int = 240
    keys: int = 48
    value_bytes: int = 24

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that is not a whole number from 1 on."""
        for name in ("records", "keys", "value_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} of a mix counts from 1, not {value!r}")


class Operation(NamedTuple):
    """One operation on a store. ``end`` is the last key of a range delete, ``value`` the value of a put."""

    kind: str
    store: str
    key: bytes
    end: bytes | None = None
    value: bytes | None = None


class Writable(Protocol):
    """The methods of a store that operations use."""

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes | None) -> None: ...
    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None: ...
    def delete(self, key: bytes) -> bytes | None: ...
    def delete_range(self, start: bytes | None, end: bytes | None) -> None: ...


def inputs(mix: Mix, seed: int) -> Iterator[list[Operation]]:
    """Yield the operations of each input record from record 0 on. The same mix and seed give the same input."""
    rng = random.Random(f"operations {seed}")
    keys = sorted(_key(number) for number in range(mix.keys))
    for number in range(mix.records):
        yield [_operation(rng, mix, keys, number, step) for step in range(rng.randint(1, 3))]


def encoded(operations: list[Operation]) -> bytes:
    """Return the value of the input record that asks for ``operations``."""
    return json.dumps([[_text(field) for field in operation] for operation in operations]).encode()


def decoded(value: bytes) -> list[Operation]:
    """Return the operations that ``encoded`` wrote."""
    return [
        Operation(kind, store, key.encode("latin-1"), _bytes(end), _bytes(text))
        for kind, store, key, end, text in json.loads(value)
    ]


def apply(operation: Operation, store: Writable) -> bytes | None:
    """Carry out one operation, and return the value that it read, or None."""
    if operation.kind == "put":
        store.put(operation.key, operation.value)
    elif operation.kind == "put_if_absent":
        return store.put_if_absent(operation.key, operation.value)
    elif operation.kind == "delete":
        return store.delete(operation.key)
    elif operation.kind == "delete_range":
        store.delete_range(operation.key, operation.end)
    else:
        return store.get(operation.key)
    return None


def output(reads: list[bytes | None]) -> bytes:
    """Return the value of a record's output: the results of its reads in order."""
    return b"|".join(b"-" if read is None else b"=" + read[:24] for read in reads)


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


def _operation(rng: random.Random, mix: Mix, keys: list[bytes], number: int, step: int) -> Operation:
    kind = rng.choices(_KINDS, _WEIGHTS)[0]
    store = rng.choice(STORES)
    at = rng.randrange(len(keys))
    if kind == "delete_range":
        return Operation(kind, store, keys[at], end=keys[min(at + rng.randint(0, 3), len(keys) - 1)])
    if kind in ("put", "put_if_absent"):
        return Operation(kind, store, keys[at], value=_value(rng, mix, number, step))
    return Operation(kind, store, keys[at])


def _value(rng: random.Random, mix: Mix, number: int, step: int) -> bytes:
    if rng.random() < 0.02:
        return b""
    return b"%d.%d/" % (number, step) + b"v" * rng.randint(mix.value_bytes // 2, mix.value_bytes)


def _key(number: int) -> bytes:
    return (b"k%03d" % number) + (b"", b"\x00", b"\xff", b"\xff\xff")[number % 4]


def _text(field: str | bytes | None) -> str | None:
    return field.decode("latin-1") if isinstance(field, bytes) else field


def _bytes(field: str | None) -> bytes | None:
    return None if field is None else field.encode("latin-1")
