"""The settings of a store's changelog topic: what it is created with, and what would lose records."""

from __future__ import annotations

from collections.abc import Mapping

from stores.errors import ChangelogError

ADDITIONAL_RETENTION_MS = 24 * 60 * 60 * 1000
"""Source: Kafka Streams, default of ``windowstore.changelog.additional.retention.ms``."""


def store_topic_settings(retention_ms: int | None) -> dict[str, str]:
    """Return the settings of a new topic for a store that needs each record for this time, or for ever."""
    if retention_ms is None:
        return {"cleanup.policy": "compact"}
    return {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms + ADDITIONAL_RETENTION_MS)}


def check_store_topic(topic: str, settings: Mapping[str, str], retention_ms: int | None) -> None:
    """Check that an existing topic loses no record that its store needs. Raises: ChangelogError, with the setting."""
    if settings.get("message.timestamp.type", "CreateTime") != "CreateTime":
        raise _refused(topic, "message.timestamp.type", "LogAppendTime", "its store restores the times of records")
    policies = {policy.strip() for policy in settings.get("cleanup.policy", "").split(",")}
    if "compact" not in policies:
        raise _refused(topic, "cleanup.policy", settings.get("cleanup.policy", ""), "it must have compact")
    if "delete" not in policies:
        return
    if retention_ms is None:
        raise _refused(topic, "cleanup.policy", settings["cleanup.policy"], "its store needs every key for ever")
    kept_ms = int(settings.get("retention.ms", "-1"))
    if -1 < kept_ms < retention_ms:
        raise _refused(topic, "retention.ms", str(kept_ms), f"its store needs records for {retention_ms} ms")
    if int(settings.get("retention.bytes", "-1")) >= 0:
        raise _refused(topic, "retention.bytes", settings["retention.bytes"], "its store needs records of any size")


def _refused(topic: str, name: str, value: str, reason: str) -> ChangelogError:
    return ChangelogError(
        f"the changelog topic {topic!r} has {name}={value}, and would lose records: {reason}. Change that setting of "
        "the topic"
    )
