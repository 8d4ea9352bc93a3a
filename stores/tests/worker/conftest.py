"""Each changelog that a worker may use, without anything of earlier tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.shared_broker import broker  # noqa: F401
from stores.tests.worker.places import EmbeddedPlace, KafkaPlace, Place


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "embedded":
        return EmbeddedPlace(tmp_path)
    started = request.getfixturevalue("broker")
    remove_all(started)
    return KafkaPlace(tmp_path, started.address)
