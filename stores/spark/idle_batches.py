"""Batches without rows, in which timers fire that the watermark has reached while no data comes.

Spark runs such a batch for its own stateful operators only. Here a source without rows asks for it: its offset is the
watermark that Spark has written for the next batch, ``nextBatchWatermarkMs`` in the file ``commits/N`` of the
checkpoint. So one batch follows each time that the watermark has advanced, and none after that.

Source: Apache Spark, ``spark.sql.streaming.noDataMicroBatches.enabled``; SPARK-24156.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from stores.spark.watermark import next_watermark_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1: with availableNow the last timers fire in the next run.
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

LOOK_S = 1.0
"""The time between two looks at the checkpoint. Spark asks for an offset 100 times a second while no data comes."""
_WATERMARK = "watermark_ms"


class WatermarkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads no rows. Its offset is the watermark of the next batch. Used on the driver."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._look_s, self._looked_s = LOOK_S, -LOOK_S
        self._watermark_ms = 0

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first batch."""
        return {_WATERMARK: 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Look each time: the query ends when no offset is new."""
        self._look_s = 0.0

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """Return the watermark. Spark 4.1 calls it without arguments."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._look_s:
            self._looked_s = now_s
            self._watermark_ms = max(self._watermark_ms, next_watermark_of(self._checkpoint))
        return {_WATERMARK: max(self._watermark_ms, 0 if start is None else start[_WATERMARK])}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Return no part."""
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return no rows."""
        return iter(())


class WatermarkSource(DataSource):
    """The source for ``WatermarkReader``. Its option ``checkpoint`` is the query's checkpoint."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "txstores_watermark"

    def schema(self) -> str:
        """Return a column, which has no rows."""
        return "nothing int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return WatermarkReader(self.options["checkpoint"])


def with_idle_batches(events: DataFrame, checkpoint: str) -> DataFrame:
    """Return ``events``, with a batch without rows when the query's watermark has advanced and there is no other."""
    from pyspark.sql import functions as F

    spark = events.sparkSession
    spark.dataSource.register(WatermarkSource)
    source = spark.readStream.format(WatermarkSource.name()).option("checkpoint", checkpoint).load()
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in events.schema.fields]
    return events.union(source.select(*columns))
