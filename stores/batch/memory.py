"""The memory of staged writes: what is counted, and what an entry takes beside its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PAIR_MEMORY_BYTES: Final = 92
"""The memory of a staged pair in addition to its key and value: two Python objects, a slot in a dict and a slot in the
order of keys. Measured with tracemalloc: 65 to 140, depending on the sizes of both and the fill level of the dict."""
RANGE_MEMORY_BYTES: Final = 110
"""The memory of a range delete in addition to its bounds."""


def bytes_of(writes: Mapping[bytes, bytes | None]) -> int:
    """Return the number of bytes of all keys and values, without bytecode for each."""
    return sum(map(len, writes)) + sum(map(len, filter(None, writes.values())))
