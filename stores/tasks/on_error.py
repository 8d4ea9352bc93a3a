"""The choices for a record that can't be processed: raise, leave the record out, or send it to a dead-letter topic.

They are one choice for records whose function raises, and one for those that the serdes of their topic can't read.

Source: KIP-1033 (``ProcessingExceptionHandler``), KIP-161 (``DeserializationExceptionHandler``), KIP-1034 (dead letter
queue, and the names of its headers).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from stores.changelog.arguments import check_name
from stores.changelog.interface import Changelog, Headers, Record
from stores.contract.levels import Level
from stores.errors import ChangelogError, ConfigError, DeserializationError, StoreError
from stores.interface import TopicPartition
from stores.tasks.context import BatchFunction, ProcessFunction, TaskContext
from stores.tasks.record_batch import Batch, offsets_text, partition_text, place_of
from stores.tasks.record_undo import RecordUndo
from stores.tasks.task_state import TaskCounters
from stores.topic import Topic, topic_name

C = TypeVar("C")

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
    on_error: object, inputs: Iterable[TopicPartition], name: str = "on_error", owner: str = "the task"
) -> OnError | DeadLetterTopic:
    """Return the choice for a member, its text or a ``DeadLetterTopic``. Raises: TypeError, ConfigError."""
    if isinstance(on_error, DeadLetterTopic):
        if on_error.topic in {topic for topic, _ in inputs}:
            raise ConfigError(
                f"the dead-letter topic {on_error.topic!r} is an input of {owner}, which would process its records "
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


def check_dead_letter_topic(on_error: OnError | DeadLetterTopic, changelog: Changelog, owner: str) -> None:
    """Check that the topic of dead letters exists, if there is one. Raises: ChangelogError."""
    if isinstance(on_error, DeadLetterTopic) and on_error.topic not in changelog.topics():
        raise ChangelogError(
            f"the dead-letter topic {on_error.topic!r} of {owner} does not exist: create it with create_topic()"
        )


def origin_note(task: object, partition: TopicPartition, record: Record) -> str:
    """Return the note that names task and partition, and a record's offset and key, or a batch's offsets.

    A long key is cut.
    """
    place = f"of {partition_text(partition)}"
    if isinstance(record.value, Batch):
        return (
            f"Task {task} was processing {offsets_text(record.value)} {place}, a batch of {len(record.value)} records."
        )
    key = repr(record.key)
    if len(key) > _KEY_CHARACTERS_MAX:
        key = f"{key[:_KEY_CHARACTERS_MAX]}... ({len(record.key or b''):,} bytes)"
    return f"Task {task} was processing offset {record.offset} {place}, key {key}."


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
    record = context.record
    if isinstance(on_error, DeadLetterTopic):
        headers = dead_letter_headers(error, context.partition, record)
        context.forward(on_error.topic, record.key, record.value, record.timestamp_ms, headers)
        counters.dead_letter_total += 1
    counters.skipped_total += 1
    # Not the error's text: it may contain values.
    _log.warning(
        "task %s left out offset %d of %s: %s raised %s",
        context.task_id,
        record.offset,
        partition_text(context.partition),
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
        function: Callable[[Any, TaskContext], None],
        on_error: OnError | DeadLetterTopic,
        undo: RecordUndo,
        counters: TaskCounters,
    ) -> None:
        self._function, self._on_error, self._undo, self._counters = function, on_error, undo, counters

    def __call__(self, record: Record[Any, Any], context: TaskContext) -> None:
        error = self._error_of(record, context)
        if error is not None:
            _leave_out(self._on_error, context, self._counters, "its function", error)

    def _error_of(self, argument: object, context: TaskContext) -> Exception | None:
        """Call the function. Return its exception, with all effects of the call undone, or None."""
        undo, requested, current = self._undo, context._commit_requested, context.record
        undo.begin()
        try:
            self._function(argument, context)
        except BaseException as error:
            # After a failed write, or in a task that its function has closed, there is nothing to continue with.
            fatal = isinstance(error, StoreError) or context._failure is not None or context.record is not current
            if fatal or not isinstance(error, Exception):
                undo.drop()
                raise
            error.add_note(origin_note(context.task_id, context.partition, current))
            undo.undo()
            context._commit_requested = requested
            return error
        undo.keep()
        return None


def read_whole(function: Callable[[Batch[Any, Any], C], None], batch: Batch[Any, Any], context: C) -> None:
    """Call ``function``. Raises: the error of records that it could not read, also if it has caught that error."""
    batch._errors.clear()  # Those of the batch that this one is a half of.
    function(batch, context)
    if batch._errors:
        raise batch._errors[0]


class GuardedBatches(GuardedFunction):
    """A function of batches, with ``on_error`` applied to the records that fail alone.

    A batch whose function raises is undone and halved, until each part succeeds or is a single record that fails. The
    parts keep the order of the records.
    """

    def __call__(self, batch: Any, context: TaskContext) -> None:
        whole, parts = context.record, [batch]
        while parts:
            part = parts.pop()
            context.record = place = place_of(part)
            try:
                error = self._error_of(part, context)
            except BaseException as fatal:
                if context.record is place:  # Otherwise the function has closed its task.
                    context.record = whole
                    if len(part) == 1 < len(batch):
                        fatal.add_note(origin_note(context.task_id, context.partition, place))
                raise
            if error is None:
                continue
            if len(part) == 1:
                _leave_out(self._on_error, context, self._counters, "its function", error)
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
        context.record = whole


class BatchedFunction:
    """``function`` of batches in the place of one of records: it gets the batch that is the value of a record.

    Any other record is a batch of one. With ``on_deserialization_error`` the function does not get the records that
    the serdes of ``topics`` can't read.
    """

    def __init__(
        self,
        function: Callable[[Batch[Any, Any], TaskContext], None],
        topics: Mapping[TopicPartition, Topic[Any, Any]],
        on_error: OnError | DeadLetterTopic,
        counters: TaskCounters,
    ) -> None:
        self._function, self._topics, self._on_error, self._counters = function, topics, on_error, counters

    def __call__(self, record: Record[Any, Any], context: TaskContext) -> None:
        batch = record.value if isinstance(record.value, Batch) else Batch(context.partition, [record])
        topic = self._topics.get(context.partition)
        if topic is not None:
            batch = batch.read_by(topic)
            if self._on_error is not OnError.RAISE:
                batch = self._readable(batch, topic, context)
                if not batch:
                    return
        self._function(batch, context)

    def _readable(self, batch: Batch[Any, Any], topic: Topic[Any, Any], context: TaskContext) -> Batch[Any, Any]:
        """Return the batch without the records that can't be read, which are left out."""
        with suppress(DeserializationError):
            batch.keys, batch.values  # noqa: B018
            return batch
        readable, whole = [], context.record
        for record in batch._raw:
            try:
                topic.decoded(record)
                readable.append(record)
            except DeserializationError as error:
                context.record = record
                error.add_note(origin_note(context.task_id, context.partition, record))
                _leave_out(self._on_error, context, self._counters, "a serde", error)
        context.record = whole
        return Batch(batch.partition, readable, topic)


def guarded(
    process: ProcessFunction | None,
    process_batch: BatchFunction | None,
    on_errors: tuple[OnError | DeadLetterTopic, OnError | DeadLetterTopic],
    inputs: Mapping[TopicPartition, Topic[Any, Any] | None],
    counters: TaskCounters,
) -> tuple[ProcessFunction, RecordUndo | None]:
    """Return the function for records of bytes of ``inputs``, with both choices applied, and the undo that it needs."""
    on_error, on_deserialization_error = on_errors
    undo = None if on_error is OnError.RAISE else RecordUndo()
    topics = {partition: topic for partition, topic in inputs.items() if topic is not None}
    if process is None:
        assert process_batch is not None
        batches = partial(read_whole, process_batch)
        guarded_batches = batches if undo is None else GuardedBatches(batches, on_error, undo, counters)
        return BatchedFunction(guarded_batches, topics, on_deserialization_error, counters), undo
    function = process if undo is None else GuardedFunction(process, on_error, undo, counters)
    if topics:
        function = DeserializingFunction(function, topics, on_deserialization_error, counters)
    return function, undo
