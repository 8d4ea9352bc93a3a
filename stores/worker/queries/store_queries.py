"""The queries of an application's stores, whatever protocol brings them, and reads of those here. Answers are JSON."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar

from stores.changelog.partitioners import Partitioner
from stores.errors import NotUpToBoundError, StoreClosedError, StoreError, nearest
from stores.interface import IsolationLevel, Position, PositionBound, TopicPartition
from stores.meta_entries import merge_positions
from stores.tasks.identifier import TaskId
from stores.tasks.task import StreamTask
from stores.worker.copy_moment import CopyMoment
from stores.worker.queries.access import Instances
from stores.worker.queries.parameters import (
    JsonForms,
    Parameters,
    Refused,
    bad_request,
    json_text,
    shortened,
    unavailable,
)
from stores.worker.queries.query_request import (
    Place,
    QueriedStore,
    QueryRequest,
    Reads,
    Scanned,
    parameters_of,
    request_of,
    shown_position,
)
from stores.worker.running_task import TaskStatus

Answer = TypeVar("Answer")
Looked = TypeVar("Looked")
TOO_OLD = 409
"""The status of a state that has not reached what the query asks."""
LIMIT, LIMIT_MAX = 100, 10_000
"""The records of a page: the default, and the most."""
PAGE_BYTES_MAX = 4 << 20
"""A page ends with the record that makes its JSON longer than this, whatever its limit."""
_ORDER = "order"
_PAGED = (_ORDER, "limit", "cursor")


WAITING_MAX = 4
"""The most queries that wait for a position at the same time. Each has a thread of the server meanwhile."""
_POLL_S = 0.01


class StoreQueries:
    """The queries that a worker answers from its tasks, or refuses with the address of the worker that can.

    ``query`` is the part of a URL after the question mark. For any thread.
    Raises, all queries: as ``LocalReads`` and ``Instances``.
    """

    def __init__(
        self,
        application: str,
        address: str,
        stores: Mapping[str, QueriedStore],
        local: LocalReads,
        instances: Instances,
        partitioner: Partitioner | None,
    ) -> None:
        """Take the stores by name. ``address`` is that of this worker."""
        self._application, self._address, self._stores = application, address, stores
        self._local, self._instances, self._partitioner = local, instances, partitioner

    def index(self, query: str) -> str:
        """Answer with the names of the stores."""
        Parameters(query, ())
        stores = sorted(self._stores)
        return json_text({"application": self._application, "instance": self._address, "stores": stores})

    def store(self, name: str, query: str) -> str:
        """Answer with the kind of a store, and the worker that has each of its partitions."""
        Parameters(query, ())
        store = self._store(name)
        reads = store.reads
        kind = {"kind": reads.name, "key": reads.key.name, "value": reads.value.name}
        if store.is_global:
            return json_text({"store": name, **kind, "topic": store.inputs[0], "instance": self._address})
        partitions = [self._place(store, partition) for partition in range(store.partitions)]
        return json_text({"store": name, **kind, "inputs": list(store.inputs), "partitions": partitions})

    def get(self, name: str, query: str) -> str:
        """Answer with the value of a key, null if it has none."""
        store = self._store(name)
        reads = store.reads
        parameters = parameters_of(query, "key", *reads.get_parameters)
        forms = JsonForms(reads.key, reads.value, parameters)
        key, data = _key_of(forms, parameters)
        request = request_of(store, parameters, data, self._partitioner)
        found = self._read(request, lambda view: reads.get(view, key, parameters))
        return json_text(
            request.answer(found.position, **found.copy, key=forms.shown_key(key), **forms.fields(found.data))
        )

    def range(self, name: str, query: str) -> str:
        """Answer with a page of the records from one key to another one, both included.

        Source of the descending order: KIP-985.
        """
        store = self._store(name)
        reads = store.reads
        own = ("from", "to", *reads.range_parameters)
        parameters = parameters_of(query, *own, *_PAGED)
        forms = JsonForms(reads.key, reads.value, parameters)
        start, end = _key_or_none(forms, "from", parameters), _key_or_none(forms, "to", parameters)
        descending = _is_descending(parameters)

        def scanned(view: Any, after: Place | None) -> Scanned:
            next_key = None if after is None else forms.key_at(after[0])
            first = start if next_key is None or descending else next_key
            last = end if next_key is None or not descending else next_key
            return reads.range(view, first, last, parameters, forms, descending=descending)

        return self._page(store, ("range", *own), parameters, scanned)

    def prefix(self, name: str, query: str) -> str:
        """Answer with a page of the records whose keys begin with a prefix."""
        store = self._store(name)
        reads = store.reads
        parameters = parameters_of(query, "prefix", *_PAGED)
        forms = JsonForms(reads.key, reads.value, parameters)
        prefix, _ = forms.key("prefix", parameters.required("prefix"))

        def scanned(view: Any, after: Place | None) -> Scanned:
            return reads.prefix(view, prefix, after, forms, descending=_is_descending(parameters))

        return self._page(store, ("prefix", "prefix"), parameters, scanned)

    def versions(self, name: str, query: str) -> str:
        """Answer with a page of the versions of a key."""
        store = self._store(name)
        reads = store.reads
        own = ("key", "from_ms", "to_ms")
        parameters = parameters_of(query, *own, *_PAGED)
        forms = JsonForms(reads.key, reads.value, parameters)
        key, data = _key_of(forms, parameters)

        def scanned(view: Any, after: Place | None) -> Scanned:
            return reads.versions(view, key, after, parameters, forms, descending=_is_descending(parameters))

        return self._page(store, ("versions", *own), parameters, scanned, data)

    def _page(
        self,
        store: QueriedStore,
        operation: Sequence[str],
        parameters: Parameters,
        scanned: Callable[[Any, Place | None], Scanned],
        key: bytes | None = None,
    ) -> str:
        """Answer with a page. ``operation`` is a name, and the parameters that determine which records there are.

        ``key`` is the bytes of their key, if they are of one.
        """
        limit = parameters.number("limit", LIMIT, 1, LIMIT_MAX)
        request = request_of(store, parameters, key, self._partitioner)
        name, *own = operation
        descending = _is_descending(parameters)
        query = json_text([store.name, request.partition, name, descending, *(parameters.text(each) for each in own)])
        after = place_of(query, parameters.text("cursor"), store.reads)
        found = self._read(request, lambda view: page_of(scanned(view, after), after, limit, descending=descending))
        page = found.data
        head = json_text(request.answer(found.position, **found.copy, cursor=cursor_of(query, page.last)))
        return f'{head[:-1]}, "records": [{", ".join(page.records)}]}}'

    def _read(self, request: QueryRequest, read: Callable[[Any], Answer]) -> ReadResult[Answer]:
        """Read here, or refuse with the worker that has the partition, or a copy of it if that may answer."""
        store, partition = request.store, request.partition
        if store.is_global:
            return self._local.read_global(request, read)
        tasks = self._local.tasks
        status = tasks.task_status(store.task_id(partition))
        if status is not None and (status.running or not request.stale):
            return self._local.read(request, status, read)
        if request.stale:
            found = self._local.read_standby(request, read)
            if found is not None:
                return found
            status = tasks.task_status(store.task_id(partition))
            if status is not None and status.running:
                # The copy has become the task meanwhile.
                return self._local.read(request, status, read)
        standbys = tasks.standby_addresses(store.leading(partition)) if request.stale else []
        address = None if status is not None else self._instances.addresses().get(store.leading(partition))
        where = f"partition {partition} of store {store.name!r}"
        if standbys and address in (None, self._address):
            raise Refused(307, f"a copy of {where} is at {standbys[0]}", partition=partition, instance=standbys[0])
        if status is not None:
            return self._local.read(request, status, read)
        if address is None or address == self._address:
            raise unavailable(
                f"no worker that answers queries has {where} now: it is moving, or its worker has no "
                "application.server",
                partition=partition,
            )
        raise Refused(307, f"{where} is at {address}", partition=partition, instance=address)

    def _place(self, store: QueriedStore, partition: int) -> dict[str, Any]:
        tasks, task_id = self._local.tasks, store.task_id(partition)
        status, copies = tasks.task_status(task_id), self._copies(store, partition)
        if status is None:
            address = self._instances.addresses().get(store.leading(partition))
            return {"partition": partition, "instance": None if address == self._address else address, **copies}
        state = "running" if status.running else "restoring"
        return {"partition": partition, "instance": self._address, "state": state, **copies}

    def _copies(self, store: QueriedStore, partition: int) -> dict[str, Any]:
        """Return the workers that keep a standby copy of a partition, and the lag of the one here; nothing for none."""
        addresses = self._local.tasks.standby_addresses(store.leading(partition))
        moment = self._local.tasks.standby(store.task_id(partition))
        if moment is None:
            return {"standbys": addresses} if addresses else {}
        with moment:
            return {"standbys": sorted([*addresses, self._address]), "standby_lag": moment.lag}

    def _store(self, name: str) -> QueriedStore:
        store = self._stores.get(name)
        if store is None:
            names = ", ".join(sorted(self._stores)) or "none"
            raise Refused(404, f"no store {shortened(name)}{nearest(name, self._stores)}; stores: {names}")
        return store


def _key_of(forms: JsonForms, parameters: Parameters) -> tuple[Any, bytes]:
    """Return the key that is asked for, and its bytes. Raises: Refused."""
    key, data = forms.key("key", parameters.required("key"))
    if not data:
        raise bad_request("a key has 1 byte or more")
    return key, data


def _key_or_none(forms: JsonForms, name: str, parameters: Parameters) -> Any:
    text = parameters.text(name)
    return None if text is None else forms.key(name, text)[0]


def _is_descending(parameters: Parameters) -> bool:
    text = parameters.text(_ORDER)
    if text not in (None, "ascending", "descending"):
        raise bad_request(f"the parameter {_ORDER!r} is ascending or descending, not {shortened(str(text))}")
    return text == "descending"


@dataclass(frozen=True)
class RecordPage:
    """The records of a page, each as JSON. ``last`` is the place of its last one, None if no record follows.

    No iterator stays open between two requests. The cursor of the next one has the place of the last record, and a hash
    of the query, so that it is refused by another one. It is no secret, and grants nothing.
    """

    records: list[str]
    last: Place | None


def page_of(scanned: Scanned, after: Place | None, limit: int, *, descending: bool = False) -> RecordPage:
    """Return the next records of a scan whose place is beyond ``after``: a lower one if ``descending``. Close the scan.

    It takes up to ``limit`` records, and looks at one more. A scan may begin before ``after`` by the records of one
    key.
    """
    records: list[str] = []
    size, last = 0, None
    with closing(scanned):
        for place, record in scanned:
            if after is not None and (place >= after if descending else place <= after):
                continue
            if len(records) == limit or size > PAGE_BYTES_MAX:
                return RecordPage(records, last)
            text = json_text(record)
            records.append(text)
            size += len(text)
            last = place
    return RecordPage(records, None)


def cursor_of(query: str, place: Place | None) -> str | None:
    """Return the cursor of ``query`` with which its next page begins after ``place``; None for None."""
    if place is None:
        return None
    key, *times = place
    fields = [_fingerprint(query), key.hex(), *times]
    return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")


def place_of(query: str, cursor: str | None, reads: Reads) -> Place | None:
    """Return the place of a cursor of the same query, None for no cursor. Raises: Refused."""
    if cursor is None:
        return None
    # It comes from outside: whatever it is, it is a cursor or it is none. The serde may be the user's own.
    with suppress(Exception):
        fields = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        fingerprint, key, *times = fields
        place = (bytes.fromhex(key), *times)
        reads.key.deserialize(place[0])
        if fingerprint == _fingerprint(query) and reads.is_place(place):
            return place
    raise bad_request("the cursor is none of this query: give it with the other parameters of the page that it is of")


def _fingerprint(query: str) -> str:
    return sha256(query.encode()).hexdigest()[:12]


class LocalTasks(Protocol):
    """The tasks of this worker, for any thread."""

    def task_status(self, task_id: TaskId) -> TaskStatus | None:
        """Return the state of a task that this worker has, None if it does not have it."""

    def open_task(self, task_id: TaskId) -> StreamTask | None:
        """Return a task that a thread of this worker works on, None if there is none yet or no more."""

    def standby(self, task_id: TaskId) -> CopyMoment | None:
        """Return the standby copy of a task, to be closed; None if there is none here that can be read."""

    def standby_addresses(self, partition: TopicPartition) -> list[str]:
        """Return the addresses of the other workers that keep a standby copy of an input partition's task."""

    def global_view(self, name: str, bound: PositionBound) -> Any:
        """Return a view of a global store. Raises: StoreClosedError if it is not open yet, or no more."""


