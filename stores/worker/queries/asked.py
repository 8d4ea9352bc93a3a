"""A store of the application, and a query of it: the partition, the isolation level and the bound on the position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stores.changelog.partitioners import Partitioner
from stores.config import StoreConfig
from stores.interface import IsolationLevel, Position, PositionBound, TopicPartition
from stores.tasks.identifier import TaskId
from stores.worker.queries.json_forms import KEY_ENCODING, VALUE_ENCODING
from stores.worker.queries.parameters import Parameters, number, shortened
from stores.worker.queries.reads import Reads, reads_of
from stores.worker.queries.refusals import Refused, bad_request

PARTITIONER = "query.partitioner"
"""The property with the partitioner of the producers that write the inputs."""
WAIT_MAX_MS = 30_000
_COMMON = ("partition", "isolation_level", "bound", "wait_ms", KEY_ENCODING, VALUE_ENCODING)


@dataclass(frozen=True)
class QueriedStore:
    """A store of the application: its sub-topology, and the inputs of that.

    A global store is whole in each worker. It counts as one partition, and its input is its topic.
    """

    name: str
    subtopology: int
    inputs: Sequence[str]
    partitions: int
    config: StoreConfig
    is_global: bool = False

    @property
    def reads(self) -> Reads:
        """The reads of its kind. Raises: Refused."""
        return reads_of(self.config.records)

    def leading(self, partition: int) -> TopicPartition:
        """Return the input partition whose owner in the group has this partition of the store."""
        return TopicPartition(self.inputs[0], partition)

    def task_id(self, partition: int) -> TaskId:
        """Return the task that has this partition of the store."""
        return TaskId(self.subtopology, partition)


@dataclass(frozen=True)
class Asked:
    """The common part of all queries of data. ``wait_s`` is the time in which the bound may still be reached."""

    store: QueriedStore
    partition: int
    level: IsolationLevel
    bound: PositionBound
    wait_s: float

    def answer(self, position: Position, **fields: Any) -> dict[str, Any]:
        """Return an answer from the state at that position."""
        place = {} if self.store.is_global else {"partition": self.partition}
        head = {"store": self.store.name, **place, "isolation_level": str(self.level)}
        return {**head, "position": shown_position(position), **fields}


def parameters_of(query: str, *own: str) -> Parameters:
    """Return the parameters of a query that takes its ``own`` and those of all. Raises: Refused."""
    return Parameters(query, {*own, *_COMMON}, repeated=("bound",))


def asked_of(store: QueriedStore, parameters: Parameters, key: bytes | None, partitioner: Partitioner | None) -> Asked:
    """Return the query that the parameters describe; ``key`` is the bytes of its key. Raises: Refused."""
    text = parameters.text("isolation_level")
    try:
        level = IsolationLevel.READ_COMMITTED if text is None else IsolationLevel(text)
    except ValueError:
        known = ", ".join(IsolationLevel)
        raise bad_request(f"no isolation level {shortened(str(text))}; there are: {known}") from None
    bounds = [_bound(each, store) for each in parameters.texts("bound")]
    wait_s = parameters.number("wait_ms", 0, most=WAIT_MAX_MS) / 1000
    partition = _partition(store, parameters, key, partitioner)
    # The position of a store is that of its own partition of the inputs. Source: KIP-796, ``PositionBound``.
    # Sorted, so that of several bounds on one input the highest counts.
    own = {each: offset for each, offset in sorted(bounds) if store.is_global or each.partition == partition}
    bound = PositionBound(own)
    return Asked(store, partition, level, bound, wait_s)


def shown_position(position: Position) -> Mapping[str, int]:
    """Return a position for JSON. Each entry, as ``NAME:OFFSET``, may be given as a bound."""
    return {f"{topic}-{number}": offset for (topic, number), offset in sorted(position.items())}


def _bound(text: str, store: QueriedStore) -> tuple[TopicPartition, int]:
    place, _, offset = text.rpartition(":")
    topic, _, partition = place.rpartition("-")
    if not topic:
        raise bad_request(f"the parameter 'bound' is TOPIC-PARTITION:OFFSET, not {shortened(text)}")
    if topic not in store.inputs:
        inputs = ", ".join(store.inputs)
        raise bad_request(f"store {store.name!r} has no input {shortened(topic)} to name in 'bound'; inputs: {inputs}")
    return TopicPartition(topic, number("bound", partition)), number("bound", offset)


def _partition(store: QueriedStore, parameters: Parameters, key: bytes | None, partitioner: Partitioner | None) -> int:
    last = store.partitions - 1
    text = parameters.text("partition")
    if text is not None:
        partition = number("partition", text)
        if partition > last:
            raise Refused(404, f"store {store.name!r} has the partitions 0 to {last}, not {partition}")
        return partition
    if not last:
        return 0
    if key is not None and partitioner is not None:
        return partitioner(key, store.partitions)
    otherwise = f", or give the workers the property {PARTITIONER}" if key is not None else ""
    raise bad_request(
        f"store {store.name!r} has {store.partitions} partitions: name one, 0 to {last}, by the parameter "
        f"'partition'{otherwise}"
    )
