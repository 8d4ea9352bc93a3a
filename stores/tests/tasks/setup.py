"""A counting task over real stores, and a process that runs one until it dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.changelog import Changelog, Record, SqliteChangelog
from stores.config import StoreConfig
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.records import INT64, STR
from stores.registry import backend_named
from stores.tasks import (
    NO_INTERVAL,
    Batch,
    DeadLetterTopic,
    ProcessingGuarantee,
    SharedResources,
    StreamTask,
    TaskContext,
    TaskId,
    TaskSettings,
    Topic,
)
from stores.tasks.context import BatchFunction, ProcessFunction
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tests.forked_call import WITHIN_PUT_MANY, call_until_killed

INPUT = TopicPartition("input", 0)
OUTPUT = TopicPartition("output", 0)
DEAD = TopicPartition("dead", 0)
DEAD_LETTERS = DeadLetterTopic("dead")
DIRECT = "rocksdb-direct"
INDEXED = "rocksdb-indexed-batch"
MEMORY = "memory-indexed-batch"
EXACTLY_ONCE, AT_LEAST_ONCE = ProcessingGuarantee.EXACTLY_ONCE, ProcessingGuarantee.AT_LEAST_ONCE
TASK = TaskId(0, 0)
WORDS = Topic("input", key=STR, value=INT64)
HEADERS = (("own", b"1"),)


def count(record: Record, context: TaskContext) -> None:
    """Count the record's key in every store, and forward the count."""
    assert record.key is not None
    new = b""
    for name in ("left", "right"):
        new = b"%d" % (int(context.store(name).get(record.key) or b"0") + 1)
        context.store(name).put(record.key, new)
    context.forward("output", record.key, new)


def count_all(batch: Batch[Any, Any], context: TaskContext) -> None:
    """Count as ``count`` does, with one lookup and one write in each store for the whole batch."""
    keys = list(dict.fromkeys(batch.keys))
    forwarded: list[bytes] = []
    for name in ("left", "right"):
        store = context.store(name)
        counts = {key: int(old or b"0") for key, old in zip(keys, store.get_many(keys), strict=True)}
        forwarded = []
        for key in batch.keys:
            counts[key] += 1
            forwarded.append(b"%d" % counts[key])
        store.put_many({key: b"%d" % number for key, number in counts.items()})
    context.forward_many("output", batch.keys, forwarded)


def changelog_of(store: str) -> TopicPartition:
    return TopicPartition(f"app-{store}-changelog", 0)


LEFT, RIGHT = changelog_of("left"), changelog_of("right")


class Crash(Exception):
    """Raised at a failpoint, where a process would have died."""


def crash() -> None:
    raise Crash


@contextmanager
def crashing_at(failpoint: str) -> Iterator[None]:
    """Check that the block ends with a Crash at ``failpoint``."""
    failpoints.arm(failpoint, crash)
    try:
        yield
    except Crash:
        return
    finally:
        failpoints.disarm(failpoint)
    raise AssertionError(f"{failpoint} was not reached")


def raising_at(poisoned: Container[int], process: ProcessFunction = count) -> ProcessFunction:
    """``process``, which raises Crash once it has processed a record whose offset is among ``poisoned`` by then."""

    def poisonable(record: Record, context: TaskContext) -> None:
        process(record, context)
        if record.offset in poisoned:
            raise Crash

    return poisonable


def all_raising_at(poisoned: Container[int]) -> BatchFunction:
    """``count_all``, which raises Crash once it has processed a batch with an offset that is among ``poisoned``."""

    def poisonable(batch: Batch[Any, Any], context: TaskContext) -> None:
        count_all(batch, context)
        if any(offset in poisoned for offset in batch.offsets):
            raise Crash

    return poisonable


def in_batches(process: ProcessFunction) -> BatchFunction:
    """``process`` as a function of batches, which calls it for each record as the current one."""

    def process_batch(batch: Batch[Any, Any], context: TaskContext) -> None:
        whole = context.record
        for record, raw in zip(batch, batch._raw, strict=True):
            context.record = raw
            try:
                process(record, context)
            finally:
                if context.record is raw:  # Otherwise the function has closed its task.
                    context.record = whole

    return process_batch


over_both_forms = pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
"""Run a test with a function of records, and with the same one over batches."""


def keeping(contexts: list[TaskContext], process: ProcessFunction = count) -> ProcessFunction:
    """``process``, whose contexts are kept, so that a test gets at the stores behind the task's back."""

    def kept(record: Record, context: TaskContext) -> None:
        contexts.append(context)
        process(record, context)

    return kept


def checkpoint(folder: Path) -> CheckpointFile:
    return CheckpointFile(folder / "state" / str(TASK) / ".checkpoint")


def store_folder(folder: Path, backend: str, store: str = "left", task_id: TaskId = TASK) -> Path:
    """Return the path of the store of a task in ``folder``."""
    return folder / "state" / str(task_id) / backend_named(backend).engine / store


def logging_all(backend: str, durability: Durability = Durability.CHANGELOG) -> StoreConfig:
    """A configuration that does not coalesce, so that each write is a record of the changelog."""
    return StoreConfig(backend, durability, changelog_coalescing=False)


def stream_task(task_id: TaskId = TASK, **arguments: Any) -> StreamTask:
    """A task of ``app``, whose settings and shared resources are given by their names, as its other arguments are."""
    for name, group in (("settings", TaskSettings), ("shared", SharedResources)):
        members = {each.name: arguments.pop(each.name) for each in fields(group) if each.name in arguments}
        arguments[name] = group(**members)
    return StreamTask("app", task_id, **arguments)


