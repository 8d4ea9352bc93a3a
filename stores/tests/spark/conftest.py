"""Stores that a test leaves open in this process are closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.tests.spark.counting import close_all


@pytest.fixture(autouse=True)
def _closed(tmp_path: Path) -> Iterator[None]:
    """Close before the folder of the test is removed: RocksDB waits a second for each store that has lost its own."""
    yield
    close_all()
