"""The endpoint of a worker: its queries, and the server that brings them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stores.changelog.group import GroupMember
from stores.changelog.partitioners import Partitioner
from stores.config import StoreConfig
from stores.interface import Closeable
from stores.worker.definition import Definition
from stores.worker.queries.access import AccessFiles
from stores.worker.queries.address import ServerAddress
from stores.worker.queries.asked import QueriedStore
from stores.worker.queries.instances import Instances
from stores.worker.queries.local_reads import LocalReads, LocalTasks
from stores.worker.queries.routes import routes_of
from stores.worker.queries.server import Listener, QueryServer
from stores.worker.queries.store_queries import StoreQueries

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
    ) -> None:
        """Begin to answer. ``configs`` are those of the stores, ``topics`` the numbers of partitions, both by name.

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
            name: QueriedStore(name, number, processor.inputs, topics[processor.inputs[0]], configs[name])
            for number, processor in application.processors.items()
            for name in processor.stores
        }
        for name, described in application.global_stores.items():
            stores[name] = QueriedStore(name, -1, [described.topic], 1, configs[name], is_global=True)
        queries = StoreQueries(application.name, str(self.address), stores, self._local, self._instances, partitioner)
        self._server = QueryServer(guarded(routes_of(queries, self.address, access.scheme)), listener, tls)

    def joined(self, member: GroupMember) -> None:
        """Ask this member of the group where partitions are that are not here."""
        self._instances.joined(member)

    def close(self) -> None:
        """End the queries that wait, and the server: see ``QueryServer.close``."""
        self._local.end()
        self._server.close()
