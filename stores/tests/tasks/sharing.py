"""Two counting tasks of one thread in one transaction, over two partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stores.changelog import Changelog, Record, SqliteChangelog
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.tasks import NO_INTERVAL, Batch, StreamTask, TaskContext, TaskId, ThreadTransaction
from stores.tests.tasks.setup import EXACTLY_ONCE, INDEXED, logging_all, stream_task

KEYS: Sequence[Sequence[int]] = ([1, 2, 1, 1, 3, 2], [5, 5, 6, 5, 7, 7])
"""The keys of the input records of each partition."""
INPUTS = [TopicPartition("input", number) for number in range(len(KEYS))]
OUTPUTS = [TopicPartition("output", number) for number in range(len(KEYS))]
ROUND = 2
"""The records of each task in one commit of ``work``."""

Pairs = list[tuple[bytes | None, bytes | None]]


def count(record: Record, context: TaskContext) -> None:
    """Count the record's key, and forward the count."""
    assert record.key is not None
    counts = context.store("counts")
    new = b"%d" % (int(counts.get(record.key) or b"0") + 1)
    counts.put(record.key, new)
    context.forward("output", record.key, new)


def count_all(batch: Batch[Any, Any], context: TaskContext) -> None:
    """Count as ``count`` does, with one lookup and one write for the whole batch."""
    store, keys, forwarded = context.store("counts"), list(dict.fromkeys(batch.keys)), []
    counts = {key: int(old or b"0") for key, old in zip(keys, store.get_many(keys), strict=True)}
    for key in batch.keys:
        counts[key] += 1
        forwarded.append(b"%d" % counts[key])
    store.put_many({key: b"%d" % number for key, number in counts.items()})
    context.forward_many("output", batch.keys, forwarded)


def partition_of_input(key: bytes, count: int) -> int:
    """Return the input partition of a key, so that the outputs of each task are in a partition of their own."""
    return next(number for number, keys in enumerate(KEYS) if int(key) in keys)


def feed_both(log: Changelog) -> None:
    """Make the topics, and put the keys into the input."""
    for topic in ("input", "output"):
        log.create_topic(topic, len(KEYS))
    with log.producer() as producer:
        for partition, keys in zip(INPUTS, KEYS, strict=True):
            for key in keys:
                producer.send(partition, b"%d" % key, b"x")
        producer.flush()


def sharing_task(
    folder: Path, log: Changelog, number: int, transaction: ThreadTransaction | None, **settings: Any
) -> StreamTask:
    """Return the task of a partition, not opened. It commits only when it is asked to."""
    folder.mkdir(exist_ok=True)
    function = {"process_batch": count_all} if settings.pop("batches", False) else {"process": count}
    return stream_task(
        TaskId(0, number),
        **{
            "state_dir": folder / "state",
            "changelog": log,
            # What a store commits survives a kill, so that a commit in the wrong order is seen.
            "stores": {"counts": logging_all(INDEXED, Durability.PROCESS)},
            **({} if "process" in settings else function),
            "inputs": [INPUTS[number]],
            "guarantee": EXACTLY_ONCE,
            "commit_interval_ms": NO_INTERVAL,
            "transaction": transaction,
            "partitioner": partition_of_input,
            **settings,
        },
    )


def sharing_tasks(folder: Path, log: Changelog, instance: str = "one", **settings: Any) -> list[StreamTask]:
    """Return both tasks, opened, in one transaction."""
    transaction = ThreadTransaction(log, f"app/{instance}/1")
    tasks = [sharing_task(folder, log, number, transaction, **settings) for number in range(len(KEYS))]
    for task in tasks:
        task.open()
    return tasks


def work_on(tasks: Sequence[StreamTask]) -> None:
    """Process the whole input, some records of each task in a commit, and close the tasks."""
    while sum(task.run(ROUND) for task in tasks):
        tasks[0].commit()
    for task in tasks:
        task.close()


def work(folder: Path, batches: bool = False) -> None:
    """Process the whole input over the embedded changelog in ``folder``."""
    with SqliteChangelog(folder / "log.sqlite") as log:
        work_on(sharing_tasks(folder, log, batches=batches))


def offsets(tasks: Sequence[StreamTask]) -> list[int]:
    """Return the next input offset of each task."""
    return [task.input_offsets()[partition] for task, partition in zip(tasks, INPUTS, strict=True)]


def state(task: StreamTask) -> Mapping[bytes, bytes]:
    """Return the committed pairs of the task's store."""
    with task.store("counts", IsolationLevel.READ_COMMITTED).all() as pairs:
        return dict(pairs)


def read_outputs(log: Changelog) -> list[Pairs]:
    """Return the committed outputs of each partition."""
    return [[(record.key, record.value) for record in log.read(partition)] for partition in OUTPUTS]


def expected(keys: Sequence[int]) -> tuple[Pairs, Mapping[bytes, bytes]]:
    """Return the outputs and the state of the model for the keys of one partition."""
    counts: Counter[int] = Counter()
    outputs: Pairs = []
    for key in keys:
        counts[key] += 1
        outputs.append((b"%d" % key, b"%d" % counts[key]))
    return outputs, {b"%d" % key: b"%d" % number for key, number in counts.items()}


def check_exactly_once(folder: Path, log: Changelog, instance: str = "one") -> None:
    """Finish the work in new tasks, and compare their stores and the outputs with the model."""
    tasks = sharing_tasks(folder, log, instance)
    for task in tasks:
        task.run()
    tasks[0].commit()
    models = [expected(keys) for keys in KEYS]
    assert [state(task) for task in tasks] == [state for _, state in models]
    assert read_outputs(log) == [outputs for outputs, _ in models]
    for task in tasks:
        task.close()
