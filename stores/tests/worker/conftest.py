"""Each changelog that a worker may use, without anything of earlier tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.shared_broker import broker  # noqa: F401
from stores.tests.worker.places import EmbeddedPlace, KafkaPlace, Place


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "embedded":
        return EmbeddedPlace(tmp_path)
    place: KafkaPlace = request.getfixturevalue("kafka_place")
    return place


@pytest.fixture
def kafka_place(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> KafkaPlace:  # noqa: F811
    """The applications have names of their own: the group of a killed worker, or of a static one, stays in use."""
    monkeypatch.setenv("APPLICATION_NAME", f"of-{tmp_path.name}")
    remove_all(broker)
    return KafkaPlace(tmp_path, broker.address)
