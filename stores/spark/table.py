"""The state as a table: ``spark.read.format("txstores").load(FOLDER)``, by Spark's Python Data Source API.

Register it once per session with ``spark.dataSource.register(StateTable)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from stores.changelog.files import VersionLog
from stores.errors import ConfigError
from stores.spark.state_rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA = (
    "partition int, store string, key string, value string, timestamp timestamp, window_start timestamp, "
    "window_end timestamp"
)


class StateTable(DataSource):
    """The state in the folder of a stateful query, also while the query runs, at one version in all partitions.

    Options: ``version``, by default the newest that all partitions have; ``store``, by default all. Keys and values are
    text as it is, numbers and JSON as JSON, and all else in hexadecimal. A task reads one partition, and holds it in
    memory.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "txstores"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. Raises: ConfigError for a wrong option; as ``VersionLog.open``."""
        options = {name.lower(): value for name, value in self.options.items()}
        return StateReader(options)


class StateReader(DataSourceReader):
    """Reads one version. It is determined when the table is planned, so that all partitions have the same."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "path" not in options:
            raise ConfigError("no folder is given: load the folder that is the state of a query")
        self._location = options["path"].removeprefix("file:") if options["path"][:6] == "file:/" else options["path"]
        self._store = options.get("store")
        log = VersionLog.open(self._location)
        # An executor may have another working folder.
        self._location = log.location
        stores = log.description.get("stores")
        if not isinstance(stores, dict):
            raise ConfigError(f"{log.location} is a version log, and no state of a query")
        if self._store is not None and self._store not in stores:
            raise ConfigError(f"{log.location} has no store {self._store!r}: choose one of {', '.join(sorted(stores))}")
        version = options.get("version")
        if version is None:
            self._version = log.newest_complete()
        elif version.isdecimal():
            self._version = int(version)
        else:
            raise ConfigError(f"version is a number from 0, not {version!r}")
        self._partitions = log.partitions

    def partitions(self) -> Sequence[InputPartition]:
        """Return one part for each partition of the state."""
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a partition."""
        if self._version is not None:
            yield from rows_of(VersionLog.open(self._location), partition.value, self._version, self._store)
