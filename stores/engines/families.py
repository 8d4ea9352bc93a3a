"""The data families of an engine: one, or two during the upgrade of a store's records to another format.

A meta entry names those in use. Without it, the first family has all data. With ``BOTH``, the first has records of the
older format and the second those of the present one; only writes move records between them. With ``SECOND``, the second
family has all data, and the first stays empty. If both are in use, the first has number 0 and the second number 1.
Otherwise the one with all data has number 0. Source: KIP-258, ``RocksDBTimestampedStore``.
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
            f"the meta entry of the data families is invalid, {entry!r}: wipe the store and restore it from its "
            "changelog"
        )
    return found[entry]
