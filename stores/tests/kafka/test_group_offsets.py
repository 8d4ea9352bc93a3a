"""The questions for committed offsets: about the inputs of a task, and nothing else of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog.kafka import group_offsets
from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tests.kafka.counting import KEYS, changelog, prepared, task_over
from stores.tests.tasks.setup import INPUT

pytestmark = pytest.mark.kafka


def test_a_task_asks_for_the_committed_offsets_of_its_inputs_only(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may have thousands of topics, and the client may lack the right to see those of others."""
    asked: set[tuple[str, int]] = set()
    committed = group_offsets._committed

    def noted(consumer: Any, partitions: Any, timeout_s: float) -> dict[TopicPartition, int]:
        asked.update((partition.topic, partition.partition) for partition in partitions)
        return committed(consumer, partitions, timeout_s)

    monkeypatch.setattr(group_offsets, "_committed", noted)
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log:
        log.create_topic("of-others", 3)
        with task_over(tmp_path, log) as task:
            task.run(commit=True)
        assert asked == {INPUT}
        assert log.committed_offsets("app") == log.committed_offsets("app", [INPUT]) == {INPUT: len(KEYS)}
        assert log.committed_offsets("app", [TopicPartition("of-others", 1)]) == {}
