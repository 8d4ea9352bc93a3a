"""The stores of a task as its transaction sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stores.changelog.interface import Producer
from stores.interface import Position, TopicPartition


class CommittedStores(Protocol):
    """The part of a task's stores (``StoreGroup``) that its transaction uses. Raises: as the methods there."""

    @property
    def partitions(self) -> Sequence[TopicPartition]:
        """The changelog partitions of the stores."""

    def begin(self) -> None:
        """Begin a transaction of the changelogs."""

    def before_commit(self) -> None:
        """Stage the expiry and the marks of the commit."""

    def finish_logs(self) -> None:
        """Send the changelog records that were kept until the commit."""

    def send_stream_times(self, producer: Producer) -> None:
        """Add the stream times of the stores to the changelog's transaction."""

    def commit(self, offsets: Mapping[TopicPartition, int], position: Position) -> None:
        """Commit each store with the changelog offset that its transaction got."""

    def compact_logs(self) -> None:
        """Make a step of the changelogs' compaction."""

    def upgrade_step(self) -> None:
        """Make a step of the online upgrades."""

    def swap_upgraded(self, position: Position) -> None:
        """Replace the stores whose online upgrade is complete."""

    def rollback(self) -> None:
        """Discard the staged writes of each store."""

    def return_to_commit(self, cause: BaseException, position: Position) -> None:
        """Roll back each store, and bring it to the end of its changelog."""
