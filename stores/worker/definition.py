"""The definition of an application: sub-topologies, each with input topics, a function and stores; and its topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, TypeVar, overload

from stores.changelog.interface import Changelog, Record
from stores.declarations import Stores, StoreSetting, declared
from stores.errors import ConfigError
from stores.interface import TopicPartition
from stores.tasks.context import BatchFunction, InitFunction, ProcessFunction, TaskContext
from stores.tasks.global_copy import GlobalStore
from stores.tasks.global_stores import check_apart, check_descriptions
from stores.tasks.identifier import check_application, check_topic
from stores.tasks.on_error import DeadLetterTopic, OnError
from stores.tasks.record_batch import Batch
from stores.tasks.settings import BATCH_MAX_BYTES, BATCH_MAX_RECORDS, check_process
from stores.tasks.topology import Subtopology, Topology
from stores.topic import Topic, TopicHandle, topic_name

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, init=False)
class Processor:
    """A sub-topology: a function over the records of some input topics, with stores. Checked when it is made.

    Each partition of the inputs is a task; all inputs have the same number of partitions. An input is a name, for
    records of bytes, or a ``Topic``, whose serdes read them. ``process``, or ``process_batch`` in its place, and
    ``init`` are those of ``StreamTask``; ``on_error``, ``on_deserialization_error``, ``batch_max_records`` and
    ``batch_max_bytes`` those of ``TaskSettings``. Tasks of several threads call the same function at the same time.
    ``stores`` are declared as those of ``StreamTask``. What a declaration does not say comes from the worker's
    configuration.

    Raises: TypeError, ConfigError.
    """

    inputs: Sequence[str | Topic[Any, Any]]
    process: ProcessFunction | None
    stores: Mapping[str, StoreSetting]
    init: InitFunction | None
    on_error: OnError | DeadLetterTopic | str
    on_deserialization_error: OnError | DeadLetterTopic | str | None
    process_batch: BatchFunction | None
    batch_max_records: int
    batch_max_bytes: int

    @overload
    def __init__(
        self,
        inputs: Sequence[str],
        process: Callable[[Record, TaskContext], None],
        stores: Stores = ...,
        init: InitFunction | None = ...,
        on_error: OnError | DeadLetterTopic | str = ...,
        on_deserialization_error: OnError | DeadLetterTopic | str | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        inputs: Sequence[TopicHandle[K, V]],
        process: Callable[[Record[K, V], TaskContext], None],
        stores: Stores = ...,
        init: InitFunction | None = ...,
        on_error: OnError | DeadLetterTopic | str = ...,
        on_deserialization_error: OnError | DeadLetterTopic | str | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        inputs: Sequence[str],
        process: None = None,
        stores: Stores = ...,
        init: InitFunction | None = ...,
        on_error: OnError | DeadLetterTopic | str = ...,
        on_deserialization_error: OnError | DeadLetterTopic | str | None = ...,
        *,
        process_batch: Callable[[Batch, TaskContext], None],
        batch_max_records: int = ...,
        batch_max_bytes: int = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        inputs: Sequence[TopicHandle[K, V]],
        process: None = None,
        stores: Stores = ...,
        init: InitFunction | None = ...,
        on_error: OnError | DeadLetterTopic | str = ...,
        on_deserialization_error: OnError | DeadLetterTopic | str | None = ...,
        *,
        process_batch: Callable[[Batch[K, V], TaskContext], None],
        batch_max_records: int = ...,
        batch_max_bytes: int = ...,
    ) -> None: ...

    def __init__(
        self,
        inputs: Any,
        process: Any = None,
        stores: Stores = (),
        init: InitFunction | None = None,
        on_error: OnError | DeadLetterTopic | str = OnError.RAISE,
        on_deserialization_error: OnError | DeadLetterTopic | str | None = None,
        *,
        process_batch: Any = None,
        batch_max_records: int = BATCH_MAX_RECORDS,
        batch_max_bytes: int = BATCH_MAX_BYTES,
    ) -> None:
        check_process(process, process_batch)
        of_errors, of_batches = (on_error, on_deserialization_error), (batch_max_records, batch_max_bytes)
        values = (inputs, process, declared(stores), init, *of_errors, process_batch, *of_batches)
        for attribute, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, attribute.name, value)
        if not self.subtopology.inputs:
            raise ConfigError("a Processor has at least one input topic: name it")

    @property
    def subtopology(self) -> Subtopology:
        """The names of its stores and inputs."""
        return Subtopology(tuple(self.stores), self.inputs)  # type: ignore[arg-type]

    def task_arguments(self, partition: int) -> dict[str, Any]:
        """Return the arguments of the task of that partition, as ``TaskConfig.task`` takes them, but its stores."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "stores"}
        inputs = [each if isinstance(each, Topic) else TopicPartition(each, partition) for each in self.inputs]
        return {**own, "inputs": inputs}


