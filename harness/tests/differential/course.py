"""The course of a trial: input arrives while both sides are killed and started again; then both come to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as TheirPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.tests.differential.comparer import LETTERS_TOPIC, OUTPUT_TOPIC, Output, Partition, Seen, compare
from harness.tests.differential.sides import EndedError, Ours, Side, Theirs, compiled
from harness.tests.differential.trial import PARTITIONS, Step, Trial, committed_inputs
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.shared_broker import FOLDER

_TICK_S, _ASK_S, _CHUNK_S = 0.02, 0.1, 0.05
_STALLED_S = 60.0
_ANSWER_S = 60.0
_EARLY = 0.25
"""One kill in four does not wait for progress, and may come while the process restores or joins."""
_EARLY_S, _LATER_S = 3.0, 1.0
_STARTING = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)
Acts = Generator[None, None, None]


class Site(NamedTuple):
    """The address of a broker, and the class path of the program for Kafka Streams."""

    address: str
    class_path: str


@contextmanager
def site() -> Iterator[Site]:
    """Start a broker, and compile the program."""
    with ExitStack() as stack:
        data = stack.enter_context(TemporaryDirectory(prefix="kafka-"))
        class_path = stack.enter_context(compiled())
        broker = Broker(Path(data), FOLDER)
        stack.callback(broker.kill)
        broker.start()
        yield Site(broker.address, class_path)


class Course:
    """One trial. ``row`` runs it. With a ``mutant``, ours has that defect."""

    def __init__(self, trial: Trial, site: Site, folder: Path, mutant: str = "") -> None:
        self._trial, self._site = trial, site
        self._admin = AdminClient({"bootstrap.servers": site.address})
        self._settings = trial.settings()
        given = {**self._settings, "address": site.address}
        ours = Ours(trial, given, folder / "ours", mutant)
        self._sides: tuple[Side, Side] = ours, Theirs(trial, given, folder / "theirs", site.class_path)
        self._steps = trial.steps()
        self._closing = ExitStack()
        self._groups: dict[str, Any] = {}
        """Consumers that ask for the offsets of the groups."""
        self._last: dict[Partition, int] = {}
        """The offset after the last committed record of each input partition."""

    def row(self) -> dict[str, Any]:
        """Run the trial; return its figures and what the comparer says. Raises: EndedError."""
        with self._closing:
            for side in self._sides:
                self._closing.callback(side.close)
            return self._row()

    def _row(self) -> dict[str, Any]:
        began = time.monotonic()
        self._create_topics()
        stalled = self._run()
        entries = [side.finished() for side in self._sides]
        outputs = [self._outputs(side, "read_committed") for side in self._sides]
        tried = [len(self._outputs(side, "read_uncommitted")) for side in self._sides]
        seen = [Seen(*each) for each in zip(outputs, entries, map(self._offsets, self._sides), strict=True)]
        inputs = committed_inputs(self._steps)
        differences, by_design = compare(self._trial.topology, inputs, self._ends(), seen[0], seen[1])
        return {
            "topology": self._trial.topology,
            "seed": self._trial.seed,
            **self._settings,
            "kills": [side.kills for side in self._sides],
            "inputs": len(inputs),
            "outputs": [len(each) for each in outputs],
            "aborted": [number - len(each) for number, each in zip(tried, outputs, strict=True)],
            "entries": [len(each) for each in entries],
            "by_design": dict(by_design),
            "differences": [*stalled, *differences],
            "seconds": round(time.monotonic() - began, 1),
        }

    def _create_topics(self) -> None:
        name, outputs = self._trial.name, (OUTPUT_TOPIC, LETTERS_TOPIC)
        names = [f"{name}-input", f"{name}-table"]
        names += [f"{side.application}-{output}" for side in self._sides for output in outputs]
        for created in self._admin.create_topics([NewTopic(each, PARTITIONS) for each in names]).values():
            created.result(_ANSWER_S)

    def _run(self) -> list[str]:
        """Let the input arrive, and kill both sides meanwhile; return which side does not come to the end."""
        acts: list[Acts] = [self._feed(), *map(self._torment, self._sides)]
        while acts:
            acts = [act for act in acts if next(act, acts) is not acts]
            time.sleep(_TICK_S)
        deadline = time.monotonic() + _STALLED_S
        while behind := [side for side in self._sides if not self._is_at_end(side)]:
            for side in behind:
                side.check()
            if time.monotonic() > deadline:
                return [f"{side.name} is stuck at {self._offsets(side)}, before {self._last}" for side in behind]
            time.sleep(_ASK_S)
        return []

    def _feed(self) -> Acts:
        """Produce the input, a share of it after each kill, so that some is left for the next one."""
        producer = Producer(
            {"log_level": 0, "bootstrap.servers": self._site.address, "transactional.id": self._trial.name}
        )
        producer.init_transactions(_ANSWER_S)
        for number, step in enumerate(self._steps):
            while number * (self._trial.kills + 1) >= len(self._steps) * (self._kills() + 1):
                yield
            if step.waits:
                yield from self._until(lambda: all(map(self._is_at_end, self._sides)))
            self._produce(producer, step)
            yield from _pause(_CHUNK_S)

    def _kills(self) -> int:
        return min(side.kills for side in self._sides)

    def _produce(self, producer: Producer, step: Step) -> None:
        producer.begin_transaction()
        for topic, partition, key, value, time_ms, headers in step.records:
            name = f"{self._trial.name}-{topic}"
            noted = None if step.aborted else partial(self._note, topic)
            producer.produce(
                name,
                value,
                key,
                partition=partition,
                timestamp=time_ms,
                headers=list(headers),
                on_delivery=noted,
            )
        producer.flush(_ANSWER_S)
        if step.aborted:
            producer.abort_transaction(_ANSWER_S)
        else:
            producer.commit_transaction(_ANSWER_S)

    def _note(self, topic: str, error: object, message: Any) -> None:
        assert error is None, error
        self._last[topic, message.partition()] = message.offset() + 1

    def _torment(self, side: Side) -> Acts:
        """Kill a process at random moments, most of them after it has committed something; start it a last time."""
        random = self._trial.random(side.name)
        for _ in range(self._trial.kills):
            before = self._progress(side)
            side.start()
            if random.random() < _EARLY:
                yield from _pause(random.uniform(0, _EARLY_S))
            else:
                yield from self._until(partial(self._is_past, side, before))
                yield from _pause(random.uniform(0, _LATER_S))
            side.kill()
        side.start()

    def _progress(self, side: Side) -> int:
        return sum(self._offsets(side).values())

    def _is_past(self, side: Side, before: int) -> bool:
        return self._progress(side) > before

    def _until(self, holds: Callable[[], bool]) -> Acts:
        """Wait for that; raises EndedError after a time without it."""
        deadline = time.monotonic() + _STALLED_S
        while not holds():
            if time.monotonic() > deadline:
                raise EndedError(f"no progress for {_STALLED_S:.0f} s: {[self._offsets(side) for side in self._sides]}")
            yield from _pause(_ASK_S)

    def _is_at_end(self, side: Side) -> bool:
        offsets = self._offsets(side)
        return all(offsets.get(partition, 0) >= last for partition, last in self._last.items())

    def _offsets(self, side: Side) -> dict[Partition, int]:
        """Return the committed input offsets of a side's group."""
        if side.name not in self._groups:
            group = _consumer(self._site.address, "read_uncommitted", side.application)
            self._groups[side.name] = self._closing.enter_context(group)
        names = {f"{self._trial.name}-{topic}": topic for topic in self._trial.topics}
        asked = [TheirPartition(name, number) for name in names for number in range(PARTITIONS)]
        committed = _committed(self._groups[side.name], asked)
        return {(names[each.topic], each.partition): each.offset for each in committed if each.offset >= 0}

    def _ends(self) -> dict[Partition, tuple[int, int]]:
        """Return the offset after the last committed record of each input partition, and that after all markers."""
        with _consumer(self._site.address, "read_committed") as reader:
            return {
                (topic, number): (self._last.get((topic, number), 0), end)
                for topic in self._trial.topics
                for number, end in enumerate(_end_offsets(reader, f"{self._trial.name}-{topic}"))
            }

    def _outputs(self, side: Side, level: str) -> list[Output]:
        """Return the records of a side's topics, as a consumer of the client alone reads them."""
        names = {topic: f"{side.application}-{topic}" for topic in (OUTPUT_TOPIC, LETTERS_TOPIC)}
        for name in names.values():
            self._await_decided(name)
        with _consumer(self._site.address, level) as reader:
            return [
                Output(topic, message.partition(), message.key(), message.value(), message.timestamp()[1], headers)
                for topic, name in names.items()
                for message in _messages(reader, name)
                for headers in [tuple(message.headers() or ())]
            ]

    def _await_decided(self, topic: str) -> None:
        """Wait until no transaction is open: brokers show the records of a commit a moment after it."""
        deadline = time.monotonic() + _STALLED_S
        with ExitStack() as stack:
            levels = ("read_committed", "read_uncommitted")
            readers = [stack.enter_context(_consumer(self._site.address, level)) for level in levels]
            while len({tuple(_end_offsets(reader, topic)) for reader in readers}) > 1:
                if time.monotonic() > deadline:
                    raise EndedError(f"a transaction of {topic} is still open")
                time.sleep(_TICK_S)


