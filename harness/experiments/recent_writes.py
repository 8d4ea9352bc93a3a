"""Lookups that the engine must answer, although a store keeps recent writes in memory."""

from __future__ import annotations

from typing import Any

from stores.interface import KeyValueStore


def forget_recent_writes(store: KeyValueStore) -> None:
    """Drop the committed writes that an indexed batch keeps in memory. Another strategy keeps none."""
    staging: Any = getattr(store, "staging")  # noqa: B009
    if staging.batch is not None:
        staging.batch.forget_recent()
