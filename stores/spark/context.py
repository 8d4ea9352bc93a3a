"""The context that a function gets with the rows of one partition of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stores.errors import ConfigError


@dataclass(frozen=True)
class Context:
    """The stores of a partition, and the batch. Valid while the function runs."""

    partition: int
    """The partition, from 0."""
    version: int
    """The version that this batch makes. The same batch computed again has the same one."""
    batch_id: int | None
    """The ID of the batch in its streaming query, from 0, None in a batch job."""
    query: str | None
    """The ID of the streaming query, None in a batch job."""
    stores: Mapping[str, Any]
    """The stores by name: typed as in their configuration, or of bytes."""

    def store(self, name: str) -> Any:
        """Return a store. Raises: ConfigError if there is none of that name."""
        try:
            return self.stores[name]
        except KeyError:
            raise ConfigError(f"there is no store {name!r}: the stores are {', '.join(sorted(self.stores))}") from None