@dataclass(frozen=True)
class ReadResult(Generic[Answer]):
    """The result of a read, the position that it reflects, and the fields that name its copy, if that was asked for."""

    data: Answer
    position: Position
    copy: Mapping[str, Any] = field(default_factory=dict)


class LocalReads:
    """Reads of the stores that are here. For any thread.

    Raises, all methods: Refused; StoreRestoringError, StoreClosedError and ProducerFencedError while the task moves or
    rolls back; StoreError.
    """

    def __init__(self, tasks: LocalTasks) -> None:
        self.tasks = tasks
        self._ending = threading.Event()
        self._waiting = threading.Semaphore(WAITING_MAX)

    def end(self) -> None:
        """Refuse the queries that wait for a position."""
        self._ending.set()

    def read(self, request: QueryRequest, status: TaskStatus, read: Callable[[Any], Answer]) -> ReadResult[Answer]:
        """Return the result of ``read``, called with a view of the store, and the position that it reflects.

        The task is here, in the state ``status``. At READ_COMMITTED both are of one commit. At READ_UNCOMMITTED the
        result reflects the position at least.
        """
        task = self.tasks.open_task(status.task_id)
        if task is None or not status.running:
            raise unavailable(
                f"store {request.store.name!r} is being restored from its changelog ({status.restored:.0%} done): ask "
                "again later",
                partition=request.partition,
            )
        found = self._read(request, task.store(request.store.name, request.level, request.bound), read)
        return replace(found, copy={"copy": "active"}) if request.stale else found

    def read_standby(self, request: QueryRequest, read: Callable[[Any], Answer]) -> ReadResult[Answer] | None:
        """Return the result of ``read`` for the standby copy here, and its lag; None if there is no copy to read.

        A copy has committed data only, at either level. Source: KIP-535; KIP-892, "Interactive Queries".
        """
        name, task_id = request.store.name, request.store.task_id(request.partition)

        def look() -> ReadResult[Answer] | None:
            moment = self.tasks.standby(task_id)
            if moment is None:
                return None
            with moment:
                if name not in moment.snapshots:
                    return None
                # Of the same moment: the thread of the copies may note a later step meanwhile.
                lag, snapshot = moment.lag, moment.snapshots[name]
                position = merge_positions(snapshot.position(), moment.position)
                _check_staleness(request, position, lag)
                return ReadResult(read(snapshot), position, {"copy": "standby", "lag": lag})

        return self._waiting_for(request, look)

    def read_global(self, request: QueryRequest, read: Callable[[Any], Answer]) -> ReadResult[Answer]:
        """Return the result of ``read``, called with a view of a global store, and the position that it reflects."""
        try:
            view = self.tasks.global_view(request.store.name, request.bound)
        except StoreClosedError:
            raise unavailable(f"global store {request.store.name!r} is being opened: ask again later") from None
        return self._read(request, view, read)

    def _read(self, request: QueryRequest, view: Any, read: Callable[[Any], Answer]) -> ReadResult[Answer]:
        def look() -> ReadResult[Answer]:
            try:
                return _at_one_moment(view, request.level, read)
            except NotUpToBoundError as error:
                raise _behind(request, view, error) from None

        return self._waiting_for(request, look)

    def _waiting_for(self, request: QueryRequest, look: Callable[[], Looked]) -> Looked:
        """Return the result of ``look``, tried again while it is refused as too old and the query may wait."""
        try:
            return look()
        except Refused as refused:
            if refused.status != TOO_OLD or not request.wait_s:
                raise
        if not self._waiting.acquire(blocking=False):
            raise unavailable(f"{WAITING_MAX} queries wait for a position already: ask again later")
        try:
            deadline = time.monotonic() + request.wait_s
            while not self._ending.wait(_POLL_S):
                try:
                    return look()
                except Refused as refused:
                    if refused.status != TOO_OLD or time.monotonic() >= deadline:
                        raise
            raise unavailable("this worker is ending: ask again later")
        finally:
            self._waiting.release()


