"""The settings of a store's changelog topic: what it is created with, and what would lose records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stores.errors import ChangelogError

_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Brokers delete by the wall clock and by size. A store's records expire by its stream time, which may be years behind:
so the task alone decides what is deleted (``Changelog.drop_before``)."""
_EXPIRING: Final = {"cleanup.policy": "compact,delete", **_FOR_EVER}
"""Kafka deletes records on request only in topics whose policy has ``delete``. Source: KIP-107."""


def store_topic_settings(*, expires: bool) -> dict[str, str]:
    """Return the settings of a new topic for a store whose records expire, or are needed for ever."""
    return dict(_EXPIRING) if expires else {"cleanup.policy": "compact"}


def due_settings(topic: str, settings: Mapping[str, str], *, expires: bool) -> dict[str, str]:
    """Return the settings of an existing topic that must change, so that it loses nothing and does not grow for ever.

    Raises: ChangelogError, with the setting, for one that its owner has to decide.
    """
    if settings.get("message.timestamp.type", "CreateTime") != "CreateTime":
        reason = "its store restores the times of records"
        raise _refused(topic, "message.timestamp.type", settings, reason, "CreateTime")
    policies = {policy.strip() for policy in settings.get("cleanup.policy", "").split(",")}
    due = store_topic_settings(expires=expires)["cleanup.policy"]
    if "compact" not in policies:
        raise _refused(topic, "cleanup.policy", settings, "it must have compact", due)
    if not expires:
        if "delete" in policies:
            raise _refused(topic, "cleanup.policy", settings, "its store needs every key for ever", due)
        return {}
    if "delete" not in policies:
        return dict(_EXPIRING)
    return {name: value for name, value in _FOR_EVER.items() if settings.get(name, value) != value}


def loses_records(changes: Mapping[str, str]) -> bool:
    """Return True if a topic without these changes would lose records. Otherwise it only grows for ever."""
    return bool(changes) and "cleanup.policy" not in changes


def altering(topic: str, changes: Mapping[str, str]) -> str:
    """Return the command of Kafka that changes the settings."""
    values = ",".join(f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in changes.items())
    return (
        f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name {topic} "
        f"--add-config {values}"
    )


def _refused(topic: str, name: str, settings: Mapping[str, str], reason: str, due: str) -> ChangelogError:
    return ChangelogError(
        f"the changelog topic {topic!r} has {name}={settings.get(name, '')}, and would lose records: {reason}. Change "
        f"that setting of the topic: {altering(topic, {name: due})}"
    )
