"""A changelog for each test of a task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog


@pytest.fixture
def log() -> Iterator[MemoryChangelog]:
    """In memory, with the topics that the tasks read and write."""
    with MemoryChangelog() as changelog:
        changelog.create_topic("input")
        changelog.create_topic("output")
        yield changelog
    failpoints.disarm()
