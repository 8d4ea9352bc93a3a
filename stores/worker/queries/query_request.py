"""A store of the application, and a query of it: the partition, the isolation level and the bound on the position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stores.changelog.partitioners import Partitioner
from stores.config import StoreConfig
from stores.contract.arguments import TIME_BOUND_MS
from stores.interface import IsolationLevel, Position, PositionBound, TopicPartition
from stores.records import (
    BYTES,
    KeyValue,
    RecordKind,
    Serde,
    Session,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Window,
)
from stores.records.timestamped import TimestampedKind
from stores.records.versioned import VersionedKind
from stores.tasks.identifier import TaskId
from stores.worker.queries.parameters import (
    KEY_ENCODING,
    NUMBER_MIN,
    VALUE_ENCODING,
    JsonForms,
    Parameters,
    Refused,
    bad_request,
    number,
    shortened,
)

PARTITIONER = "query.partitioner"
"""The property with the partitioner of the producers that write the inputs."""
WAIT_MAX_MS = 30_000
_COMMON = ("partition", "isolation_level", "bound", "wait_ms", "stale", "max_lag", KEY_ENCODING, VALUE_ENCODING)


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
class QueryRequest:
    """The common part of all queries of data. ``wait_s`` is the time in which the bound may still be reached.

    If ``stale``, a standby copy may answer that has reached the bound and lacks ``lag_max`` offsets of its changelogs
    at most, any number if that is None.
    """

    store: QueriedStore
    partition: int
    level: IsolationLevel
    bound: PositionBound
    wait_s: float
    stale: bool = False
    lag_max: int | None = None

    def answer(self, position: Position, **fields: Any) -> dict[str, Any]:
        """Return an answer from the state at that position."""
        place = {} if self.store.is_global else {"partition": self.partition}
        head = {"store": self.store.name, **place, "isolation_level": str(self.level)}
        return {**head, "position": shown_position(position), **fields}


def parameters_of(query: str, *own: str) -> Parameters:
    """Return the parameters of a query that takes its ``own`` and those of all. Raises: Refused."""
    return Parameters(query, {*own, *_COMMON}, repeated=("bound",))


def request_of(
    store: QueriedStore, parameters: Parameters, key: bytes | None, partitioner: Partitioner | None
) -> QueryRequest:
    """Return the query that the parameters describe; ``key`` is the bytes of its key. Raises: Refused."""
    text = parameters.text("isolation_level")
    try:
        level = IsolationLevel.READ_COMMITTED if text is None else IsolationLevel(text)
    except ValueError:
        levels = ", ".join(IsolationLevel)
        raise bad_request(f"no isolation level {shortened(str(text))}; there are: {levels}") from None
    bounds = [_bound(each, store) for each in parameters.texts("bound")]
    wait_s = parameters.number("wait_ms", 0, most=WAIT_MAX_MS) / 1000
    partition = _partition(store, parameters, key, partitioner)
    # The position of a store is that of its own partition of the inputs. Source: KIP-796, ``PositionBound``.
    # Sorted, so that of several bounds on one input the highest counts.
    own = {each: offset for each, offset in sorted(bounds) if store.is_global or each.partition == partition}
    bound = PositionBound(own)
    stale, lag_max = _staleness(parameters, bounded=bool(own))
    return QueryRequest(store, partition, level, bound, wait_s, stale, lag_max)


def _staleness(parameters: Parameters, *, bounded: bool) -> tuple[bool, int | None]:
    """Return whether a standby copy may answer, and the most offsets that it may lack. Raises: Refused."""
    text, lag_max = parameters.text("stale"), parameters.text("max_lag")
    if text not in (None, "true", "false"):
        raise bad_request(f"the parameter 'stale' is true or false, not {shortened(str(text))}")
    stale = text == "true"
    if lag_max is not None and not stale:
        raise bad_request("the parameter 'max_lag' is for standby copies: give stale=true with it")
    if stale and lag_max is None and not bounded:
        raise bad_request(
            "say how stale an answer may be: give max_lag, the offsets of the changelogs that it may lack, or bound, "
            "a position that it must reflect"
        )
    return stale, None if lag_max is None else number("max_lag", lag_max)


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


TIME_MAX_MS = TIME_BOUND_MS - 1
Place = tuple[Any, ...]
Scanned = Generator[tuple[Place, dict[str, Any]], None, None]
"""The records of a scan, each with its place and its fields for JSON.

