"""A group of processes that share partitions, as a member and its listener see it.

A member gets partitions, and is asked to release partitions, while the others stay as they are (cooperative rebalances,
KIP-429).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from stores.failpoints import Part, declare
from stores.interface import Closeable, TopicPartition

BEFORE_REVOKE = declare("group.before_revoke", "a member is asked to release partitions, and has not", part=Part.CHANGE)
AFTER_REVOKE = declare(
    "group.after_revoke", "a member has released partitions, and the group does not know it", part=Part.CHANGE
)
BEFORE_ASSIGN = declare(
    "group.before_assign", "a member has got partitions, and has not begun to work on them", part=Part.CHANGE
)


class GroupListener(Protocol):
    """Gets the changes of a member's partitions, in calls of ``GroupMember.poll`` and ``leave``. It raises nothing."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """The member gets these partitions."""

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """The member has to commit its work on these partitions, and release them before this returns."""

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        """The member has lost these partitions: another one may work on them. It releases them without a commit."""


class Copies(Protocol):
    """The local copies of a member's stores, as its group asks for them. It raises nothing."""

    @property
    def directory(self) -> str:
        """The ID of the member's state directory, which outlasts its process."""

    def progress(self) -> Mapping[TopicPartition, int]:
        """Return a number for each partition that has a local copy: the higher it is, the less is to be restored."""


class Peer(NamedTuple):
    """A member of a group, as the members see each other."""

    name: str
    """Its name in the group."""
    directory: str | None
    """The ID of its state directory; None if it keeps no standby copies."""
    partitions: frozenset[TopicPartition]
    """The partitions that it has."""
    is_self: bool
    address: str = ""
    """The address at which it answers queries; empty if it does not."""


class GroupMember(Closeable):
    """A membership in a group. For one thread, except ``addresses`` and ``peers``.

    Raises, all methods: ChangelogError if the group can't have this member; ChangelogTimeoutError.
    """

    @abstractmethod
    def poll(self, wait_s: float) -> None:
        """Take part in the group, for up to ``wait_s`` seconds. Call it again and again: it calls the listener."""

    @property
    def has_joined(self) -> bool:
        """True once the group has taken this member in, as far as ``poll`` has seen."""
        return True

    @abstractmethod
    def addresses(self) -> Mapping[TopicPartition, str]:
        """Return the address of the member that has each partition. Members that gave none are left out.

        A partition that moves has no member for a moment. May be called on any thread. Raises also: StoreClosedError;
        StoreUnavailableError.
        """

    def peers(self) -> Sequence[Peer] | None:
        """Return the members of the group; None while that is unknown, such as in a rebalance. For any thread.

        It is unknown to a member that has joined without ``copies``.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Release all partitions, after the listener's ``revoke``, and leave. May be called more than once."""
