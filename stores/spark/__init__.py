"""Stateful streaming on Spark: the library's stores as the state of a Structured Streaming query, exactly once."""

from stores.spark.context import Context
from stores.spark.rows import Rows
from stores.spark.stateful import stateful

__all__ = ["Context", "Rows", "stateful"]