A place is the position of a record in its scan: the bytes of its key, and for windows and sessions their times.
"""


class Reads(ABC):
    """The reads of one kind of store. A view is typed, of any isolation level. Raises, all methods: Refused."""

    get_parameters: Collection[str] = ()
    """The parameters of ``get`` besides the key."""
    range_parameters: Collection[str] = ()
    """The parameters of ``range`` besides its ends."""
    place_times: ClassVar[int] = 2
    """The number of times in a place of its scans."""

    def __init__(self, name: str, key: Serde[Any], value: Serde[Any]) -> None:
        self.name = name
        """The name of the kind."""
        self.key, self.value = key, value

    @abstractmethod
    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        """Return the value of a key, or None."""

    @abstractmethod
    def range(
        self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms, *, descending: bool
    ) -> Scanned:
        """Scan the keys from ``start`` to ``end``, both included; None leaves an end open.

        ``start`` is the smaller end, also of a scan in ``descending`` order of places.
        """

    def prefix(self, view: Any, prefix: Any, after: Place | None, forms: JsonForms, *, descending: bool) -> Scanned:
        """Scan the keys that begin with ``prefix``, from the key of the place ``after`` on."""
        raise bad_request(f"a {self.name} store has no scan by a prefix of its keys: ask for a range")

    def versions(
        self, view: Any, key: Any, after: Place | None, parameters: Parameters, forms: JsonForms, *, descending: bool
    ) -> Scanned:
        """Scan the versions of a key, from the one of the place ``after`` on."""
        raise bad_request(f"a {self.name} store has no versions of its keys: ask for get")

    def is_place(self, place: Place) -> bool:
        """Return whether ``place`` may be one of this kind's scans."""
        return len(place) == 1 + self.place_times and all(type(number) is int for number in place[1:])


class KeyValueQuery(Reads):
    """The reads of bytes, KeyValue, and TimestampedKeyValue with headers or without."""

    place_times = 0

    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        return view.get(key)

    def range(
        self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms, *, descending: bool
    ) -> Scanned:
        with view.reverse_range(start, end) if descending else view.range(start, end) as pairs:
            yield from self._records(pairs, forms)

    def prefix(self, view: Any, prefix: Any, after: Place | None, forms: JsonForms, *, descending: bool) -> Scanned:
        if not self.key.keeps_prefixes:
            raise bad_request(f"the bytes of {self.key.name} keys do not begin with those of a prefix: ask for a range")
        first = forms.place(prefix)
        with self._prefixed(view, prefix, None if after is None else forms.key_at(after[0]), descending) as pairs:
            for place, record in self._records(pairs, forms):
                if not place[0].startswith(first):
                    return
                yield place, record

    def _prefixed(self, view: Any, prefix: Any, key: Any, descending: bool) -> Any:
        """Return a scan that begins with the keys of ``prefix``, from ``key`` on unless that is None."""
        if key is None:
            return view.reverse_prefix_scan(prefix) if descending else view.prefix_scan(prefix)
        return view.reverse_range(None, key) if descending else view.range(key, None)

    def _records(self, pairs: Iterator[tuple[Any, Any]], forms: JsonForms) -> Scanned:
        for key, value in pairs:
            yield (forms.place(key),), {"key": forms.shown_key(key), **forms.fields(value)}


