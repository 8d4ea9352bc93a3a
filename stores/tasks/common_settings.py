"""Settings of a task that follow from the configurations of its stores."""

from __future__ import annotations

from collections.abc import Iterable

from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import ProcessingGuarantee
from stores.registry import member


def common_guarantee(given: ProcessingGuarantee | None, stores: Iterable[StoreConfig]) -> ProcessingGuarantee:
    """Return the given guarantee, or that of the stores, or exactly once. Raises: ConfigError."""
    if given is not None:
        return member(ProcessingGuarantee, "processing guarantee", given)
    guarantees = {config.processing_guarantee for config in stores if config.processing_guarantee is not None}
    if len(guarantees) > 1:
        raise ConfigError(
            "the stores' configurations have different guarantees, and a task has one: give all of them the same "
            "processing_guarantee"
        )
    return ProcessingGuarantee(next(iter(guarantees), ProcessingGuarantee.EXACTLY_ONCE))


def lowest_uncommitted_max_bytes(stores: Iterable[StoreConfig]) -> int:
    """Return the lowest limit of the stores, -1 if none has one."""
    return min((limit for config in stores if (limit := config.uncommitted_max_bytes) != -1), default=-1)
