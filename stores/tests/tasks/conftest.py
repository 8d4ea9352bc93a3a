"""A changelog for each test of a task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stores import failpoints
from stores.changelog import Changelog, MemoryChangelog
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.shared_broker import broker  # noqa: F401


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[Changelog]:
    """With the topics that the tasks read and write. In memory, unless the test is ``over_each_changelog``."""
    changelog: Changelog
    if getattr(request, "param", "memory") == "kafka":
        changelog = fresh_changelog(request.getfixturevalue("broker"))
    else:
        changelog = MemoryChangelog()
    with changelog:
        changelog.create_topic("input")
        changelog.create_topic("output")
        yield changelog
    failpoints.disarm()
