"""The functions that count events by key with Spark's own ways to keep state from Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

STATE = "count"
STATE_SCHEMA = "count long"


def of_frames(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key, for ``applyInPandasWithState``."""
    number = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((number,))
    yield pd.DataFrame({"key": [key[0]], "count": [number]})


class _Counter(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState(STATE, STATE_SCHEMA)

    def _add(self, new: int) -> int:
        before = self._count.get()
        number = new + (before[0] if before is not None else 0)
        self._count.update((number,))
        return int(number)

    def close(self) -> None:
        """Close nothing."""


class OfRows(_Counter):
    """Counts the rows of a key, for ``transformWithState``."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Return the count of the key."""
        yield Row(key=key[0], count=self._add(sum(1 for _ in rows)))


class OfFrames(_Counter):
    """Counts the rows of a key, for ``transformWithStateInPandas``."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Return the count of the key."""
        yield pd.DataFrame({"key": [key[0]], "count": [self._add(sum(len(frame) for frame in rows))]})