def counting_task(
    folder: Path,
    log: Changelog,
    left: str = INDEXED,
    right: str | None = None,
    guarantee: ProcessingGuarantee = EXACTLY_ONCE,
    durability: Durability = Durability.CHANGELOG,
    batches: bool = False,
    **settings: Any,
) -> StreamTask:
    """A task over ``left`` and ``right``, of ``count`` by default: in ``batches`` its function is ``count_all``."""
    stores = {"left": logging_all(left, durability), "right": logging_all(right or left, durability)}
    if "process_batch" not in settings:
        process = settings.pop("process", count)
        function = count_all if process is count else in_batches(process)
        settings |= {"process_batch": function} if batches else {"process": process}
    return stream_task(
        **{
            "state_dir": folder / "state",
            "changelog": log,
            "stores": stores,
            "inputs": [INPUT],
            "guarantee": guarantee,
            # Commits are counted: time must not add any.
            "commit_interval_ms": NO_INTERVAL,
            **settings,
        },
    )


def single(
    folder: Path,
    log: Changelog,
    process: ProcessFunction,
    backend: str = MEMORY,
    **settings: Any,
) -> StreamTask:
    """A task with one store, ``s``, and the given function."""
    return counting_task(folder, log, process=process, **{"stores": {"s": logging_all(backend)}, **settings})


KILLED_AT = [
    # The failpoint, its hit in the third commit of three records, the next input offset, and the records in doubt.
    (WITHIN_PUT_MANY, 5, 6, 0),
    ("task.before_log_commit", 3, 6, 0),
    ("changelog.before_commit", 3, 6, 0),
    ("changelog.after_commit", 3, 9, 3),
    ("task.after_log_commit", 3, 9, 3),
    ("task.between_stores", 3, 9, 3),
    ("task.after_store_commit", 3, 9, 0),
    ("task.after_checkpoint", 3, 9, 0),
]
"""The steps at which a counting task is killed, with what it finds then. Only ``count_all`` puts many pairs at once."""


def killed_at_each_step(subjects: Iterable[tuple[str, bool]]) -> list[tuple[Any, ...]]:
    """Return each step for each backend and form: ``backend, batches, failpoint, hit, next_input, in_doubt``."""
    return [(*each, *step) for each in subjects for step in KILLED_AT if each[1] or step[0] != WITHIN_PUT_MANY]


def begun(task: StreamTask) -> StreamTask:
    """``task``, opened, with its first record committed."""
    task.open()
    task.run(1)
    task.commit()
    return task


def feed(log: Changelog, keys: Iterable[int]) -> None:
    """Put a record per key into the input topic; makes the topics."""
    log.create_topic("input")
    log.create_topic("output")
    with log.producer() as producer:
        for key in keys:
            producer.send(INPUT, b"%d" % key, b"x", key)
        producer.flush()


def state(task: StreamTask, store: str) -> dict[bytes, bytes]:
    """Return the store's pairs, staged ones included."""
    with task.store(store, IsolationLevel.READ_UNCOMMITTED).all() as pairs:
        return dict(pairs)


def outputs(log: Changelog) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in log.read(OUTPUT)]


def expected_outputs(keys: Iterable[int]) -> list[tuple[bytes | None, bytes | None]]:
    counts: Counter[int] = Counter()
    expected: list[tuple[bytes | None, bytes | None]] = []
    for key in keys:
        counts[key] += 1
        expected.append((b"%d" % key, b"%d" % counts[key]))
    return expected


def expected_state(keys: Iterable[int]) -> Mapping[bytes, bytes]:
    return {b"%d" % key: b"%d" % number for key, number in Counter(keys).items()}


def run_until_killed(
    make: Callable[..., StreamTask], folder: Path, failpoint: str, hit: int, *arguments: object, **settings: object
) -> bool:
    """Let the task of ``make(folder, LOG, *arguments, **settings)`` work as in ``call_until_killed``."""
    return call_until_killed(_work, folder, failpoint, hit, make, arguments, settings)


def _work(
    folder: Path, make: Callable[..., StreamTask], arguments: Sequence[object], settings: Mapping[str, object]
) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log, make(folder, log, *arguments, **settings) as task:
        task.run()


over_each_changelog = pytest.mark.parametrize(
    "log", ["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)
"""Run a test over the changelogs in memory and in a file, and over a Kafka broker."""


def header_of(record: Record[Any, Any], name: str) -> bytes:
    """The content of a header that the record has."""
    content = dict(record.headers)[name]
    assert content is not None
    return content


def logged(log: Any, store: str) -> dict[bytes, bytes]:
    """The state that the changelog of ``store`` restores."""
    contents: dict[bytes, bytes] = {}
    for record in log.read(changelog_of(store)):
        contents.pop(record.key, None)
        if record.value is not None:
            contents[record.key] = record.value
    return contents


def batch_task(folder: Path, log: Any, function: BatchFunction, **settings: Any) -> StreamTask:
    return counting_task(folder, log, process_batch=function, **{"stores": {"s": logging_all(MEMORY)}, **settings})


def send(
    log: Any, records: Iterable[tuple[bytes | None, bytes | None, int]], partition: TopicPartition = INPUT
) -> None:
    with log.producer() as producer:
        for key, value, time_ms in records:
            producer.send(partition, key, value, time_ms, HEADERS)
        producer.flush()