def _check_staleness(request: QueryRequest, position: Position, lag: int | None) -> None:
    """Check that a standby copy is as fresh as the query asks. Raises: Refused."""
    behind = request.bound.behind(position)
    too_far = request.lag_max is not None and (lag is None or lag > request.lag_max)
    if behind or too_far:
        raise Refused(
            TOO_OLD,
            f"the standby copy of partition {request.partition} of store {request.store.name!r} here is not as fresh "
            "as 'max_lag' or 'bound' ask: ask again later, or with wait_ms, or ask the worker that has the partition",
            partition=request.partition,
            copy="standby",
            lag=lag,
            position=shown_position(position),
            bound=shown_position(request.bound.position),
            behind=shown_position(behind),
        )


def _at_one_moment(view: Any, level: IsolationLevel, read: Callable[[Any], Answer]) -> ReadResult[Answer]:
    if level is IsolationLevel.READ_COMMITTED:
        with _snapshot(view) as snapshot:
            # Before the read: a view without snapshots may then show more than the position.
            position = snapshot.position()
            return ReadResult(read(snapshot), position)
    position = view.position()
    return ReadResult(read(view), position)


def _snapshot(view: Any) -> AbstractContextManager[Any]:
    """Return a snapshot of a view. Of another package's store, which may have none, return the view."""
    try:
        snapshot: AbstractContextManager[Any] = view.snapshot()
    except StoreError as error:
        if type(error) is not StoreError:
            raise
        return nullcontext(view)
    return snapshot


def _behind(request: QueryRequest, view: Any, error: NotUpToBoundError) -> Refused:
    part = "" if request.store.is_global else f"partition {request.partition} of "
    return Refused(
        TOO_OLD,
        f"{part}store {request.store.name!r} has not reached the position of 'bound' at "
        f"{request.level}: ask again later, or with wait_ms",
        position=shown_position(view.position()),
        bound=shown_position(request.bound.position),
        behind=shown_position(error.behind),
    )
