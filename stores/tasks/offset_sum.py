"""How far copies of a task are, in one number each, so that a task goes to where least has to be restored."""

from __future__ import annotations

from collections.abc import Mapping

from stores.interface import TopicPartition

OFFSET_SUM_MAX = 2**63 - 1
"""Where sums end. Source: Kafka Streams, ``TaskManager.sumOfChangelogOffsets``, which pins an overflow there."""


def offset_sum(offsets: Mapping[TopicPartition, int | None]) -> int:
    """The changelog offsets of a task's stores together, 0 to ``OFFSET_SUM_MAX``; unknown ones count nothing.

    Source: KIP-441, "Computing the most-caught-up instances"; KIP-892, "Offsets for Consumer Rebalances".
    """
    known = (offset for offset in offsets.values() if offset is not None and offset >= 0)
    return min(sum(known), OFFSET_SUM_MAX)


def freshest_first(sums: Mapping[str, int]) -> list[str]:
    """The instances that have a copy, by name, the one with most of it first; of equals in the order of their names."""
    return sorted(sums, key=lambda instance: (-sums[instance], instance))
