"""A trial of scale: one store of many records."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiment import check_counts
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named

LEVEL = Durability.CHANGELOG
LIMIT_TIMES = 4
"""A limited store has this many times as many bytes of keys and values as its processes may use memory."""
KEY_BYTES = 16
LIMITED_RECORDS, LIMITED_VALUE_BYTES, LIMITED_MEMORY_BYTES = 280_000, 4_000, 256 << 20
"""A store that exceeds a limit four times, where the limit leaves room for Python and the caches of an engine."""


@dataclass(frozen=True, slots=True)
class ScaleTrial:
    """A store of ``records`` records with keys at random, at level CHANGELOG.

    ``memory_max_bytes`` limits the memory of the processes that use it, page cache included; 0 for no limit.
    """

    backend: str
    records: int
    seed: int
    value_bytes: int = 100
    memory_max_bytes: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for a backend that keeps nothing, and for numbers that make no sense."""
        check_counts(records=self.records, value_bytes=self.value_bytes)
        if not backend_named(self.backend).persistent:
            raise ConfigError(f"{self.backend} has no files, so its state is bounded by memory: choose another backend")
        if LEVEL not in backend_named(self.backend).durabilities:
            raise ConfigError(f"{self.backend} does not support durability {LEVEL}: choose another backend")
        if not 0 <= self.memory_max_bytes * LIMIT_TIMES <= self.state_bytes:
            raise ConfigError(
                f"{self.records:,} records of {KEY_BYTES + self.value_bytes:,} bytes are less than {LIMIT_TIMES} times "
                f"{self.memory_max_bytes:,} bytes of memory: take more records, or less memory"
            )

    @property
    def state_bytes(self) -> int:
        """The bytes of all keys and values."""
        return self.records * (KEY_BYTES + self.value_bytes)
