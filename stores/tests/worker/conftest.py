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
    return _kafka(tmp_path, request.getfixturevalue("broker"))


@pytest.fixture
def kafka_place(tmp_path: Path, broker: Broker) -> KafkaPlace:  # noqa: F811
    return _kafka(tmp_path, broker)


@pytest.fixture
def own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the application a name of its own: after a test with a static member, its group stays in use for a time."""
    monkeypatch.setenv("COUNTING_NAME", f"counting-{tmp_path.name}")


def _kafka(folder: Path, started: Broker) -> KafkaPlace:
    remove_all(started)
    return KafkaPlace(folder, started.address)
