"""The settings of the topics of stores: those of a new one, and those that an existing one must change."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from stores.errors import ChangelogError

_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Brokers delete by the wall clock and by size. A store's records expire by its stream time, which may be years behind:
so the task alone decides what is deleted (``Changelog.drop_before``)."""
_EXPIRING: Final = {"cleanup.policy": "compact,delete", **_FOR_EVER}
"""Kafka deletes records on request only in topics whose policy has ``delete``. Source: KIP-107."""
_LAG: Final = "min.compaction.lag.ms"
_MORE_LAG_MS: Final = 86_400_000
"""Brokers compare the times of records with their clock. Source: Kafka Streams, ``VersionedChangelogTopicConfig``."""
_NUMBER_MAX: Final = (1 << 63) - 1


def checked_topic_settings(settings: object) -> dict[str, str]:
    """Return a copy of the settings that a user gives. Raises: TypeError."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"topic_settings are a mapping of names to texts, not {type(settings).__name__}")
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"topic_settings are texts, by name: write {str(name)!r}: {str(value)!r}")
    return dict(settings)


def store_topic_settings(
    *, expires: bool, history_ms: int | None = None, given: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return the settings of a new topic for a store whose records expire, or are needed for ever.

    With ``history_ms`` compaction leaves records alone for so long and a day, or for longer if that is ``given``.
    """
    if history_ms is None:
        return dict(_EXPIRING) if expires else {"cleanup.policy": "compact"}
    lag_ms = max(history_ms + _MORE_LAG_MS, _number(given.get(_LAG)))
    return {"cleanup.policy": "compact", _LAG: str(min(lag_ms, _NUMBER_MAX))}


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def due_settings(
    topic: str, settings: Mapping[str, str], own: Mapping[str, str] = MappingProxyType({}), *, expires: bool
) -> dict[str, str]:
    """Return the settings of an existing topic that must change, so that it loses nothing and does not grow for ever.

    ``own`` are those of a new topic. Raises: ChangelogError, with the setting, for one that its owner has to decide.
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
        return {_LAG: own[_LAG]} if _LAG in own and _number(settings.get(_LAG)) < _number(own[_LAG]) else {}
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
