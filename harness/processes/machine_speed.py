"""The speed of a machine at work without a store: it is lower in a slow minute, and the same for a slow store.

Another machine on the same processor slows this one down without a trace in its load: the clock and the caches are
shared. So two runs of equal stores can differ, and then they also differ in this.
"""

from __future__ import annotations

from random import Random
from time import perf_counter
from zlib import crc32

_PAIRS, _TURNS = 4_000, 3


def machine_speed() -> float:
    """Return pairs per second of fixed work, some 20 ms of it: pairs are made, looked up, sorted and summed up."""
    numbers = Random(1).sample(range(1 << 40), _PAIRS)
    began = perf_counter()
    for _ in range(_TURNS):
        made = {number.to_bytes(16): b"%0100d" % number for number in numbers}
        checksum = 0
        for key in sorted(made):
            checksum = crc32(made[key], checksum)
    return _TURNS * _PAIRS / (perf_counter() - began)
