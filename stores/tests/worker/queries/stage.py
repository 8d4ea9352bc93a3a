"""A task with stores of all kinds in this process, and the queries of it as a worker has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from stores.changelog import MemoryChangelog, Record
from stores.changelog.group import GroupMember
from stores.changelog.partitioners import PARTITIONERS
from stores.config import StoreConfig
from stores.errors import StoreClosedError
from stores.interface import PositionBound, TopicPartition
from stores.records import (
    BYTES,
    FLOAT64,
    INT64,
    JSON,
    STR,
    KeyValue,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    VersionedWithHeaders,
    Window,
)
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId, TaskSettings
from stores.tests.worker.queries.asking import Reply, call
from stores.worker.copy_moment import CopyMoment
from stores.worker.queries.access import Instances, ServerAddress
from stores.worker.queries.endpoint import routes_of
from stores.worker.queries.query_request import QueriedStore
from stores.worker.queries.store_queries import LocalReads, StoreQueries
from stores.worker.running_task import TaskStatus

ADDRESS, OTHER = ServerAddress("127.0.0.1", 1), "127.0.0.1:2"
PARTITIONS, HERE, THERE, MOVING = 4, 1, 2, 3
"""The partitions: one of a task that is here, one of another worker, one of nobody. 0 is restored here."""
LINES = TopicPartition("lines", HERE)
YEAR_MS = 365 * 86_400_000
KINDS: Mapping[str, RecordKind | None] = {
    "bytes": None,
    "counts": KeyValue(key=STR, value=INT64),
    "visits": TimestampedKeyValue(key=STR, value=JSON),
    "traces": TimestampedKeyValueWithHeaders(key=STR, value=JSON),
    "measures": KeyValue(key=FLOAT64, value=FLOAT64),
    "numbers": KeyValue(key=INT64, value=STR),
    "documents": KeyValue(key=JSON, value=BYTES),
    "prices": Versioned(key=STR, value=FLOAT64, history_retention_ms=1_000),
    "clicks": Window(key=STR, value=INT64, size_ms=1_000, retention_ms=YEAR_MS, retain_duplicates=True),
    "sources": VersionedWithHeaders(key=STR, value=FLOAT64, history_retention_ms=1_000),
    "headed": Window(key=STR, value=JSON, size_ms=1_000, retention_ms=YEAR_MS, headers=True),
    "trips": Session(key=STR, value=JSON, retention_ms=YEAR_MS, timestamped=True),
}
Write = Callable[[TaskContext], None]


class Member(GroupMember):
    """A member of a group in which another worker has the partition THERE."""

    def __init__(self) -> None:
        self.asked = 0

    def poll(self, wait_s: float) -> None:
        raise AssertionError("queries do not take part in the group")

    def addresses(self) -> Mapping[TopicPartition, str]:
        self.asked += 1
        return {TopicPartition("lines", THERE): OTHER, TopicPartition("lines", MOVING): str(ADDRESS)}

    def close(self) -> None:
        """Nothing is held."""


class Stage:
    """The task of partition HERE. The thread that makes it writes. A ``with`` block opens and closes it."""

    def __init__(self, folder: Path, backend: str = "memory-indexed-batch", *, partitioner: str | None = None) -> None:
        self.log = MemoryChangelog()
        self.log.create_topic("lines", PARTITIONS)
        configs = {name: StoreConfig(backend, records=kind) for name, kind in KINDS.items()}
        self.task: Any = StreamTask(
            "app",
            TaskId(0, HERE),
            state_dir=folder,
            changelog=self.log,
            stores=configs,
            process=self._process,
            inputs=[LINES],
            settings=TaskSettings(commit_interval_ms=NO_INTERVAL),
        )
        self.offset = -1
        self.moment: CopyMoment | None = None
        """The standby copy of the partitions 0 and THERE."""
        self.copied = -1
        """The partition of which another worker has a standby copy."""
        self._write: Write = _nothing
        self.member, self.instances = Member(), Instances()
        self.instances.joined(self.member)
        self.local = LocalReads(self)
        stores = {name: QueriedStore(name, 0, ["lines"], PARTITIONS, config) for name, config in configs.items()}
        function = None if partitioner is None else PARTITIONERS[partitioner]
        self.queries = StoreQueries("app", str(ADDRESS), stores, self.local, self.instances, function)
        self.application = routes_of(self.queries, ADDRESS)

    def __enter__(self) -> Self:
        self.task.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.task.close(clean=False)

    def task_status(self, task_id: TaskId) -> TaskStatus | None:
        if task_id.partition == HERE:
            return TaskStatus(task_id, running=True)
        return TaskStatus(task_id, running=False, restored=0.25) if task_id.partition == 0 else None

    def open_task(self, task_id: TaskId) -> Any:
        return self.task

    def standby(self, task_id: TaskId) -> CopyMoment | None:
        return self.moment.shared() if task_id.partition in (0, THERE) and self.moment is not None else None

    def standby_addresses(self, partition: TopicPartition) -> list[str]:
        return [OTHER] if partition.partition == self.copied else []

    def global_view(self, name: str, bound: PositionBound) -> Any:
        raise StoreClosedError(f"there is no global store {name!r} here")

    def process(self, write: Write) -> None:
        """Process the next record by this function."""
        self._write = write
        self.offset += 1
        self.task.process(LINES, Record(self.offset, None, b""))

    def put(self, store: str, *records: tuple[Any, ...]) -> None:
        """Put records, with one record of the input, and commit."""

        def write(context: TaskContext) -> None:
            for record in records:
                context.store(store).put(*record)

        self.process(write)
        self.task.commit()

    def ask(self, path: str, query: str = "", /, **parameters: object) -> Reply:
        """Ask for ``/stores/PATH``, of the partition HERE unless the parameters or the query say otherwise."""
        if "partition" not in query:
            parameters.setdefault("partition", HERE)
        return self.ask_plainly(path, "&".join(filter(None, [query, urlencode(parameters)])))

    def ask_plainly(self, path: str, query: str = "") -> Reply:
        """Ask for ``/stores/PATH`` with exactly this query."""
        return call(self.application, f"/stores/{path}", query)

    def _process(self, record: Record, context: TaskContext) -> None:
        self._write(context)


def _nothing(context: TaskContext) -> None:
    """Write nothing."""
