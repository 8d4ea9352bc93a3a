"""The standby copies that each worker keeps: a function of the group's members alone, so that nobody coordinates them.

Each state directory has a weight for each partition, by a hash of both. The directories with the highest weights, other
than that of the partition's owner, keep the copies. A worker that comes or goes moves no more copies than those that it
gets or had. Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (rendezvous hashing).
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from heapq import nlargest

from stores.changelog.group import Peer
from stores.interface import TopicPartition


def standby_partitions(
    peers: Collection[Peer], replicas: int, kept: Collection[TopicPartition]
) -> frozenset[TopicPartition]:
    """Return the partitions of which the member that asks keeps copies. ``kept`` are those of which it has them.

    A directory that several members share has one copy, which its first member follows: the other files in it are those
    of the owner or of that copy. A copy stays while its partition has no owner: its member may become that.
    """
    due = {partition for partition in kept if not any(partition in peer.partitions for peer in peers)}
    own = next((peer for peer in peers if peer.is_self), None)
    if own is None:
        return frozenset(kept)
    if own.directory is None or own.name != min(peer.name for peer in peers if peer.directory == own.directory):
        return frozenset(due)
    directories = sorted({peer.directory for peer in peers if peer.directory is not None})
    for owner in peers:
        others = [directory for directory in directories if directory != owner.directory]
        due.update(each for each in owner.partitions if own.directory in _chosen(others, each, replicas))
    return frozenset(due)


def _chosen(directories: Collection[str], partition: TopicPartition, number: int) -> list[str]:
    """Return the directories with the highest weights for the partition, up to ``number`` of them."""

    def weight(directory: str) -> bytes:
        return sha256(f"{directory} {partition.topic}-{partition.partition}".encode()).digest()

    return nlargest(number, directories, key=weight)
