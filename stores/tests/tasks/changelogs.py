"""The changelogs over which a test of a task runs."""

from __future__ import annotations

import pytest

over_each_changelog = pytest.mark.parametrize(
    "log", ["memory", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)
"""Run a test over the embedded changelog, and over a Kafka broker."""
