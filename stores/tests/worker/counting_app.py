"""The application of these tests: it counts words, in as many tasks as there are partitions."""

from __future__ import annotations

import os
import sys
from threading import Event

from stores.changelog import Record
from stores.tasks import Batch, DeadLetterTopic, GlobalStore, TaskContext
from stores.worker import Application, Processor

PARTITIONS = 4
NAME = os.environ.get("APPLICATION_NAME", "counting")
"""The name of the application: another one for each test over Kafka."""


def count(record: Record, context: TaskContext) -> None:
    """Count the record's word, and forward the count."""
    assert record.value is not None
    if record.value == b"poison":
        raise RuntimeError("this word can't be counted")
    counts = context.store("counts")
    new = b"%d" % (int(counts.get(record.value) or b"0") + 1)
    counts.put(record.value, new)
    context.forward("counted", record.value, new)


def count_all(batch: Batch, context: TaskContext) -> None:
    """Count as ``count`` does, with one lookup and one write for the whole batch."""
    if b"poison" in batch.values:
        raise RuntimeError("this word can't be counted")
    words, forwarded = [word for word in batch.values if word is not None], []
    store, distinct = context.store("counts"), list(dict.fromkeys(words))
    counts = {word: int(old or b"0") for word, old in zip(distinct, store.get_many(distinct), strict=True)}
    for word in words:
        counts[word] += 1
        forwarded.append(b"%d" % counts[word])
    store.put_many({word: b"%d" % number for word, number in counts.items()})
    context.forward_many("counted", words, forwarded)


app = Application(
    NAME, Processor(["words"], count, {"counts": None}), topics={"words": PARTITIONS, "counted": PARTITIONS}
)
unfit = Application(NAME, Processor(["words", "others"], count, {"counts": None}), topics={"words": 2, "others": 3})
inputless = Application(NAME, Processor(["missing"], count))
same_name = Application(
    NAME, Processor(["words"], count, {"others": None}), topics={"words": PARTITIONS, "missing": PARTITIONS}
)


def stall(record: Record, context: TaskContext) -> None:
    """Say so, and never return."""
    print("stalled", file=sys.stderr, flush=True)
    Event().wait()


def price(record: Record, context: TaskContext) -> None:
    """Forward the price of the record's word, 0 if it has none."""
    assert record.value is not None
    context.forward("counted", record.value, context.store("prices").get(record.value) or b"0")


priced = Application(
    NAME,
    Processor(["words"], price),
    topics={"words": PARTITIONS, "counted": PARTITIONS, "prices": 2},
    global_stores={"prices": GlobalStore("prices")},
)
lettered = Application(
    NAME,
    Processor(["words"], price),
    topics={"words": PARTITIONS, "counted": PARTITIONS, "prices": 2, "dead": 1},
    global_stores={"prices": GlobalStore("prices", on_deserialization_error=DeadLetterTopic("dead"))},
)
unpriced = Application(NAME, Processor(["words"], price), global_stores={"prices": GlobalStore("prises")})
stalled = Application(NAME, Processor(["words"], stall, {"counts": None}))
skipping = Application(NAME, Processor(["words"], count, {"counts": None}, on_error="skip"))
batched = Application(
    NAME,
    Processor(["words"], process_batch=count_all, stores={"counts": None}),
    topics={"words": PARTITIONS, "counted": PARTITIONS},
)
skipping_batched = Application(
    NAME, Processor(["words"], process_batch=count_all, stores={"counts": None}, on_error="skip")
)
