"""The states of a task, one table of the transitions and of the calls that are legal in each, and its counters.

A task is restored when it is opened, runs, and rolls back to its last commit after an error. An error that it can't
roll back from stops it: FAILED until it is closed, or FENCED, which has closed it already.

Source: Kafka Streams, ``Task.State``; KIP-129 and KIP-892, "Error Handling", for when a task rolls back; KIP-98 for
fencing.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from stores.errors import ChangelogTimeoutError, ProducerFencedError, StoreClosedError, StoreError, StoreRestoringError
from stores.metrics import Counters, none_early
from stores.tasks.identifier import TaskId


class TaskState(StrEnum):
    """A task is in one of these at any time."""

    CREATED = "created"
    """Never opened."""
    RESTORING = "restoring"
    """``open`` or ``rebuild`` restores its stores."""
    RUNNING = "running"
    """Its stores have the last commit, and what was staged since."""
    ROLLING_BACK = "rolling back"
    """Its stores are returned to the last commit after an error."""
    ROLLBACK_PENDING = "waiting to roll back"
    """The changelog did not answer during the rollback. The next call tries again."""
    FAILED = "failed"
    """It can't roll back, or the state of its stores is unknown. Its stores and its lock are still held."""
    FENCED = "fenced"
    """Another instance owns the task. This one has closed its stores and released its lock."""
    CLOSED = "closed"
    """Its stores are closed and its lock is released. It may be opened again."""


class TaskEvent(StrEnum):
    """A reason for a transition."""

    OPEN = "open"
    RUN = "run"
    ROLL_BACK = "roll back"
    TIME_OUT = "time out"
    FAIL = "fail"
    FENCE = "fence"
    CLOSE = "close"


class Call(StrEnum):
    """A group of a task's methods that are legal in the same states. All others are legal in every state."""

    OPEN = "open, rebuild"
    WORK = "process, run, commit, input_offsets"
    READ = "store, changelog_offsets"
    CLOSE = "close"


class Row(NamedTuple):
    """The entries of one state in the table."""

    calls: Set[Call]
    """The legal calls. Before WORK, the task tries a pending rollback again, and then asks once more."""
    next: Mapping[TaskEvent, TaskState]
    """The legal transitions."""


TABLE: Mapping[TaskState, Row] = MappingProxyType(
    {
        TaskState.CREATED: Row(
            {Call.OPEN, Call.CLOSE},
            {TaskEvent.OPEN: TaskState.RESTORING, TaskEvent.CLOSE: TaskState.CLOSED},
        ),
        TaskState.RESTORING: Row(
            {Call.CLOSE},
            {TaskEvent.RUN: TaskState.RUNNING, TaskEvent.CLOSE: TaskState.CLOSED},
        ),
        TaskState.RUNNING: Row(
            {Call.WORK, Call.READ, Call.CLOSE},
            {
                TaskEvent.ROLL_BACK: TaskState.ROLLING_BACK,
                TaskEvent.FAIL: TaskState.FAILED,
                TaskEvent.FENCE: TaskState.FENCED,
                TaskEvent.CLOSE: TaskState.CLOSED,
            },
        ),
        TaskState.ROLLING_BACK: Row(
            {Call.CLOSE},
            {
                TaskEvent.RUN: TaskState.RUNNING,
                TaskEvent.TIME_OUT: TaskState.ROLLBACK_PENDING,
                TaskEvent.FAIL: TaskState.FAILED,
                TaskEvent.FENCE: TaskState.FENCED,
                TaskEvent.CLOSE: TaskState.CLOSED,
            },
        ),
        TaskState.ROLLBACK_PENDING: Row(
            {Call.CLOSE},
            {TaskEvent.ROLL_BACK: TaskState.ROLLING_BACK, TaskEvent.CLOSE: TaskState.CLOSED},
        ),
        TaskState.FAILED: Row(
            {Call.CLOSE},
            {TaskEvent.CLOSE: TaskState.CLOSED},
        ),
        TaskState.FENCED: Row(
            {Call.OPEN, Call.CLOSE},
            {TaskEvent.OPEN: TaskState.RESTORING, TaskEvent.CLOSE: TaskState.FENCED},
        ),
        TaskState.CLOSED: Row(
            {Call.OPEN, Call.CLOSE},
            {
                TaskEvent.OPEN: TaskState.RESTORING,
                # A callback may close the task while it is rolling back, which then fails on the closed stores.
                TaskEvent.FAIL: TaskState.CLOSED,
                TaskEvent.FENCE: TaskState.CLOSED,
                TaskEvent.CLOSE: TaskState.CLOSED,
            },
        ),
    }
)


