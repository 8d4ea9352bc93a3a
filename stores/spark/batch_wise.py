"""The function of batches of a ``StreamTask`` over the rows of a partition of a batch of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stores.spark.record_columns import inputs_of
from stores.spark.record_wise import RecordContext, RecordWise, Step
from stores.spark.rows import Rows, in_pieces
from stores.tasks.on_error import read_whole
from stores.tasks.record_batch import Batch, place_of, within_bytes
from stores.topic import Topic

if TYPE_CHECKING:
    import pyarrow

_PIECE_ROWS = 10_000
"""The rows of which those of one input come together. Spark sends as many at a time, unless it is set otherwise."""
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class BatchWise(RecordWise):
    """A function of a batch of Spark that calls ``function`` with ``Batch``es, and ``timer`` for each due timer."""

    max_records: int
    max_bytes: int
    """The most records of a ``Batch``, and the most bytes of their keys and values; a larger record is alone."""
    in_order: bool = False
    """True to keep the order of the rows of several inputs: a ``Batch`` ends where another input has the next row."""

    def steps(self, rows: Rows, number: int) -> Iterator[Iterable[Step]]:
        most = max(_PIECE_ROWS // self.max_records, 1) * self.max_records
        for piece in in_pieces(rows.batches(), most, max(_PIECE_BYTES, self.max_bytes)):
            yield self._batches(piece, number)

    def _batches(self, piece: pyarrow.RecordBatch, number: int) -> Iterator[Step]:
        for partition, records in inputs_of(piece, self.key, number, in_order=self.in_order):
            first = 0
            while ahead := records[first : first + self.max_records]:
                count = within_bytes(ahead, len(ahead), self.max_bytes)
                batch = Batch[Any, Any](partition, ahead[:count])
                yield partition, place_of(batch), batch
                first += count

    def call(self, argument: Any, topic: Topic[Any, Any] | None, context: RecordContext) -> None:
        read_whole(self.function, argument if topic is None else argument.read_by(topic), context)
