"""Count the words of lines: the program of ``word-count.service``, ``Dockerfile`` and ``kubernetes.yaml``.

    txstores worker word_count:app --config worker.properties

Needs the extras ``kafka``, ``http`` and ``prometheus``: Kafka, queries of the counts, and metrics with the probes.
"""

from __future__ import annotations

from stores.changelog import Record
from stores.records import BYTES, INT64, STR, KeyValue
from stores.tasks import TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

LINES = Topic("lines", key=BYTES, value=STR)
WORDS = Topic("words", key=STR, value=BYTES)
COUNTED = Topic("counted", key=STR, value=INT64)
COUNTS = KeyValue(key=STR, value=INT64, name="counts")


def split(record: Record[bytes, str], context: TaskContext) -> None:
    """Send each word of a line as the key of a record: so one task gets all of its occurrences."""
    for word in (record.value or "").split():
        context.forward(WORDS, word, b"")


def count(record: Record[str, bytes], context: TaskContext) -> None:
    """Count one word, and forward its new count."""
    if record.key is not None:
        context.forward(COUNTED, record.key, context.store(COUNTS).update(record.key, lambda number: number + 1, 0))


processors = [Processor([LINES], split), Processor([WORDS], count, [COUNTS])]
app = Application("word-count", processors, topics={LINES: 4, WORDS: 4, COUNTED: 4})

if __name__ == "__main__":
    with AppDriver(app) as driver:
        driver.pipe(LINES, None, "to be or not to be")
        print([(each.key, each.value) for each in driver.read(COUNTED)])
