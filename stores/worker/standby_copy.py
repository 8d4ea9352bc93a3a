"""One standby copy of a worker: opened when its folder is free, followed in bounded steps, and closed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from stores.errors import ChangelogTimeoutError, StoreError, StoreLockedError
from stores.interface import TopicPartition
from stores.tasks.identifier import TaskId
from stores.worker.running_task import MakeTask

_log = logging.getLogger(__name__)

STEP_RECORDS = 10_000
"""The most records that a step writes into each store: a copy is released after about one step."""
FOLLOW_S = 0.25
"""The time between two looks for new records, once a copy is at the end."""
RETRY_S = 5.0
"""The time after which a copy that has failed is opened again."""


@dataclass(frozen=True)
class StandbyStatus:
    """The state of one standby copy, as other threads may see it."""

    task_id: TaskId
    lag: int | None
    """The offsets that it lacked at its last step; None while it is not open."""


class StandbyCopy:
    """The copy of one task. For the thread that owns it; ``status`` and ``changelog_offsets`` for any."""

    def __init__(self, task_id: TaskId, make: MakeTask) -> None:
        self.task_id = task_id
        self.status = StandbyStatus(task_id, None)
        # The registry of metrics does not keep the task alive.
        self._task = make(task_id, lambda progress: None)
        self._copy = self._task.standby()
        self._open = False
        self._due = 0.0
        self._told = ""

    def step(self) -> bool:
        """Open the copy, or write some new records of the changelogs; return True if there are more.

        An error does not end the worker, whose tasks do not need the copy: it is logged, and tried again later.
        """
        if time.monotonic() < self._due:
            return False
        try:
            if not self._open:
                self._copy.open()
                self._open = True
            lag = self._copy.follow(STEP_RECORDS)
        except ChangelogTimeoutError as error:
            self._try_later(error, FOLLOW_S)
            return False
        except StoreError as error:
            self.close(clean=False)
            # Another process that has the folder may be about to close it.
            self._try_later(error, FOLLOW_S if isinstance(error, StoreLockedError) else RETRY_S)
            return False
        self.status = StandbyStatus(self.task_id, lag)
        self._told = ""
        if not lag:
            self._due = time.monotonic() + FOLLOW_S
        return lag > 0

    def changelog_offsets(self) -> Mapping[TopicPartition, int | None]:
        """Return the changelog offsets of the stores; empty while the copy is not open."""
        return self._copy.offsets() if self._open else {}

    def close(self, *, clean: bool = True) -> None:
        """Close the copy: if ``clean``, with a checkpoint. A later ``step`` opens it again."""
        self._open = False
        self.status = StandbyStatus(self.task_id, None)
        try:
            self._copy.close(clean=clean)
        except StoreError as error:
            _log.warning("the standby copy of task %s could not be closed in order: %s", self.task_id, error)

    def _try_later(self, error: StoreError, pause_s: float) -> None:
        self._due = time.monotonic() + pause_s
        if str(error) != self._told:
            self._told = str(error)
            _log.warning("the standby copy of task %s does not follow, and is tried again: %s", self.task_id, error)
