"""The queries of an application's stores, whatever protocol brings them. An answer is JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stores.changelog.partitioners import Partitioner
from stores.errors import nearest
from stores.interface import Position
from stores.worker.queries.asked import Asked, QueriedStore, asked_of, parameters_of
from stores.worker.queries.instances import Instances
from stores.worker.queries.json_forms import JsonForms, json_text
from stores.worker.queries.local_reads import LocalReads
from stores.worker.queries.pages import LIMIT, LIMIT_MAX, cursor_of, page_of, place_of
from stores.worker.queries.parameters import Parameters, shortened
from stores.worker.queries.reads import Place, Scanned
from stores.worker.queries.refusals import Refused, bad_request, unavailable

Answer = TypeVar("Answer")
_PAGED = ("limit", "cursor")


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
        asked = asked_of(store, parameters, data, self._partitioner)
        value, position = self._read(asked, lambda view: reads.get(view, key, parameters))
        return json_text(asked.answer(position, key=forms.shown_key(key), **forms.fields(value)))

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
        asked = asked_of(store, parameters, None, self._partitioner)
        name, *own = operation
        query = json_text([store.name, asked.partition, name, *(parameters.text(each) for each in own)])
        after = place_of(query, parameters.text("cursor"), store.reads)
        page, position = self._read(asked, lambda view: page_of(scanned(view, after), after, limit))
        head = json_text(asked.answer(position, cursor=cursor_of(query, page.last)))
        return f'{head[:-1]}, "records": [{", ".join(page.records)}]}}'

    def _read(self, asked: Asked, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        """Read here, or refuse with the worker that has the partition."""
        store, partition = asked.store, asked.partition
        if store.is_global:
            return self._local.read_global(asked, read)
        status = self._local.status(store.task_id(partition))
        if status is not None:
            return self._local.read(asked, status, read)
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
        status = self._local.status(store.task_id(partition))
        if status is None:
            address = self._instances.addresses().get(store.leading(partition))
            return {"partition": partition, "instance": None if address == self._address else address}
        state = "running" if status.running else "restoring"
        return {"partition": partition, "instance": self._address, "state": state}

    def _store(self, name: str) -> QueriedStore:
        store = self._stores.get(name)
        if store is None:
            known = ", ".join(sorted(self._stores)) or "none"
            raise Refused(404, f"no store {shortened(name)}{nearest(name, self._stores)}; stores: {known}")
        return store


def _key_or_none(forms: JsonForms, name: str, parameters: Parameters) -> Any:
    text = parameters.text(name)
    return None if text is None else forms.key(name, text)[0]
