"""Offset sums: the progress of a task's copies, to assign the task to the most caught-up one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from stores.interface import TopicPartition

OFFSET_SUM_MAX = 2**63 - 1
"""The upper bound of sums. Source: Kafka Streams, ``TaskManager.sumOfChangelogOffsets``."""


def offset_sum(offsets: Mapping[TopicPartition, int | None]) -> int:
    """Return the sum of the changelog offsets of a task's stores, 0 to ``OFFSET_SUM_MAX``. Unknown ones count as 0.

    Source: KIP-441, "Computing the most-caught-up instances"; KIP-892, "Offsets for Consumer Rebalances".
    """
    known = (offset for offset in offsets.values() if offset is not None and offset >= 0)
    return min(sum(known), OFFSET_SUM_MAX)


def most_caught_up_first(sums: Mapping[str, int]) -> list[str]:
    """Return the names of the instances that have a copy, the most caught-up first; equals are in order of names."""
    return sorted(sums, key=lambda instance: (-sums[instance], instance))


def freshest_first(sums: Mapping[str, int]) -> list[str]:
    """Return what ``most_caught_up_first`` returns, and warn that this is its old name."""
    warnings.warn("freshest_first is deprecated: use most_caught_up_first", DeprecationWarning, stacklevel=2)
    return most_caught_up_first(sums)