class Definition:
    """All of an ``Application`` but its ``run``. Raises: as there."""

    # Two signatures, as checkers of types infer a mapping with topics of several types from one type alone.
    @overload
    def __init__(
        self,
        name: str,
        topology: Processor | Iterable[Processor] | Mapping[int, Processor],
        *,
        topics: Mapping[str, int] | None = ...,
        global_stores: Mapping[str, GlobalStore] | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        topology: Processor | Iterable[Processor] | Mapping[int, Processor],
        *,
        topics: Mapping[str | Topic[Any, Any], int],
        global_stores: Mapping[str, GlobalStore] | None = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        topology: Processor | Iterable[Processor] | Mapping[int, Processor],
        *,
        topics: Mapping[Any, int] | None = None,
        global_stores: Mapping[str, GlobalStore] | None = None,
    ) -> None:
        check_application(name)
        self.name = name
        self.processors = _numbered(topology)
        """The sub-topologies by number, the first number of their tasks' IDs."""
        _check_inputs(self.processors)
        self.topology = Topology({number: each.subtopology for number, each in self.processors.items()})
        check_descriptions({} if global_stores is None else global_stores)
        self.global_stores = dict(global_stores or {})
        for each in self.processors.values():
            check_apart(self.global_stores, each.subtopology.stores)
        self.topics: dict[str, int] = {topic_name(topic): partitions for topic, partitions in (topics or {}).items()}
        for topic, partitions in self.topics.items():
            check_topic(topic)
            if type(partitions) is not int or partitions < 1:
                raise ConfigError(f"topic {topic!r} has 1 partition or more, not {partitions!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.processors)} sub-topologies>"

    @property
    def fingerprint(self) -> str:
        """A hash of all inputs and stores: workers of one group have the same."""
        parts: list[object] = [
            (number, sorted(each.subtopology.inputs), sorted(each.subtopology.stores))
            for number, each in sorted(self.processors.items())
        ]
        parts += [(name, described.topic) for name, described in sorted(self.global_stores.items())]
        return sha256(repr(parts).encode()).hexdigest()[:8]


def _check_inputs(processors: Mapping[int, Processor]) -> None:
    """Check that no two processors read one topic: the group has one offset for each of its partitions.

    Source: Kafka Streams makes one sub-topology of all that read a topic. Raises: ConfigError.
    """
    readers: dict[str, int] = {}
    for number, processor in processors.items():
        for topic in processor.subtopology.inputs:
            other = readers.setdefault(topic, number)
            if other != number:
                raise ConfigError(
                    f"sub-topologies {other} and {number} both read the topic {topic!r}, and their group keeps one "
                    "offset for both: give one Processor a function that does the work of both"
                )


def _numbered(topology: object) -> dict[int, Processor]:
    if isinstance(topology, Processor):
        topology = [topology]
    if isinstance(topology, Iterable) and not isinstance(topology, Mapping | str | bytes):
        topology = dict(enumerate(topology))
    if not isinstance(topology, Mapping):
        raise TypeError(f"a topology is a Processor, or several, not {type(topology).__name__}")
    if not topology:
        raise ConfigError("an application has at least one Processor")
    for processor in topology.values():
        if not isinstance(processor, Processor):
            raise TypeError(f"a sub-topology is a Processor, not {type(processor).__name__}")
    return dict(topology)


def prepared_topics(application: Definition, changelog: Changelog, *, fencing: bool) -> dict[str, int]:
    """Check topics and group, then create missing topics; return the sub-topology of each leading topic.

    ``fencing`` says whether the group fences transactions. Raises: ConfigError for a topic that is missing, or has
    another number of partitions than needed; ChangelogError if another application uses the group.
    """
    existing = changelog.topics()
    topics = {**application.topics, **existing}
    leading: dict[str, int] = {}
    for number, processor in application.processors.items():
        inputs = processor.subtopology.inputs
        for topic in inputs:
            _check_topic(topic, topics, inputs)
        leading[inputs[0]] = number
    for name, described in application.global_stores.items():
        if described.topic not in topics:
            raise ConfigError(
                f"the topic {described.topic!r} of global store {name!r} does not exist: create it, or name it in "
                "Application(topics=...)"
            )
    for topic, partitions in application.topics.items():
        if topics[topic] < partitions:
            raise ConfigError(
                f"topic {topic!r} has {topics[topic]} partitions, and the application needs {partitions}: add "
                "partitions, or change the application"
            )
    missing = application.topics.keys() - existing.keys()
    if missing:
        changelog.check_group(application.name, fingerprint=application.fingerprint, fencing=fencing)
    for topic in sorted(missing):
        changelog.create_topic(topic, application.topics[topic])
    return leading


def _check_topic(topic: str, topics: Mapping[str, int], inputs: Collection[str]) -> None:
    if topic not in topics:
        raise ConfigError(f"the input topic {topic!r} does not exist: create it, or name it in Application(topics=...)")
    most = max(inputs, key=lambda each: topics.get(each, 0))
    if topics[topic] < topics[most]:
        raise ConfigError(
            f"topic {topic!r} has {topics[topic]} partitions, and {most!r} of the same sub-topology has {topics[most]}"
            ": they need the same number"
        )
