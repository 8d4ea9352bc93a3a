"""Keys and values of synthetic workloads."""

from __future__ import annotations

from harness.workloads.distributions import Integers, Source, fnv1a_64
from stores.errors import ConfigError

KEY_BYTES = 16
VALUE_BYTES = 100
KEY_BYTES_MIN = 8
VALUE_BYTES_MIN = 8
_POOL_BYTES = 1 << 20


def keys_of(numbers: Integers, key_bytes: int = KEY_BYTES) -> list[bytes]:
    """Return the key of each key number: its hash, so that adjacent numbers are far apart in the store.

    It has sixteen hexadecimal digits, padded with zeros on the left; below 16 bytes, the eight bytes of the hash,
    padded with zero bytes. Raises: ConfigError for fewer than 8 bytes. Source: YCSB, CoreWorkload.buildKeyName (hashed
    insert order).
    """
    if key_bytes < KEY_BYTES_MIN:
        raise ConfigError(f"a key of {key_bytes} bytes can't tell the keys apart: ask for {KEY_BYTES_MIN} or more")
    hashes = fnv1a_64(numbers).astype(">i8").tobytes()
    if key_bytes < 16:
        return [hashes[at : at + 8].rjust(key_bytes, b"\0") for at in range(0, len(hashes), 8)]
    digits = hashes.hex().encode()
    return [digits[at : at + 16].rjust(key_bytes, b"0") for at in range(0, len(digits), 16)]


class Values:
    """Values of one length, all different: each begins with the number of its write, and random bytes follow."""

    def __init__(self, seed: int, value_bytes: int = VALUE_BYTES) -> None:
        """Create the source of values. Raises: ConfigError for fewer than 8 bytes, which the number needs."""
        if value_bytes < VALUE_BYTES_MIN:
            raise ConfigError(
                f"a value of {value_bytes} bytes can't differ with each write: ask for {VALUE_BYTES_MIN} or more"
            )
        self._filler_bytes = value_bytes - VALUE_BYTES_MIN
        self._pool = Source(seed, value_bytes).random_bytes(_POOL_BYTES + self._filler_bytes)

    def value(self, key: bytes, write: int) -> bytes:
        """Return the value that write number ``write`` (0 or more) puts under ``key``."""
        start = (int.from_bytes(key[-4:], "big") + write * 7919) % _POOL_BYTES
        return write.to_bytes(VALUE_BYTES_MIN, "big") + self._pool[start : start + self._filler_bytes]
