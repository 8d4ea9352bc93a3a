"""The application of the tests of queries: it keeps the last value of each key."""

from __future__ import annotations

import os

from stores.changelog import Record
from stores.records import INT64, STR, KeyValue
from stores.tasks import TaskContext
from stores.worker import Application, Processor

PARTITIONS = 4
COMMIT = b"commit"
"""A key whose record asks for a commit."""


def keep(record: Record, context: TaskContext) -> None:
    """Keep the value of the record, as bytes and as a number."""
    assert record.key is not None
    if record.key == COMMIT:
        context.commit()
        return
    context.store("texts").put(record.key, record.value)
    context.store("numbers").put(record.key.decode(), None if record.value is None else int(record.value))


app = Application(
    os.environ.get("APPLICATION_NAME", "queried"),
    Processor(["lines"], keep, {"texts": None, "numbers": KeyValue(key=STR, value=INT64)}),
    topics={"lines": PARTITIONS},
)
