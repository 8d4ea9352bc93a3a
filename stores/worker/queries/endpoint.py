"""The endpoint of a worker: its queries, their routes in HTTP, and the server that brings them.

Each answer is JSON, also for errors, and never a traceback.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import bottle

from stores.changelog.group import GroupMember
from stores.changelog.partitioners import Partitioner
from stores.config import StoreConfig
from stores.errors import (
    ChangelogTimeoutError,
    ConfigError,
    ProducerFencedError,
    StoreClosedError,
    StoreError,
    StoreRestoringError,
)
from stores.extras import check_extra
from stores.interface import Closeable
from stores.telemetry import MetricsRegistry
from stores.worker.definition import Definition
from stores.worker.probes import LIVE, READY, with_probes
from stores.worker.queries.access import AccessFiles, Instances, ServerAddress
from stores.worker.queries.parameters import RETRY_AFTER_S, Refused, shortened
from stores.worker.queries.query_request import QueriedStore
from stores.worker.queries.server import Listener, QueryServer
from stores.worker.queries.store_queries import LocalReads, LocalTasks, StoreQueries
from stores.worker.status import WorkerStatus

_log = logging.getLogger(__name__)


class QueryEndpoint(Closeable):
    """Answers queries at an address until it is closed. The extra ``http`` is needed to import this module."""

    def __init__(
        self,
        address: ServerAddress,
        application: Definition,
        configs: Mapping[str, StoreConfig],
        topics: Mapping[str, int],
        tasks: LocalTasks,
        partitioner: Partitioner | None,
        access: AccessFiles,
        status: Callable[[], WorkerStatus] = WorkerStatus,
        metrics: MetricsRegistry | None = None,
    ) -> None:
        """Begin to answer. ``configs`` are those of the stores, ``topics`` the numbers of partitions, both by name.

        Probes are answered from ``status``, without the token. ``/metrics`` has ``metrics``.

        Raises: ConfigError if the address can't be had, or the files of ``access`` do not fit.
        """
        tls, guarded = access.tls(), access.guard()
        listener = Listener(address)
        self.address = listener.address
        off = None if self.address.is_loopback else access.warning()
        if off is not None:
            _log.warning(
                "queries at %s are answered %s: set the properties, or use an address of loopback", address, off
            )
        self._instances = Instances()
        self._local = LocalReads(tasks)
        stores = {
            name: QueriedStore(name, number, each.inputs, topics[each.inputs[0]], configs[name])
            for number, processor in application.processors.items()
            for each in [processor.subtopology]
            for name in each.stores
        }
        for name, described in application.global_stores.items():
            stores[name] = QueriedStore(name, -1, [described.topic], 1, configs[name], is_global=True)
        queries = StoreQueries(application.name, str(self.address), stores, self._local, self._instances, partitioner)
        routes = routes_of(queries, self.address, access.scheme, metrics)
        self._server = QueryServer(with_probes(guarded(routes), status), listener, tls)

    def joined(self, member: GroupMember) -> None:
        """Ask this member of the group where partitions are that are not here."""
        self._instances.joined(member)

    def close(self) -> None:
        """End the queries that wait, and the server: see ``QueryServer.close``."""
        self._local.end()
        self._server.close()


_HEADERS = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
_PASSING = (StoreRestoringError, StoreClosedError, ProducerFencedError, ChangelogTimeoutError)
"""Errors of a task that moves, or returns to its last commit, and of brokers that do not answer."""
_METHODS = "GET, HEAD"


def routes_of(
    queries: StoreQueries, address: ServerAddress, scheme: str = "http", metrics: MetricsRegistry | None = None
) -> Any:
    """Return the WSGI application that answers queries at ``address``, and those of others by ``scheme``.

    With ``metrics`` it answers Prometheus, too. For any thread.
    """
    routes: Mapping[str, Callable[..., str]] = {
        "/stores": queries.index,
        "/stores/<name>": queries.store,
        "/stores/<name>/get": queries.get,
        "/stores/<name>/range": queries.range,
        "/stores/<name>/prefix": queries.prefix,
        "/stores/<name>/versions": queries.versions,
    }
    application = bottle.Bottle()
    for path, query in routes.items():
        application.route(path, "GET", callback=_callback(query, address, scheme))
    if metrics is not None:
        application.route("/metrics", "GET", callback=lambda: _exposition(metrics, address))
    application.default_error_handler = _unrouted
    return application


def _callback(query: Callable[..., str], address: ServerAddress, scheme: str) -> Callable[..., Any]:
    def answer(**names: str) -> Any:
        try:
            _check_host(address)
            return bottle.HTTPResponse(_line(query(**names, query=_query())), 200, _HEADERS)
        except Refused as refused:
            return _refusal(refused, scheme)
        except _PASSING as error:
            return _refusal(Refused(503, str(error)))
        except StoreError as error:
            _log.warning("a query failed: %s", error)
            return _refusal(Refused(500, str(error)))
        except Exception:
            _log.exception("a query failed")
            return _refusal(Refused(500, "the query failed by an error of the worker: see its log"))

    return answer


def _exposition(metrics: MetricsRegistry, address: ServerAddress) -> Any:
    try:
        _check_host(address)
        check_extra("prometheus")
    except Refused as refused:
        return _refusal(refused)
    except ConfigError as error:
        return _refusal(Refused(501, str(error)))
    from stores.telemetry.prometheus import CONTENT_TYPE, exposition

    return bottle.HTTPResponse(exposition(metrics), 200, {**_HEADERS, "Content-Type": CONTENT_TYPE})


def _refusal(refused: Refused, scheme: str = "http") -> Any:
    headers = dict(_HEADERS)
    if refused.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if refused.status == 405:
        headers["Allow"] = _METHODS
    if refused.status == 307:
        path, query = quote(bottle.request.path), quote(_query(), safe="=&%+-._~")
        headers["Location"] = f"{scheme}://{refused.details['instance']}{path}{'?' if query else ''}{query}"
    body = json.dumps({"error": refused.sentence, **refused.details}, ensure_ascii=False)
    return bottle.HTTPResponse(_line(body), refused.status, headers)


def _unrouted(error: Any) -> Any:
    """Answer a request that has no route, or that bottle itself refuses."""
    request = bottle.request
    if error.status_code == 404:
        paths = f"/stores, {LIVE}, {READY} and /metrics"
        return _refusal(Refused(404, f"no such path {shortened(request.path)}: there are {paths}"))
    if error.status_code == 405:
        return _refusal(Refused(405, f"queries are asked with GET, not {shortened(request.method)}"))
    return _refusal(Refused(error.status_code, str(error.status_line)))


def _check_host(address: ServerAddress) -> None:
    """Refuse a page of a browser whose own name was made to lead here (DNS rebinding). Raises: Refused."""
    header = bottle.request.environ.get("HTTP_HOST")
    if header is None or not address.is_loopback:
        return
    host = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    name = host.strip("[]").lower()
    if name != address.host.lower() and not ServerAddress(name, 0).is_loopback:
        raise Refused(421, f"this worker is asked as {address}, not as {shortened(header)}")


def _query() -> str:
    text: str = bottle.request.environ.get("QUERY_STRING", "")
    return text


def _line(text: str) -> bytes:
    # A lone surrogate becomes the escape that JSON has for it.
    return f"{text}\n".encode(errors="backslashreplace")
