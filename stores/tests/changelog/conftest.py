"""A changelog for each test: every promise is kept in memory and in a file alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog.interface import Changelog
from stores.changelog.memory import MemoryChangelog
from stores.changelog.sqlite import SqliteChangelog


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Changelog]:
    """With two topics: ``a``, and ``b`` of two partitions."""
    changelog: Changelog = MemoryChangelog() if request.param == "memory" else SqliteChangelog(tmp_path / "log.sqlite")
    with changelog:
        changelog.create_topic("a")
        changelog.create_topic("b", 2)
        yield changelog
    failpoints.disarm()
