"""The records that the suites write: 16-byte keys, 100-byte values, from a seed, generated before the clock runs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from harness.workloads.ycsb import Source, uniform, zipfian

KEY_BYTES, VALUE_BYTES = 16, 100
_AT_ONCE = 10_000

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
        return list(zip(self._pieces(count, KEY_BYTES), self._values(count), strict=True))

    def of(self, keys: Sequence[bytes], count: int, distribution: str) -> Pairs:
        """Return ``count`` new values for keys drawn ``uniform`` or ``zipfian`` (constant 0.99) from ``keys``."""
        draw = {"uniform": uniform, "zipfian": zipfian}[distribution]
        drawn = draw(self._draws, len(keys), count).tolist()
        return list(zip([keys[at] for at in drawn], self._values(count), strict=True))

    def _values(self, count: int) -> list[bytes]:
        numbers = range(self._made + 1, self._made + 1 + count)
        self._made += count
        filling = self._pieces(count, VALUE_BYTES - 8)
        return [number.to_bytes(8, "big") + rest for number, rest in zip(numbers, filling, strict=True)]

    def _pieces(self, count: int, size: int) -> list[bytes]:
        made: list[bytes] = []
        for begin in range(0, count, _AT_ONCE):
            # One call for many: otherwise records take longer to make than to write.
            block = self._random.randbytes(size * min(_AT_ONCE, count - begin))
            made += [block[at : at + size] for at in range(0, len(block), size)]
        return made


def batches(pairs: list[Item], size: int) -> list[list[Item]]:
    """Divide ``pairs`` into batches of ``size``."""
    return [pairs[at : at + size] for at in range(0, len(pairs), size)]
