"""MurmurHash2, 64 bits: an ID from names, the same on every machine and in every release.

Source: Austin Appleby, ``MurmurHash64A`` (public domain); KIP-816, "Alternative 2".
"""

from __future__ import annotations

_MULTIPLIER, _SHIFT = 0xC6A4A7935BD1E995, 47
_MASK = (1 << 64) - 1
SEED_BOUND = 1 << 64


def murmur2_64(data: bytes, seed: int = 0) -> int:
    """Return the hash of ``data``, 0 to 2**64 - 1; ``seed`` is below ``SEED_BOUND``. Not for adversaries."""
    found = (seed ^ (len(data) * _MULTIPLIER)) & _MASK
    whole = len(data) & ~7
    for at in range(0, whole, 8):
        word = (int.from_bytes(data[at : at + 8], "little") * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> _SHIFT)) * _MULTIPLIER) & _MASK
        found = ((found ^ word) * _MULTIPLIER) & _MASK
    if whole < len(data):
        found = ((found ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER) & _MASK
    found = ((found ^ (found >> _SHIFT)) * _MULTIPLIER) & _MASK
    return found ^ (found >> _SHIFT)
