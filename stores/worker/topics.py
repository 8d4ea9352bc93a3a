"""The topics of an application: checked before anything is changed, and created where they are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stores.changelog.interface import Changelog
from stores.errors import ConfigError
from stores.worker.definition import Definition


def prepared_topics(application: Definition, changelog: Changelog, *, fencing: bool) -> dict[str, int]:
    """Check topics and group, then create missing topics; return the sub-topology of each leading topic.

    ``fencing`` says whether the group fences transactions. Raises: ConfigError for a topic that is missing, or has
    another number of partitions than needed; ChangelogError if another application uses the group.
    """
    existing = changelog.topics()
    topics = {**application.topics, **existing}
    leading: dict[str, int] = {}
    for number, processor in application.processors.items():
        inputs = processor.subtopology.inputs
        for topic in inputs:
            _check_topic(topic, topics, inputs)
        leading[inputs[0]] = number
    for name, described in application.global_stores.items():
        if described.topic not in topics:
            raise ConfigError(
                f"the topic {described.topic!r} of global store {name!r} does not exist: create it, or name it in "
                "Application(topics=...)"
            )
    for topic, partitions in application.topics.items():
        if topics[topic] < partitions:
            raise ConfigError(
                f"topic {topic!r} has {topics[topic]} partitions, and the application needs {partitions}: add "
                "partitions, or change the application"
            )
    missing = application.topics.keys() - existing.keys()
    if missing:
        changelog.check_group(application.name, fingerprint=application.fingerprint, fencing=fencing)
    for topic in sorted(missing):
        changelog.create_topic(topic, application.topics[topic])
    return leading


def _check_topic(topic: str, topics: Mapping[str, int], inputs: Collection[str]) -> None:
    if topic not in topics:
        raise ConfigError(f"the input topic {topic!r} does not exist: create it, or name it in Application(topics=...)")
    most = max(inputs, key=lambda each: topics.get(each, 0))
    if topics[topic] < topics[most]:
        raise ConfigError(
            f"topic {topic!r} has {topics[topic]} partitions, and {most!r} of the same sub-topology has {topics[most]}"
            ": they need the same number"
        )
