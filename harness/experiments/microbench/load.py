"""The records that the suites write: 16-byte keys, 100-byte values, from a seed, generated before the clock runs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from harness.workloads.distributions import Source, uniform, zipfian

KEY_BYTES, VALUE_BYTES = 16, 100

Pairs = list[tuple[bytes, bytes]]
Item = TypeVar("Item")


class Load:
    """A stream of records. All values differ, so that no engine can skip a write."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._draws = Source(seed)
        self._made = 0

    def fresh(self, count: int) -> Pairs:
        """Return ``count`` records with new keys in random order."""
        return [(self._random.randbytes(KEY_BYTES), self._value()) for _ in range(count)]

    def of(self, keys: Sequence[bytes], count: int, distribution: str) -> Pairs:
        """Return ``count`` new values for keys drawn ``uniform`` or ``zipfian`` (constant 0.99) from ``keys``."""
        draw = {"uniform": uniform, "zipfian": zipfian}[distribution]
        return [(keys[at], self._value()) for at in draw(self._draws, len(keys), count).tolist()]

    def _value(self) -> bytes:
        self._made += 1
        return self._made.to_bytes(8, "big") + self._random.randbytes(VALUE_BYTES - 8)


def batches(pairs: list[Item], size: int) -> list[list[Item]]:
    """Divide ``pairs`` into batches of ``size``."""
    return [pairs[at : at + size] for at in range(0, len(pairs), size)]
