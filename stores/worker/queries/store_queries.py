"""The queries of an application's stores, whatever protocol brings them, and reads of those here. Answers are JSON."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from stores.changelog.partitioners import Partitioner
from stores.errors import NotUpToBoundError, StoreClosedError, StoreError, nearest
from stores.interface import IsolationLevel, Position, PositionBound
from stores.tasks.identifier import TaskId
from stores.tasks.task import StreamTask
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
LIMIT, LIMIT_MAX = 100, 10_000
"""The records of a page: the default, and the most."""
PAGE_BYTES_MAX = 4 << 20
"""A page ends with the record that makes its JSON longer than this, whatever its limit."""
_PAGED = ("limit", "cursor")


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
        key, data = forms.key("key", parameters.required("key"))
        if not data:
            raise bad_request("a key has 1 byte or more")
        request = request_of(store, parameters, data, self._partitioner)
        value, position = self._read(request, lambda view: reads.get(view, key, parameters))
        return json_text(request.answer(position, key=forms.shown_key(key), **forms.fields(value)))

    def range(self, name: str, query: str) -> str:
        """Answer with a page of the records from one key to another one, both included."""
        store = self._store(name)
        reads = store.reads
        own = ("from", "to", *reads.range_parameters)
        parameters = parameters_of(query, *own, *_PAGED)
        forms = JsonForms(reads.key, reads.value, parameters)
        start, end = _key_or_none(forms, "from", parameters), _key_or_none(forms, "to", parameters)

        def scanned(view: Any, after: Place | None) -> Scanned:
            first = start if after is None else forms.key_at(after[0])
            return reads.range(view, first, end, parameters, forms)

        return self._page(store, ("range", *own), parameters, scanned)

    def prefix(self, name: str, query: str) -> str:
        """Answer with a page of the records whose keys begin with a prefix."""
        store = self._store(name)
        reads = store.reads
        parameters = parameters_of(query, "prefix", *_PAGED)
        forms = JsonForms(reads.key, reads.value, parameters)
        prefix, _ = forms.key("prefix", parameters.required("prefix"))

        def scanned(view: Any, after: Place | None) -> Scanned:
            return reads.prefix(view, prefix, after, forms)

        return self._page(store, ("prefix", "prefix"), parameters, scanned)

    def _page(
        self,
        store: QueriedStore,
        operation: Sequence[str],
        parameters: Parameters,
        scanned: Callable[[Any, Place | None], Scanned],
    ) -> str:
        """Answer with a page. ``operation`` is a name, and the parameters that determine which records there are."""
        limit = parameters.number("limit", LIMIT, 1, LIMIT_MAX)
        request = request_of(store, parameters, None, self._partitioner)
        name, *own = operation
        query = json_text([store.name, request.partition, name, *(parameters.text(each) for each in own)])
        after = place_of(query, parameters.text("cursor"), store.reads)
        page, position = self._read(request, lambda view: page_of(scanned(view, after), after, limit))
        head = json_text(request.answer(position, cursor=cursor_of(query, page.last)))
        return f'{head[:-1]}, "records": [{", ".join(page.records)}]}}'

    def _read(self, request: QueryRequest, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        """Read here, or refuse with the worker that has the partition."""
        store, partition = request.store, request.partition
        if store.is_global:
            return self._local.read_global(request, read)
        status = self._local.tasks.task_status(store.task_id(partition))
        if status is not None:
            return self._local.read(request, status, read)
        address = self._instances.addresses().get(store.leading(partition))
        where = f"partition {partition} of store {store.name!r}"
        if address is None or address == self._address:
            raise unavailable(
                f"no worker that answers queries has {where} now: it is moving, or its worker has no "
                "application.server",
                partition=partition,
            )
        raise Refused(307, f"{where} is at {address}", partition=partition, instance=address)

    def _place(self, store: QueriedStore, partition: int) -> dict[str, Any]:
        status = self._local.tasks.task_status(store.task_id(partition))
        if status is None:
            address = self._instances.addresses().get(store.leading(partition))
            return {"partition": partition, "instance": None if address == self._address else address}
        state = "running" if status.running else "restoring"
        return {"partition": partition, "instance": self._address, "state": state}

    def _store(self, name: str) -> QueriedStore:
        store = self._stores.get(name)
        if store is None:
            names = ", ".join(sorted(self._stores)) or "none"
            raise Refused(404, f"no store {shortened(name)}{nearest(name, self._stores)}; stores: {names}")
        return store


def _key_or_none(forms: JsonForms, name: str, parameters: Parameters) -> Any:
    text = parameters.text(name)
    return None if text is None else forms.key(name, text)[0]


@dataclass(frozen=True)
class RecordPage:
    """The records of a page, each as JSON. ``last`` is the place of its last one, None if no record follows.

    No iterator stays open between two requests. The cursor of the next one has the place of the last record, and a hash
    of the query, so that it is refused by another one. It is no secret, and grants nothing.
    """

    records: list[str]
    last: Place | None


def page_of(scanned: Scanned, after: Place | None, limit: int) -> RecordPage:
    """Return the next records of a scan whose place is beyond ``after``. Close the scan.

    It takes up to ``limit`` records, and looks at one more. A scan may begin before ``after`` by the records of one
    key.
    """
    records: list[str] = []
    size, last = 0, None
    with closing(scanned):
        for place, record in scanned:
            if after is not None and place <= after:
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

    def global_view(self, name: str, bound: PositionBound) -> Any:
        """Return a view of a global store. Raises: StoreClosedError if it is not open yet, or no more."""


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

    def read(self, request: QueryRequest, status: TaskStatus, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
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
        return self._read(request, task.store(request.store.name, request.level, request.bound), read)

    def read_global(self, request: QueryRequest, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        """Return the result of ``read``, called with a view of a global store, and the position that it reflects."""
        try:
            view = self.tasks.global_view(request.store.name, request.bound)
        except StoreClosedError:
            raise unavailable(f"global store {request.store.name!r} is being opened: ask again later") from None
        return self._read(request, view, read)

    def _read(self, request: QueryRequest, view: Any, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        try:
            return _at_one_moment(view, request.level, read)
        except NotUpToBoundError as error:
            if not request.wait_s:
                raise _behind(request, view, error) from None
        if not self._waiting.acquire(blocking=False):
            raise unavailable(f"{WAITING_MAX} queries wait for a position already: ask again later")
        try:
            return self._when_reached(request, view, read)
        finally:
            self._waiting.release()

    def _when_reached(self, request: QueryRequest, view: Any, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        deadline = time.monotonic() + request.wait_s
        while not self._ending.wait(_POLL_S):
            try:
                return _at_one_moment(view, request.level, read)
            except NotUpToBoundError as error:
                if time.monotonic() >= deadline:
                    raise _behind(request, view, error) from None
        raise unavailable("this worker is ending: ask again later")


def _at_one_moment(view: Any, level: IsolationLevel, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
    if level is IsolationLevel.READ_COMMITTED:
        with _snapshot(view) as snapshot:
            # Before the read: a view without snapshots may then show more than the position.
            position = snapshot.position()
            return read(snapshot), position
    position = view.position()
    return read(view), position


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
        409,
        f"{part}store {request.store.name!r} has not reached the position of 'bound' at "
        f"{request.level}: ask again later, or with wait_ms",
        position=shown_position(view.position()),
        bound=shown_position(request.bound.position),
        behind=shown_position(error.behind),
    )
