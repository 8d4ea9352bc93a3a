"""The members of a consumer group, by their client IDs: those of other applications are foreign.

Each member's client ID has a mark: the name of its group, and the fingerprint of its application.
"""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from stores.changelog.kafka.cluster import Cluster
from stores.errors import ChangelogError, ChangelogTimeoutError

_BESIDE = "/workers"
"""The end of the name of a group of members beside that of the offsets. No application can have such a name."""


def mark_of(group: str, fingerprint: str) -> str:
    """Return what the client ID of each member has in it."""
    return f"txstores-{group}-{fingerprint}"


def group_of_members(group: str, *, fencing: bool) -> str:
    """Return the name of the group that members join whose offsets are those of ``group``."""
    return group if fencing else group + _BESIDE


def check_members(cluster: Cluster, group: str, fingerprint: str, *, fencing: bool) -> None:
    """Check that all members of ``group`` are of the same application, with the same ``fencing``.

    Raises: ChangelogError if there are others; as ``Cluster.asked``.
    """
    mark = mark_of(group, fingerprint)
    foreign = _clients(cluster, group_of_members(group, fencing=not fencing))
    foreign += [client for client in _clients(cluster, group_of_members(group, fencing=fencing)) if mark not in client]
    if foreign:
        raise ChangelogError(
            f"the group {group!r} is in use by another application, or by this one with other sub-topologies or "
            f"another transaction.scope (client {foreign[0]!r}): choose another name for the application, or stop the "
            "others first"
        )


def _clients(cluster: Cluster, group: str) -> list[str]:
    """Return the client IDs of the group's members; empty if there is no such group, or it can't be seen."""
    admin = cluster.client(AdminClient, {})

    def ask(left_s: float) -> list[str]:
        [future] = admin.describe_consumer_groups([group], request_timeout=left_s).values()
        return [member.client_id for member in future.result().members]

    try:
        return cluster.asked(f"asking for the members of group {group!r}", ask)
    except ChangelogTimeoutError:
        raise
    except ChangelogError:
        return []
