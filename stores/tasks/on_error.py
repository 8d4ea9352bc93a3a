"""The choices for a record whose function raises: raise, leave the record out, or send it to a dead-letter topic.

Source: KIP-1033 (``ProcessingExceptionHandler``), KIP-1034 (dead letter queue, and the names of its headers).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from stores.changelog.arguments import check_name
from stores.changelog.interface import Changelog, Headers, Record
from stores.contract.levels import Level
from stores.errors import ChangelogError, ConfigError, StoreError
from stores.interface import TopicPartition
from stores.tasks.context import ProcessFunction, RecordUndo, TaskContext
from stores.tasks.task_state import TaskCounters

_TEXT_CHARACTERS_MAX = 16_384
"""The most characters of a header: a broker refuses records that are too large."""
_KEY_CHARACTERS_MAX = 100


class OnError(Level):
    """The effect of an exception of the user's function on its task."""

    RAISE = "raise"
    """Roll back to the last commit, and raise the exception."""
    SKIP = "skip"
    """Undo all effects of the record, count it, and continue with the next one."""


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """As ``OnError.SKIP``, and the record is also sent to ``topic``, with the error in its headers.

    It is an output: it is committed with the outputs, the stores and the input offsets of its transaction, or not at
    all. Key, value, time and headers are those of the input record. The headers ``__streams.errors.exception``,
    ``.message``, ``.stacktrace``, ``.topic``, ``.partition`` and ``.offset`` are added, as UTF-8 text.

    Raises: TypeError, ValueError for what is no name of a topic.
    """

    topic: str

    def __post_init__(self) -> None:
        check_name("topic's name", self.topic)


def checked_on_error(on_error: object, inputs: Iterable[TopicPartition]) -> OnError | DeadLetterTopic:
    """Return the choice for a member, its text or a ``DeadLetterTopic``. Raises: TypeError, ConfigError."""
    if isinstance(on_error, DeadLetterTopic):
        if on_error.topic in {topic for topic, _ in inputs}:
            raise ConfigError(
                f"the dead-letter topic {on_error.topic!r} is an input of the task, which would process its records "
                "again and again: choose another topic"
            )
        return on_error
    if not isinstance(on_error, str):
        raise TypeError(
            f"on_error is 'raise', 'skip' or DeadLetterTopic('topic'), not {type(on_error).__name__}: write one of them"
        )
    try:
        return OnError(on_error)
    except ValueError as error:
        raise ConfigError(
            f"on_error can't be {on_error!r}: it is 'raise', 'skip', or DeadLetterTopic({on_error!r}) for a topic"
        ) from error


def check_dead_letter_topic(on_error: OnError | DeadLetterTopic, changelog: Changelog, task: object) -> None:
    """Check that the topic of dead letters exists, if there is one. Raises: ChangelogError."""
    if isinstance(on_error, DeadLetterTopic) and on_error.topic not in changelog.topics():
        raise ChangelogError(
            f"the dead-letter topic {on_error.topic!r} of task {task} does not exist: create it with create_topic()"
        )


def origin_note(task: object, partition: TopicPartition, record: Record) -> str:
    """Return the note that names a record's task, partition, offset and key. A long key is cut."""
    key = repr(record.key)
    if len(key) > _KEY_CHARACTERS_MAX:
        key = f"{key[:_KEY_CHARACTERS_MAX]}... ({len(record.key or b''):,} bytes)"
    return f"Task {task} was processing offset {record.offset} of {partition.topic}-{partition.partition}, key {key}."


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:
        return f"its text is missing: __str__ raised {type(failed).__name__}"


def dead_letter_headers(error: BaseException, partition: TopicPartition, record: Record) -> Headers:
    """Return the headers of a dead letter: those of the record, then the error and the record's origin."""
    kind = type(error)
    headers = {
        "exception": kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": _message(error),
        # From the end: there is the error itself.
        "stacktrace": "".join(traceback.format_exception(error))[-_TEXT_CHARACTERS_MAX:],
        "topic": partition.topic,
        "partition": str(partition.partition),
        "offset": str(record.offset),
    }
    texts = ((f"__streams.errors.{name}", text[:_TEXT_CHARACTERS_MAX]) for name, text in headers.items())
    return (*record.headers, *((name, text.encode("utf-8", "replace")) for name, text in texts))


_log = logging.getLogger(__name__)


class GuardedFunction:
    """``function``, with ``on_error`` applied. An exception that it does not raise has left nothing of the record.

    Errors of the library (``StoreError``) are always raised: a store, the changelog or a name is wrong, and so it is
    for the next records. So are exceptions that are no ``Exception``, such as KeyboardInterrupt.
    """

    def __init__(
        self,
        function: ProcessFunction,
        on_error: OnError | DeadLetterTopic,
        undo: RecordUndo,
        counters: TaskCounters,
    ) -> None:
        self._function, self._on_error, self._undo, self._counters = function, on_error, undo, counters

    def __call__(self, record: Record, context: TaskContext) -> None:
        undo, requested = self._undo, context._commit_requested
        undo.begin()
        try:
            self._function(record, context)
        except BaseException as error:
            fatal = not isinstance(error, Exception) or isinstance(error, StoreError)
            # After a failed write, or in a task that its function has closed, there is nothing to continue with.
            if fatal or context._failure is not None or context.record is not record:
                undo.drop()
                raise
            error.add_note(origin_note(context.task_id, context.partition, record))
            undo.undo()
            context._commit_requested = requested
            self._leave_out(record, context, error)
            return
        undo.keep()

    def _leave_out(self, record: Record, context: TaskContext, error: BaseException) -> None:
        topic, number = context.partition
        if isinstance(self._on_error, DeadLetterTopic):
            headers = dead_letter_headers(error, context.partition, record)
            context.forward(self._on_error.topic, record.key, record.value, record.timestamp_ms, headers)
            self._counters.dead_letter_total += 1
        self._counters.skipped_total += 1
        # Not the error's text: it may contain values.
        _log.warning(
            "task %s left out offset %d of %s-%d: its function raised %s",
            context.task_id,
            record.offset,
            topic,
            number,
            type(error).__qualname__,
        )