class TaskLifecycle:
    """The state of one task, and the errors that belong to it. For one thread; others may call ``check`` for READ."""

    __slots__ = ("_deferred", "_failure", "_task_id", "pending_rollback", "ready", "state")

    def __init__(self, task_id: TaskId) -> None:
        self.state = TaskState.CREATED
        self.ready = False
        """RUNNING, without a deferred error: one attribute, for it is read with each record."""
        self._task_id = task_id
        self._failure: BaseException | None = None
        self.pending_rollback: tuple[BaseException, bool] | None = None
        """The error that is to be rolled back, and ``in_doubt``; None unless ROLLBACK_PENDING."""
        self._deferred: Exception | None = None

    def check(self, call: Call) -> None:
        """Raise the error of the current state unless ``call`` is legal in it. Before WORK raise a deferred error.

        Raises: StoreError; of its classes StoreClosedError, StoreRestoringError, ChangelogTimeoutError,
        ProducerFencedError; a deferred error, once.
        """
        if call is Call.WORK and self._deferred is not None and self.state is not TaskState.ROLLBACK_PENDING:
            error, self._deferred = self._deferred, None
            self.ready = self.state is TaskState.RUNNING
            raise error
        if call not in TABLE[self.state].calls:
            raise self._refusal(call)

    def allows(self, event: TaskEvent) -> bool:
        """Return whether the current state has a transition for ``event``."""
        return event in TABLE[self.state].next

    def open(self) -> None:
        """Begin to restore the stores; forget an earlier failure."""
        following = self._following(TaskEvent.OPEN)
        self._failure = self.pending_rollback = self._deferred = None
        self._enter(following)

    def rebuild(self) -> None:
        """Begin to restore the stores; keep an earlier failure until the task is opened."""
        self._enter(self._following(TaskEvent.OPEN))

    def run(self) -> None:
        """Note that all stores are at the last commit."""
        self._enter(self._following(TaskEvent.RUN))

    def roll_back(self) -> None:
        """Begin to return to the last commit."""
        self._enter(self._following(TaskEvent.ROLL_BACK))
        self.pending_rollback = None

    def time_out(self, error: BaseException, *, in_doubt: bool) -> None:
        """Keep the rollback after ``error`` pending, because the changelog does not answer."""
        following = self._following(TaskEvent.TIME_OUT)
        self.pending_rollback = error, in_doubt
        self._enter(following)

    def fail(self, error: BaseException) -> None:
        """Stop for ``error``: FENCED after a ProducerFencedError, FAILED after another one."""
        following = self._following(TaskEvent.FENCE if isinstance(error, ProducerFencedError) else TaskEvent.FAIL)
        self._failure = error
        self._enter(following)

    def close(self) -> None:
        """Note that the stores are closed; drop a deferred error and a pending rollback."""
        following = self._following(TaskEvent.CLOSE)
        self.pending_rollback = self._deferred = None
        self._enter(following)

    def defer(self, error: Exception) -> None:
        """Let the next WORK raise ``error``, which came from a commit for another task's sake."""
        self._deferred = error
        self.ready = False

    @property
    def commits_on_close(self) -> bool:
        """True if a clean ``close`` commits first: while RUNNING, and to raise a deferred error."""
        return self.state is TaskState.RUNNING or self._deferred is not None

    def _following(self, event: TaskEvent) -> TaskState:
        following = TABLE[self.state].next.get(event)
        if following is None:
            raise StoreError(
                f"task {self._task_id} is {self.state} and can't {event}: don't open or close it in its own callbacks"
            )
        return following

    def _enter(self, state: TaskState) -> None:
        # After the errors of the state, which other threads then read.
        self.state = state
        self.ready = state is TaskState.RUNNING and self._deferred is None

    def _refusal(self, call: Call) -> StoreError:
        task, state, rollback, failure = f"task {self._task_id}", self.state, self.pending_rollback, self._failure
        if call is Call.OPEN:
            return StoreError(f"{task} is open already")
        if rollback is not None:
            late = ChangelogTimeoutError(
                f"the changelog does not answer, and {task} can't return to its last commit: try again"
            )
            late.__cause__ = rollback[0]
            return late
        if state is TaskState.RESTORING or state is TaskState.ROLLING_BACK:
            return StoreRestoringError(f"{task} is returning to its last commit: ask again later")
        if isinstance(failure, ProducerFencedError):
            return ProducerFencedError(f"{task} is owned by another instance now; this one is closed")
        if failure is not None:
            error = StoreError(f"{task} has failed ({failure}): close it and open it again")
            error.__cause__ = failure
            return error
        return StoreClosedError(f"{task} is not open: open() it first")


@dataclass(slots=True)
class TaskCounters(Counters):
    """The counters of a task, on its own thread. ``stores.metrics`` is read from them."""

    rollback_records_total: int = 0
    punctuate_total: int = 0
    skipped_total: int = 0
    dead_letter_total: int = 0
    early_commit_total: dict[str, int] = field(default_factory=none_early)

    def committed_early(self, cause: str) -> None:
        """Count a commit that came before the interval was up, under its ``EarlyCommitCause``."""
        self.early_commit_total[cause] += 1

    def rolled_back(self, records: int) -> None:
        """Count a transaction with ``records`` input records that was rolled back."""
        self.rollback_total += 1
        self.rollback_records_total += records

    def read(self) -> dict[str, Any]:
        """Return the fields of ``TaskMetrics`` that are counted here."""
        return {
            **Counters.read(self),
            "rollback_records_total": self.rollback_records_total,
            "punctuate_total": self.punctuate_total,
            "skipped_total": self.skipped_total,
            "dead_letter_total": self.dead_letter_total,
            "early_commit_total": dict(self.early_commit_total),
        }
