"""Stores that are opened again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import open_store
from stores.tests.records.segmented import Opened


@pytest.fixture(params=["rocksdb-indexed-batch", "lmdb-indexed-batch", "sqlite-native"])
def opened(request: pytest.FixtureRequest, path: Path) -> Opened:
    return lambda: open_store(request.param, path, name="store")
