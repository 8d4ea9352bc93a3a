"""The choices for a record that can't be processed: raise, leave the record out, or send it to a dead-letter topic.

They are one choice for records whose function raises, and one for those that the serdes of their topic can't read.

Source: KIP-1033 (``ProcessingExceptionHandler``), KIP-161 (``DeserializationExceptionHandler``), KIP-1034 (dead letter
queue, and the names of its headers).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stores.changelog.arguments import check_name
from stores.changelog.interface import Changelog, Headers, Record
from stores.contract.levels import Level
from stores.errors import ChangelogError, ConfigError, DeserializationError, StoreError
from stores.interface import TopicPartition
from stores.tasks.context import ProcessFunction, RecordUndo, TaskContext
from stores.tasks.task_state import TaskCounters
from stores.topic import Topic, topic_name

_TEXT_CHARACTERS_MAX = 16_384
"""The most characters of a header: a broker refuses records that are too large."""
_KEY_CHARACTERS_MAX = 100


class OnError(Level):
    """The effect on a task of an exception of its function, or of a record that can't be read."""

    RAISE = "raise"
    """Roll back to the last commit, and raise the exception."""
    SKIP = "skip"
    """Undo all effects of the record, count it, and continue with the next one."""


@dataclass(frozen=True, slots=True, init=False)
class DeadLetterTopic:
    """As ``OnError.SKIP``, and the record is also sent to ``topic``, with the error in its headers.

    It is an output: it is committed with the outputs, the stores and the input offsets of its transaction, or not at
    all. The bytes of key and value, time and headers are those of the input record. The headers
    ``__streams.errors.exception``, ``.message``, ``.stacktrace``, ``.topic``, ``.partition`` and ``.offset`` are added,
    as UTF-8 text. A record that can't be read has the exception ``stores.errors.DeserializationError``.

    Raises: TypeError, ValueError for what is no name of a topic.
    """

    topic: str

    def __init__(self, topic: str | Topic[Any, Any]) -> None:
        object.__setattr__(self, "topic", topic_name(topic))
        check_name("topic's name", self.topic)


def checked_on_error(
    on_error: object, inputs: Iterable[TopicPartition], name: str = "on_error"
) -> OnError | DeadLetterTopic:
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
            f"{name} is 'raise', 'skip' or DeadLetterTopic('topic'), not {type(on_error).__name__}: write one of them"
        )
    try:
        return OnError(on_error)
    except ValueError as error:
        raise ConfigError(
            f"{name} can't be {on_error!r}: it is 'raise', 'skip', or DeadLetterTopic({on_error!r}) for a topic"
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


def _leave_out(
    on_error: OnError | DeadLetterTopic, context: TaskContext, counters: TaskCounters, cause: str, error: BaseException
) -> None:
    """Leave out the current record, of whose effects none is left: count it, and send it to the topic of ``on_error``.

    ``cause`` says what raised ``error``.
    """
    record, (topic, number) = context.record, context.partition
    if isinstance(on_error, DeadLetterTopic):
        headers = dead_letter_headers(error, context.partition, record)
        context.forward(on_error.topic, record.key, record.value, record.timestamp_ms, headers)
        counters.dead_letter_total += 1
    counters.skipped_total += 1
    # Not the error's text: it may contain values.
    _log.warning(
        "task %s left out offset %d of %s-%d: %s raised %s",
        context.task_id,
        record.offset,
        topic,
        number,
        cause,
        type(error).__qualname__,
    )


class DeserializingFunction:
    """``function``, for records of bytes of ``topics``: it gets what the serdes read. Else ``on_error`` is applied."""

    def __init__(
        self,
        function: ProcessFunction,
        topics: Mapping[TopicPartition, Topic[Any, Any]],
        on_error: OnError | DeadLetterTopic,
        counters: TaskCounters,
    ) -> None:
        self._function, self._topics, self._on_error, self._counters = function, topics, on_error, counters

    def __call__(self, record: Record, context: TaskContext) -> None:
        topic = self._topics.get(context.partition)
        if topic is not None:
            try:
                record = topic.decoded(record)
            except DeserializationError as error:
                if self._on_error is OnError.RAISE:
                    raise
                error.add_note(origin_note(context.task_id, context.partition, record))
                _leave_out(self._on_error, context, self._counters, "a serde", error)
                return
        self._function(record, context)


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

    def __call__(self, record: Record[Any, Any], context: TaskContext) -> None:
        undo, requested, current = self._undo, context._commit_requested, context.record
        undo.begin()
        try:
            self._function(record, context)
        except BaseException as error:
            fatal = not isinstance(error, Exception) or isinstance(error, StoreError)
            # After a failed write, or in a task that its function has closed, there is nothing to continue with.
            if fatal or context._failure is not None or context.record is not current:
                undo.drop()
                raise
            error.add_note(origin_note(context.task_id, context.partition, current))
            undo.undo()
            context._commit_requested = requested
            _leave_out(self._on_error, context, self._counters, "its function", error)
            return
        undo.keep()


def guarded(
    function: ProcessFunction,
    on_errors: tuple[OnError | DeadLetterTopic, OnError | DeadLetterTopic],
    inputs: Mapping[TopicPartition, Topic[Any, Any] | None],
    counters: TaskCounters,
) -> tuple[ProcessFunction, RecordUndo | None]:
    """Return ``function`` for records of bytes of ``inputs``, with both choices applied, and the undo that it needs."""
    on_error, on_deserialization_error = on_errors
    undo = None
    if on_error is not OnError.RAISE:
        undo = RecordUndo()
        function = GuardedFunction(function, on_error, undo, counters)
    topics = {partition: topic for partition, topic in inputs.items() if topic is not None}
    if topics:
        function = DeserializingFunction(function, topics, on_deserialization_error, counters)
    return function, undo
