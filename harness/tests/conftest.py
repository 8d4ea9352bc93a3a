"""What several files of tests need to be there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.effects.library import recorder_library
from harness.effects.nursery import Nursery
from stores.errors import ConfigError


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Runs trials whose effects on files are recorded; skips the test where that can't be built."""
    try:
        recorder_library()
    except ConfigError as error:
        pytest.skip(str(error))
    with Nursery() as nursery:
        yield nursery
