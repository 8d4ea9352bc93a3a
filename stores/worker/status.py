"""The state of a worker in one line: tasks, records per second, restore progress and lag."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from stores.changelog.interface import Changelog
from stores.contract.levels import Level
from stores.errors import StoreError
from stores.worker.log_format import LogFormat
from stores.worker.running_task import TaskStatus
from stores.worker.standbys import StandbyStatus

NO_TASKS = (
    "0 tasks: other workers have them, or no broker answers. Kafka gives those of a killed worker away after its "
    "session.timeout.ms"
)

NOT_READY = "0 tasks: they begin when the global stores have been read"


class WorkerState(Level):
    """The state of a worker, as its probes have it."""

    STARTING = "starting"
    """It has not joined the group, or reads its global stores."""
    RESTORING = "restoring"
    """A task that it has is not open yet."""
    RUNNING = "running"
    """All tasks that it has process records; there may be none."""
    ENDING = "ending"
    """It commits and closes its tasks."""
    FAILED = "failed"
    """It ends because of an error."""


@dataclass(frozen=True)
class WorkerStatus:
    """The tasks of a worker, and its standby copies of other tasks, at one moment."""

    tasks: tuple[TaskStatus, ...] = ()
    standbys: tuple[StandbyStatus, ...] = ()
    global_stores: int = 0
    """The number of its global stores."""
    global_lag: int | None = None
    """The offsets that they lacked at the last look; None while they are not open."""
    global_ready: bool = True
    """False until tasks may read them."""
    state: WorkerState = WorkerState.RUNNING

    @property
    def running(self) -> int:
        """The number of tasks that process records."""
        return sum(task.running for task in self.tasks)

    @property
    def restored(self) -> float | None:
        """The mean progress of the restores, 0 to 1; None if nothing is restored."""
        waiting = [task.restored for task in self.tasks if not task.running]
        return sum(waiting) / len(waiting) if waiting else None

    @property
    def standby_lag(self) -> int | None:
        """The offsets that the standby copies lack, together; None if one of them is not open yet."""
        lags = [standby.lag for standby in self.standbys if standby.lag is not None]
        return sum(lags) if len(lags) == len(self.standbys) else None


_ENDINGS = {WorkerState.ENDING: "ending", WorkerState.FAILED: "ending after an error"}


class StatusLine:
    """Writes the line each ``interval_s`` with ``write``, on a thread of its own; 0 for never.

    ``server`` is the address of the queries, which the line then names.
    """

    def __init__(
        self,
        application: str,
        status: Callable[[], WorkerStatus],
        changelog: Changelog,
        interval_s: float,
        server: str = "",
        write: Callable[[str], None] = LogFormat.TEXT.write,
    ) -> None:
        self._status, self._changelog, self._write = status, changelog, write
        self._begin = f"{application}: queries at {server}, " if server else f"{application}: "
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._totals: dict[object, int] = {}
        self._at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Self:
        if self._interval_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def line(self) -> str:
        """Return the line: records per second are those since the last line."""
        status = self._status()
        now = time.monotonic()
        totals: dict[object, int] = {task.task_id: task.process_total for task in status.tasks if task.running}
        # A task that was closed and opened meanwhile counts from 0 again.
        num_records = sum(max(total - self._totals.get(task, 0), 0) for task, total in totals.items())
        rate = num_records / max(now - self._at, 1e-9)
        self._totals, self._at = totals, now
        more = ""
        if status.standbys:
            more = f"; {len(status.standbys)} standby copies, lag {_shown(status.standby_lag)}"
        if status.global_stores:
            more += f"; global stores: lag {_shown(status.global_lag)}"
        if status.state in _ENDINGS:
            return f"{self._begin}{_ENDINGS[status.state]}, {len(status.tasks)} tasks to close{more}"
        if not status.tasks:
            return f"{self._begin}{NO_TASKS if status.global_ready else NOT_READY}{more}"
        parts = [f"{len(status.tasks)} tasks"]
        restored = status.restored
        if restored is not None:
            parts.append(f"{len(status.tasks) - status.running} restoring ({restored:.0%})")
        parts += [f"{rate:,.0f} records/s", f"lag {_shown(self._lag(status))}"]
        return f"{self._begin}{', '.join(parts)}{more}"

    def _lag(self, status: WorkerStatus) -> int | None:
        """Return the offsets that the tasks have before them, together, None if the changelog does not answer."""
        lag = 0
        try:
            for task in status.tasks:
                for partition, following in task.next_offsets:
                    lag += self._changelog.lag(partition, following)
        except StoreError:
            return None
        return lag

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._write(self.line())


def _shown(lag: int | None) -> str:
    return "unknown" if lag is None else f"{lag:,}"
