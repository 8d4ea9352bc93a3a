"""The place at which a task continues where its committed offset does not say it: there is none, or it is gone.

Wherever that is, the state is kept. It has the effects of the records before the gap, which nothing else has any more.

Source: Kafka, ``auto.offset.reset``; Kafka Streams, ``StreamThread.resetOffsets``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stores.changelog.interface import Changelog
from stores.contract.arguments import check_type
from stores.contract.levels import Level
from stores.errors import OffsetOutOfRangeError
from stores.interface import TopicPartition
from stores.registry import member
from stores.tasks.identifier import TaskId

_log = logging.getLogger(__name__)

PROPERTY = "auto.offset.reset"


class OffsetReset(Level):
    """The property ``auto.offset.reset``."""

    EARLIEST = "earliest"
    """Continue at the first offset that the topic has."""
    LATEST = "latest"
    """Continue at the end, after all records that the topic has now."""
    NONE = "none"
    """Raise an error."""


def checked_offset_reset(reset: OffsetReset | str | None) -> OffsetReset | None:
    """Return the choice for a member, its text or None. Raises: TypeError, ConfigError."""
    if reset is None:
        return None
    check_type(reset, str, "auto_offset_reset is 'earliest', 'latest', 'none' or None")
    return member(OffsetReset, PROPERTY, reset)


class InputStarts:
    """The offsets at which a task starts its inputs, and continues after one is gone. For one thread.

    Without a choice a task starts at the first offset, and an offset that is gone is an error: it would lose records
    silently. So is a committed offset that is gone while the stores have processed the input: the task would process
    records again silently. Brokers forget it if the topic is deleted, also if it is created again, and if the group has
    had no members for ``offsets.retention.minutes``.

    An offset that was chosen stays until the first commit after it: a rollback must not choose again, because
    ``latest`` would then leave out more.
    """

    def __init__(self, task_id: TaskId, changelog: Changelog, choice: OffsetReset | None) -> None:
        self._task_id, self._changelog, self._choice = task_id, changelog, choice
        self._committed: dict[TopicPartition, int | None] = {}
        self._chosen: dict[TopicPartition, int] = {}

    @property
    def has_chosen(self) -> bool:
        """True if an input continues at an offset that is not committed yet."""
        return bool(self._chosen)

    def start(self, partition: TopicPartition, committed: int | None, processed: int | None = None) -> int:
        """Return where an input begins after ``committed``. ``processed`` is the last offset that the stores reflect.

        Raises: OffsetOutOfRangeError for None by ``none``; without a choice also if there is a ``processed`` one.
        """
        if partition in self._chosen and self._committed[partition] == committed:
            return self._chosen[partition]
        self._chosen.pop(partition, None)
        self._committed[partition] = committed
        if committed is not None:
            return committed
        if processed is not None:
            return self._restart(partition, processed)
        if self._choice is OffsetReset.LATEST:
            self._chosen[partition] = offset = self._changelog.end_offset(partition)
            return offset
        start = self._changelog.start_offset(partition)
        if self._choice is OffsetReset.NONE:
            raise OffsetOutOfRangeError(
                f"task {self._task_id} has no committed offset of its input {_name(partition)}, whose first offset is "
                f"{start}, and {PROPERTY} is none: set it to earliest or latest"
            )
        return start

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The task has committed these next offsets of its inputs: a later choice is compared with them."""
        self._committed |= offsets
        self._chosen = {}

    def after(self, partition: TopicPartition, offset: int) -> int:
        """Return where an input goes on that lacks ``offset``. Raises: OffsetOutOfRangeError without a choice."""
        start, end = self._changelog.start_offset(partition), self._changelog.end_offset(partition)
        if start <= offset <= end:
            return offset  # It has it by now.
        fact = (
            f"the input {_name(partition)} of task {self._task_id} has the offsets {start} to {end}, and not {offset}, "
            "at which the task continues"
        )
        loss = (
            f"{start - offset} records are lost to it"
            if offset < start
            else "the topic was replaced or has lost records"
        )
        return self._choose(partition, f"{fact}: {loss}", start, end)

    def _restart(self, partition: TopicPartition, processed: int) -> int:
        """Return where an input begins whose committed offset is gone. Raises: OffsetOutOfRangeError."""
        start, end = self._changelog.start_offset(partition), self._changelog.end_offset(partition)
        return self._choose(
            partition,
            f"task {self._task_id} has no committed offset of its input {_name(partition)}, and its stores have "
            f"processed that up to offset {processed}: the topic, which has the offsets {start} to {end}, was deleted "
            "and created again, or the log has forgotten the offset",
            start,
            end,
        )

    def _choose(self, partition: TopicPartition, fact: str, start: int, end: int) -> int:
        """Return the offset by the choice, which stays until it is committed. Raises: OffsetOutOfRangeError."""
        if self._choice not in (OffsetReset.EARLIEST, OffsetReset.LATEST):
            raise OffsetOutOfRangeError(
                f"{fact}. Set {PROPERTY} to earliest to continue at {start}, or to latest to continue at {end}. The "
                "state is kept either way"
            )
        self._chosen[partition] = offset = start if self._choice is OffsetReset.EARLIEST else end
        _log.warning("%s. It continues at %d, by %s=%s", fact, offset, PROPERTY, self._choice)
        return offset


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