def _committed(group: Any, asked: list[TheirPartition]) -> list[TheirPartition]:
    """Return the committed offsets of a consumer's group. A coordinator that is just starting is asked again."""
    deadline = time.monotonic() + _STALLED_S
    while True:
        try:
            return list(group.committed(asked, timeout=_ANSWER_S))
        except KafkaException as error:
            if error.args[0].code() not in _STARTING or time.monotonic() > deadline:
                raise
        time.sleep(_ASK_S)


def _end_offsets(reader: Any, topic: str) -> list[int]:
    """Return the offset after the last record of each partition that the level of the reader shows."""
    partitions = [TheirPartition(topic, number) for number in range(PARTITIONS)]
    return [reader.get_watermark_offsets(each, timeout=_ANSWER_S)[1] for each in partitions]


def _pause(seconds: float) -> Acts:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        yield


@contextmanager
def _consumer(address: str, level: str, group: str = "independent") -> Iterator[Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "isolation.level": level,
        "log_level": 0,
    }
    reader = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10})
    try:
        yield reader
    finally:
        reader.close()


def _messages(reader: Any, topic: str) -> Iterator[Any]:
    """Yield the messages of a topic up to its end."""
    reader.assign([TheirPartition(topic, number, 0) for number in range(PARTITIONS)])
    left = set(range(PARTITIONS))
    while left:
        message = reader.poll(_ANSWER_S)
        assert message is not None, "no answer"
        if message.error() is None:
            yield message
        elif message.error().code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        else:
            raise AssertionError(str(message.error()))
