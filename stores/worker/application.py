"""An application that can be run: its definition, and the call that runs a worker of it."""

from __future__ import annotations

from os import PathLike

from stores.settings import Properties
from stores.telemetry import MetricsRegistry
from stores.worker.definition import Definition
from stores.worker.properties_file import read_properties
from stores.worker.worker import Worker


class Application(Definition):
    """A stream processor: a name and its sub-topologies, which are one Processor, a list, or a mapping by number.

    ``name`` is the ``application.id``: that of the consumer group, and the first part of the names of its changelog
    topics. ``topics`` are created if they do not exist, with that number of partitions. ``global_stores`` are in each
    worker, and all functions read them.

    Raises: TypeError, ConfigError.
    """

    def run(self, properties: Properties | str | PathLike[str], *, metrics: MetricsRegistry | None = None) -> None:
        """Run a worker until SIGTERM or SIGINT, with these properties or those of a file.

        Raises: as ``Worker``, ``Worker.run`` and ``read_properties``.
        """
        given = properties if not isinstance(properties, str | PathLike) else read_properties(properties)
        Worker(self, given, metrics=metrics).run()
