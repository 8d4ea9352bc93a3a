"""A driver for tests of an application: records in, outputs and stores out; no broker, no thread, no file is left.

    with AppDriver(app) as driver:
        driver.pipe("lines", None, b"to be or not to be")
        assert driver.store(COUNTS).get("be") == 2

Source: Kafka Streams, ``TopologyTestDriver``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, TypeVar, overload

from stores.changelog.arguments import check_columns
from stores.changelog.interface import Headers, Record
from stores.changelog.memory import MemoryChangelog
from stores.changelog.partitioners import of_murmur2
from stores.contract.arguments import check_number, check_type
from stores.declarations import configured
from stores.errors import ConfigError, StoreClosedError
from stores.interface import Closeable, TopicPartition
from stores.records.handles import ViewHandle
from stores.records.record_kind import RecordKind
from stores.settings import Properties
from stores.tasks.config import TaskConfig
from stores.tasks.global_stores import GlobalStores
from stores.tasks.identifier import TaskId
from stores.tasks.on_error import DeadLetterTopic
from stores.tasks.settings import SharedResources
from stores.tasks.task import StreamTask
from stores.tasks.timing import NO_INTERVAL
from stores.topic import Topic, topic_name
from stores.worker.definition import Definition, Processor

__all__ = ["AppDriver"]

K = TypeVar("K")
V = TypeVar("V")
View = TypeVar("View")
_DEFAULTS: Properties = {"store.backend": "memory"}


class AppDriver(Closeable):
    """The tasks of an application, run by the caller: ``pipe`` and ``advance`` return when all tasks are at the end.

    ``application`` is an ``Application``, a ``Processor``, or several of them. ``topics`` are further outputs, besides
    those that the application names. Each topic has ``partitions``, one by default. ``properties`` are those of a task
    or a store in docs/properties.md, such as ``store.backend``; by default stores are in memory. Other stores, and
    locks, are in a temporary folder until ``close``.

    The tasks are those of a worker (``StreamTask``). They commit before ``pipe`` returns, so that outputs and stores
    are those that readers of committed data see. An exception of the application rolls its task back, and is raised to
    the caller. Unless ``on_error`` says otherwise the next call begins with the same record, as a worker does.

    For one thread. Use it in a ``with`` block, or close it.

    Raises: TypeError, ConfigError; as ``StreamTask.open``.
    """

    def __init__(
        self,
        application: Definition | Processor | Iterable[Processor] | Mapping[int, Processor],
        properties: Properties = MappingProxyType({}),
        *,
        topics: Iterable[str | Topic[Any, Any]] = (),
        partitions: int = 1,
        now_ms: int = 0,
    ) -> None:
        check_number("partitions", partitions, "1 or more", 1)
        check_number("now_ms", now_ms, "0 or more milliseconds since the Unix epoch", 0)
        if isinstance(topics, str | bytes | Topic) or not isinstance(topics, Iterable):
            raise TypeError(f"topics is a list of names or Topics, not {topics!r}: write topics=['output']")
        self._application = application if isinstance(application, Definition) else Definition("driven", application)
        self._partitions = partitions
        self._clock = _Clock(now_ms)
        self._properties = {**_DEFAULTS, **properties}
        self._log = MemoryChangelog()
        self._inputs = _inputs(self._application)
        for topic in {*self._inputs, *_outputs(self._application), *map(topic_name, topics)}:
            self._log.create_topic(topic, partitions)
        self._next: dict[TopicPartition, int] = {}
        """The offset at which the next ``read`` of a partition begins."""
        self.tasks: dict[TaskId, StreamTask] = {}
        """The open tasks by their IDs, such as for their ``metrics``."""
        self._global: GlobalStores | None = None
        self._opened = ExitStack()
        self._open()

    @property
    def now_ms(self) -> int:
        """The wall clock of the tasks, in milliseconds since the Unix epoch. It stands still except for ``advance``."""
        return self._clock.now_ms

    @overload
    def pipe(
        self,
        topic: Topic[K, V],
        key: K | None,
        value: V | None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None: ...

    @overload
    def pipe(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None: ...

    def pipe(
        self,
        topic: Any,
        key: Any,
        value: Any,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Write a record to an input, or to the topic of a global store, and run all tasks to the end.

        ``topic`` is a name, for a key and a value of bytes, or a ``Topic``, whose serdes write them. The default
        timestamp is ``now_ms``. The default partition is that of the key, as Kafka's producers choose it, and 0
        without a key.

        Raises: ConfigError for another topic; as ``Producer.send``; the exceptions of the application.
        """
        times_ms = None if timestamp_ms is None else [timestamp_ms]
        self.pipe_many(topic, [key], [value], times_ms, [headers], partition)

    @overload
    def pipe_many(
        self,
        topic: Topic[K, V],
        keys: Sequence[K | None],
        values: Sequence[V | None],
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None: ...

    @overload
    def pipe_many(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None: ...

    def pipe_many(
        self,
        topic: Any,
        keys: Any,
        values: Any,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None:
        """Write records as ``pipe`` does, by their columns, all of one length; run all tasks to the end after the last.

        In a partition they keep their order. ``partition`` is that of all of them. So a ``process_batch`` gets many at
        a time, as from a worker: the first batch is one record, and none has more than eight times as many as the
        largest before it.

        Raises: as ``pipe``; ValueError for columns of different lengths. Nothing is written if a record is refused.
        """
        self._check_open()
        keys, values = list(keys), list(values)
        if isinstance(topic, Topic):
            keys, values = topic.encoded_columns(keys, values)
            topic = topic.name
        if topic not in self._inputs:
            raise ConfigError(f"topic {topic!r} is no input; these are: {', '.join(sorted(self._inputs))}")
        times_ms = [self.now_ms] * len(keys) if timestamps_ms is None else list(timestamps_ms)
        checked_headers = check_columns(keys, values, times_ms, headers) or [()] * len(keys)
        with self._log.producer() as producer:
            for key, *record in zip(keys, values, times_ms, checked_headers, strict=True):
                producer.send(TopicPartition(topic, self._partition(key, partition)), key, *record)
            producer.flush()
        self._run()

    def _partition(self, key: bytes | None, chosen: int | None) -> int:
        if chosen is not None:
            return chosen
        return 0 if key is None else of_murmur2(key, self._partitions)

    @overload
    def read(self, topic: Topic[K, V]) -> list[Record[K, V]]: ...

    @overload
    def read(self, topic: str) -> list[Record]: ...

    def read(self, topic: Any) -> Any:
        """Return the committed records of a topic since the last ``read`` of it, by partition and offset.

        They are those of bytes for the name of a topic, and as its serdes read them for a ``Topic``.

        Raises: ConfigError for an unknown topic; DeserializationError, after which the records are still to be read.
        """
        self._check_open()
        described, topic = topic, topic_name(topic)
        known = self._log.topics()
        if topic not in known:
            raise ConfigError(f"there is no topic {topic!r}; these are: {', '.join(sorted(known))}")
        records: list[Record] = []
        ends = {}
        for number in range(known[topic]):
            partition = TopicPartition(topic, number)
            records += self._log.read(partition, self._next.get(partition, 0))
            ends[partition] = self._log.end_offset(partition)
        shown = [described.decoded(record) for record in records] if isinstance(described, Topic) else records
        self._next.update(ends)
        return shown

    @overload
    def store(self, store: ViewHandle[View], partition: int | None = None) -> View: ...

    @overload
    def store(self, store: str, partition: int | None = None) -> Any: ...

    def store(self, store: Any, partition: int | None = None) -> Any:
        """Return a view of a store by its description or its name: see ``StreamTask.store``.

        ``partition`` is that of the task, which may be left out if there is only one. A global store has none.

        Raises: ConfigError if there is no such store or partition; TypeError.
        """
        self._check_open()
        name = store.name if isinstance(store, RecordKind) else store
        check_type(name, str | None, "a store is asked for by its description or its name")
        if self._global is not None and name in self._global.names:
            return self._global.view(store)
        owner = None if name is None else self._application.topology.subtopology_of(name)
        if owner is None:
            names = ", ".join(sorted(self._application.topology.stores)) or "none"
            raise ConfigError(f"the application has no store {name!r}; it has: {names}")
        if partition is None and self._partitions > 1:
            raise ConfigError(f"store {name!r} is in {self._partitions} partitions: give the number of one")
        if partition is not None and partition not in range(self._partitions):
            raise ConfigError(f"store {name!r} has no partition {partition!r}: give one below {self._partitions}")
        return self.tasks[TaskId(owner, partition or 0)].store(store)

    def advance(self, milliseconds: int) -> None:
        """Move the wall clock on, call each punctuator that is due by it once, and run all tasks to the end.

        Punctuators by stream time are called by ``pipe``, as soon as a record's timestamp reaches them.

        Raises: the exceptions of the application. Source: ``TopologyTestDriver#advanceWallClockTime``.
        """
        self._check_open()
        check_number("a time to advance", milliseconds, "0 or more milliseconds", 0)
        self._clock.now_ms += milliseconds
        # A punctuator's outputs may be the input of a task that has had its turn, and do not count as input done.
        self._round()
        self._run()

    def restart(self) -> None:
        """Close all tasks without a commit, delete all their files, and open them again from their changelogs.

        As after the loss of a machine: what the application keeps elsewhere than in stores is not restored.

        Raises: as ``StreamTask.open``.
        """
        self._check_open()
        self._opened.close()
        self._open()

    def close(self) -> None:
        """Close the tasks, and delete everything. May be called more than once."""
        self._opened.close()
        self._log.close()
        self.tasks = {}

    def _check_open(self) -> None:
        if not self.tasks:
            raise StoreClosedError("the driver is closed: make another one")

    def _open(self) -> None:
        """Open all tasks in an empty folder."""
        application = self._application
        with ExitStack() as opened:
            folder = opened.enter_context(TemporaryDirectory(prefix="txstores-driver-"))
            own = {"application.id": application.name, "state.dir": folder}
            config = TaskConfig.from_properties({**self._properties, **own}, application.topology)
            if application.global_stores:
                described = {
                    name: replace(each, store=configured(each.store, config.store))
                    for name, each in application.global_stores.items()
                }
                self._global = opened.enter_context(
                    GlobalStores(config.state_dir, self._log, described, application_id=application.name)
                )
            shared = SharedResources(global_stores=self._global, clock=self._clock)
            tasks = {}
            for number, processor in application.processors.items():
                for partition in range(self._partitions):
                    task = tasks[TaskId(number, partition)] = config.task(
                        TaskId(number, partition),
                        changelog=self._log,
                        stores=processor.stores,
                        shared=shared,
                        commit_interval_ms=NO_INTERVAL,
                        **processor.task_arguments(partition),
                    )
                    opened.callback(task.close, clean=False)
                    task.open()
            self.tasks, self._opened = tasks, opened.pop_all()

    def _run(self) -> None:
        while self._round():
            pass

    def _round(self) -> int:
        """Let each task process its input and commit; return the number of records processed."""
        if self._global is not None:
            while self._global.follow():
                pass
        return sum(task.run(commit=True) for task in self.tasks.values())


class _Clock:
    """The clock of a driver's tasks."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def epoch_ms(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        """Return at once: no task waits for input."""


def _inputs(application: Definition) -> set[str]:
    inputs = {topic for each in application.processors.values() for topic in each.subtopology.inputs}
    return inputs | {each.topic for each in application.global_stores.values()}


def _outputs(application: Definition) -> set[str]:
    rules: list[object] = [
        rule for each in application.processors.values() for rule in (each.on_error, each.on_deserialization_error)
    ]
    rules += [each.on_deserialization_error for each in application.global_stores.values()]
    return {*application.topics, *(rule.topic for rule in rules if isinstance(rule, DeadLetterTopic))}
