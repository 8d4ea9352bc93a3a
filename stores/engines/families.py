"""The data families of an engine: one, or two while a store is brought from an older format of its records to another.

A meta entry says which are in use. Without it the first one has all data. ``BOTH``: the first has records of the older
format, the second those of the present one, and nothing moves between them but by writes. ``SECOND``: the first one is
empty for good, and the second has all data. The first is number 0 to an engine that has both, the second number 1; the
one with all data is number 0. Source: KIP-258, ``RocksDBTimestampedStore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stores.errors import StoreCorruptedError

FAMILIES: Final = b"f"
"""The meta entry."""
BOTH: Final = b"both"
SECOND: Final = b"second"


def families_in_use(entry: bytes | None) -> tuple[int, ...]:
    """Return the families with data, by their place on disk: 0 for the first. Raises: StoreCorruptedError."""
    found: Mapping[bytes | None, tuple[int, ...]] = {None: (0,), BOTH: (0, 1), SECOND: (1,)}
    if entry not in found:
        raise StoreCorruptedError(
            f"the entry of a store's data families is {entry!r}: wipe the store and restore it from its changelog"
        )
    return found[entry]
