"""A changelog for each test of a task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stores import failpoints
from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.shared_broker import broker  # noqa: F401


@pytest.fixture
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changelog]:
    """With the topics that the tasks read and write. In memory, unless the test is ``over_each_changelog``."""
    changelog: Changelog
    kind = getattr(request, "param", "memory")
    if kind == "kafka":
        changelog = fresh_changelog(request.getfixturevalue("broker"))
    elif kind == "sqlite":
        changelog = SqliteChangelog(tmp_path_factory.mktemp("log") / "log.sqlite")
    else:
        changelog = MemoryChangelog()
    with changelog:
        changelog.create_topic("input")
        changelog.create_topic("output")
        yield changelog
    failpoints.disarm()
