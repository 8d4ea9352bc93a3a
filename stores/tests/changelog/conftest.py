"""A changelog for each test: every promise is kept in memory, in a file and in Kafka alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog.interface import Changelog
from stores.changelog.memory import MemoryChangelog
from stores.changelog.sqlite import SqliteChangelog
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.shared_broker import broker  # noqa: F401


@pytest.fixture(params=["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Changelog]:
    """With two topics: ``a``, and ``b`` of two partitions."""
    changelog: Changelog
    if request.param == "kafka":
        changelog = fresh_changelog(request.getfixturevalue("broker"))
    else:
        changelog = MemoryChangelog() if request.param == "memory" else SqliteChangelog(tmp_path / "log.sqlite")
    with changelog:
        changelog.create_topic("a")
        changelog.create_topic("b", 2)
        yield changelog
    failpoints.disarm()
