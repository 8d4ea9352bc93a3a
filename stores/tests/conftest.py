"""Options of all tests of ``stores``: which backends, and how much Hypothesis tries."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import randbelow
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from stores.tests.quick_folder import QUICK_FOLDER, keep_temporary_files_in_memory

SWITCH_INTERVAL_S = 0.0002
"""Threads take turns more often than by default: readers and writers meet at more places, and wait less for a turn."""

settings.register_profile(
    "short", max_examples=25, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("short"), max_examples=1000)
settings.load_profile("short")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", action="append", default=[], help="conformance: only this backend (may be repeated)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    keep_temporary_files_in_memory()
    gc.disable()  # Until the tests are collected: there is no garbage.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(randbelow(1 << 32))


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections, each of which takes a quarter of a second with them."""
    gc.freeze()  # With what little garbage there is: to find it would take a second of each process.
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(
            f"What is random here repeats with --hypothesis-seed={config.option.hypothesis_seed}"
        )


@pytest.fixture
def path() -> Iterator[Path]:
    """Return a path for a store; nothing is there yet."""
    with TemporaryDirectory(dir=QUICK_FOLDER, ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "store"