class VersionedQuery(KeyValueQuery):
    """The reads of Versioned. A range and a prefix have the latest versions."""

    get_parameters = ("as_of_ms",)

    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        if parameters.text("as_of_ms") is None:
            return view.get(key)
        return view.get(key, parameters.number("as_of_ms", 0, NUMBER_MIN, TIME_MAX_MS))

    def versions(
        self, view: Any, key: Any, after: Place | None, parameters: Parameters, forms: JsonForms, *, descending: bool
    ) -> Scanned:
        from_ms = parameters.number("from_ms", 0, NUMBER_MIN, TIME_MAX_MS)
        to_ms = parameters.number("to_ms", TIME_MAX_MS, NUMBER_MIN, TIME_MAX_MS)
        for time_ms in () if after is None else after[1:]:
            from_ms, to_ms = (from_ms, min(to_ms, time_ms)) if descending else (max(from_ms, time_ms), to_ms)
        with view.get_versions(key, from_ms, to_ms, reverse=descending) as records:
            for value, time_ms, valid_to_ms, *headers in records:
                shown = (
                    ValueTimestampHeaders(value, time_ms, *headers) if headers else ValueAndTimestamp(value, time_ms)
                )
                fields = {**forms.fields(shown), "valid_to_ms": valid_to_ms}
                yield (forms.place(key), time_ms), {"key": forms.shown_key(key), **fields}

    def is_place(self, place: Place) -> bool:
        return len(place) < 3 and all(type(time_ms) is int and abs(time_ms) <= TIME_MAX_MS for time_ms in place[1:])


class WindowQuery(Reads):
    """The reads of Window."""

    get_parameters = ("window_start_ms",)
    range_parameters = ("start_ms", "end_ms")

    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        return view.fetch_one(key, parameters.required_number("window_start_ms", NUMBER_MIN, TIME_MAX_MS))

    def range(
        self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms, *, descending: bool
    ) -> Scanned:
        first_ms = parameters.number("start_ms", 0, NUMBER_MIN, TIME_MAX_MS)
        last_ms = parameters.number("end_ms", TIME_MAX_MS, NUMBER_MIN, TIME_MAX_MS)
        before: Place = ()
        step = -1 if descending else 1  # Of several values of one key and window, the one after has the next place.
        fetch = view.backward_fetch_range if descending else view.fetch_range
        with fetch(start, end, first_ms, last_ms) as records:
            for (key, start_ms, end_ms), value in records:
                place: Place = forms.place(key), start_ms, 0
                if before[:2] == place[:2]:
                    place = (*place[:2], before[2] + step)
                before = place
                window = {"window_start_ms": start_ms, "window_end_ms": end_ms}
                yield place, {"key": forms.shown_key(key), **window, **forms.fields(value)}


class SessionQuery(Reads):
    """The reads of Session."""

    get_parameters = ("start_ms", "end_ms")
    range_parameters = ("earliest_end_ms", "latest_start_ms")

    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        start_ms = parameters.required_number("start_ms", NUMBER_MIN, TIME_MAX_MS)
        end_ms = parameters.required_number("end_ms", NUMBER_MIN, TIME_MAX_MS)
        return view.fetch_session(key, start_ms, end_ms)

    def range(
        self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms, *, descending: bool
    ) -> Scanned:
        earliest_end_ms = parameters.number("earliest_end_ms", 0, NUMBER_MIN, TIME_MAX_MS)
        latest_start_ms = parameters.number("latest_start_ms", TIME_MAX_MS, NUMBER_MIN, TIME_MAX_MS)
        find = view.backward_find_sessions_range if descending else view.find_sessions_range
        with find(start, end, earliest_end_ms, latest_start_ms) as records:
            for (key, start_ms, end_ms), value in records:
                session = {"session_start_ms": start_ms, "session_end_ms": end_ms}
                place = forms.place(key), end_ms, start_ms
                yield place, {"key": forms.shown_key(key), **session, **forms.fields(value)}


def reads_of(kind: RecordKind | None) -> Reads:
    """Return the reads of a store of that kind; None is bytes. Raises: Refused for a kind of the user's own."""
    if kind is None:
        return KeyValueQuery("bytes", BYTES, BYTES)
    if isinstance(kind, KeyValue | TimestampedKind):
        return KeyValueQuery(kind.kind, kind.key, kind.value)
    if isinstance(kind, VersionedKind):
        return VersionedQuery(kind.kind, kind.key, kind.value)
    if isinstance(kind, Window):
        return WindowQuery(kind.kind, kind.key, kind.value)
    if isinstance(kind, Session):
        return SessionQuery(kind.kind, kind.key, kind.value)
    raise Refused(501, f"stores of the kind {kind.kind} have no queries over HTTP: use their views in the process")
