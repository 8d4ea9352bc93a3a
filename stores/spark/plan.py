"""The plan of a stateful transformation: what each task is given. It is sent to the executors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stores.changelog.files import Retention, VersionLog
from stores.config import StoreConfig
from stores.files.folder import PutIfAbsent

if TYPE_CHECKING:
    import pyarrow

PARTITION_COLUMN = "__txstores_partition"
"""The column by which a task checks that its rows belong to it."""


@dataclass(frozen=True)
class Plan:
    """A stateful transformation, checked on the driver."""

    location: str
    log_id: str
    stores: Mapping[str, StoreConfig]
    stores_id: str
    """The same for the same configurations: open stores of another plan do not fit."""
    process: Callable[[Any, Any], Any]
    output: pyarrow.Schema
    key: tuple[str, ...]
    order_by: str | None
    null_keys: str
    retention: Retention
    put_if_absent: PutIfAbsent | None
    local: str | None
    version: int | None
    """The version of a batch job; None if the batch of a streaming query gives it."""
    job: str | None
    """The ID of a batch job; None for a streaming query, and for a job that repeats a version."""
    batch_id: int | None
    query: str | None
    """The batch and the query for a DataFrame that is made within ``foreachBatch``."""
    on_timer: Callable[[Any, int, Any], Any] | None = None
    checkpoint: str | None = None
    """The checkpoint of the query, from which the watermark is read."""

    def open_log(self) -> VersionLog:
        """Open the log. Raises: as ``VersionLog.open``; ChangelogLostError if it is another than on the driver."""
        return VersionLog.open(self.location, retention=self.retention, put_if_absent=self.put_if_absent)

    def local_folder(self) -> Path:
        """Return the folder of local copies: the one given, else in the executor's own, which Spark removes."""
        if self.local is not None:
            return Path(self.local)
        own = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        return Path(own or tempfile.gettempdir()) / "txstores"


@dataclass(frozen=True)
class QueryBatch:
    """One partition of one batch, as Spark names it: ``number`` and ``query`` are None in a batch job."""

    partition: int
    number: int | None
    query: str | None
