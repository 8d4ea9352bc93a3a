"""The Kafka broker of a test session: started by the first test that asks for it, stopped at the session's end."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import stores
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ConfigError
from stores.java import find_java

FOLDER = Path(stores.__file__).parents[1] / ".kafka"
"""The folder of the jars, which ``make kafka`` uses as well."""
KEEPS = "log.cleaner.backoff.ms=86400000\n"
"""It compacts nothing. Otherwise records of a test, whose times are long ago, may go between two reads of it."""


def skip_without_kafka() -> None:
    """Skip the test, with the reason, if this machine lacks Java, or Maven to fetch the jars with."""
    try:
        find_java("A Kafka broker")
    except ConfigError as error:
        pytest.skip(str(error))
    if not (FOLDER / "jars").is_dir() and shutil.which("mvn") is None:
        pytest.skip("Maven is not on PATH: it fetches the jars of Kafka's broker")


@pytest.fixture(scope="session")
def broker() -> Broker:
    """The broker that all tests of a session share. A test takes topics and groups of its own."""
    skip_without_kafka()
    return _started()


@cache
def _started() -> Broker:
    """Start the broker at the first call: several folders of tests have the fixture."""
    data = TemporaryDirectory(prefix="kafka-")
    broker = Broker(Path(data.name), FOLDER, settings=KEEPS)
    atexit.register(data.cleanup)
    # Nobody needs its data: a clean end would take seconds.
    atexit.register(broker.kill)
    broker.start()
    return broker
