"""Stores that a test leaves open in this process are closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stores.spark.task import close_all


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()
