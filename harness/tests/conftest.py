"""Fixtures for several files of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.folders import quick_folder
from harness.io_trace.recorder import recorder_library
from harness.processes.fork_server import ForkServer
from harness.tests.file_order import place
from harness.tests.shared_jvm import SharedJvm
from stores.errors import ConfigError
from stores.tests.quick_folder import keep_temporary_files_in_memory


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    keep_temporary_files_in_memory()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests, and mark those in a session of Spark. pytest deselects by marks after this."""
    items.sort(key=lambda item: place(item.nodeid))
    for item in items:
        if "shared_jvm" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """Runs trials whose operations on files are recorded; skips the test where that can't be built."""
    try:
        recorder_library()
    except ConfigError as error:
        pytest.skip(str(error))
    with ForkServer(within=quick_folder()) as fork_server:
        yield fork_server


@pytest.fixture(scope="session")
def shared_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedJvm]:
    """A JVM for all sessions of this run that need none of their own."""
    with SharedJvm(tmp_path_factory.mktemp("jvm")) as jvm:
        yield jvm


@pytest.fixture(scope="module")
def joined_jvm(shared_jvm: SharedJvm) -> Iterator[SharedJvm]:
    """Sessions of this file join the shared JVM."""
    with shared_jvm.joined():
        yield shared_jvm


@pytest.fixture
def own_recordings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Recordings that a trial keeps are removed with the test."""
    monkeypatch.setattr("harness.experiments.iofaults.workshop.KEPT", tmp_path / "recordings")
