"""The progress of a worker's local copies, by which the group prefers the most caught-up one.

Source: KIP-441, "Computing the most-caught-up instances"; KIP-892, "Offsets for Consumer Rebalances".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from stores.changelog.group import Copies
from stores.errors import StoreError
from stores.interface import TopicPartition
from stores.tasks.config import TaskConfig
from stores.tasks.directory.placement import stored_offsets
from stores.tasks.directory.state_directory import StateDirectory, offset_sum
from stores.tasks.identifier import TaskId
from stores.worker.definition import Definition

OpenOffsets = Callable[[], Mapping[TaskId, Mapping[TopicPartition, int | None]]]


class LocalCopies(Copies):
    """The copies in the state directory of ``tasks``: tasks, standby copies, and files that earlier ones have left.

    ``open_offsets`` return the offsets of the stores that this worker has open, by task: those are not read from files.
    For the worker's own thread.

    Raises: StoreUnavailableError if the directory can't be used.
    """

    def __init__(self, application: Definition, tasks: TaskConfig, open_offsets: Sequence[OpenOffsets]) -> None:
        self._application, self._tasks, self._open_offsets = application, tasks, open_offsets
        self._directory = str(StateDirectory(tasks.state_dir).process_id())
        self._closed: dict[TaskId, int] = {}
        self._open: frozenset[TaskId] = frozenset()
        self._outdated = False
        self._read_files()

    def read_again(self) -> None:
        """Read the files at the next question: some were removed. For any thread."""
        self._outdated = True

    @property
    def directory(self) -> str:
        return self._directory

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset sum of the copies of each partition that has any."""
        sums = {task_id: offset_sum(offsets) for read in self._open_offsets for task_id, offsets in read().items()}
        if self._outdated or self._open - sums.keys():
            self._outdated = False
            self._read_files()  # Some were closed, with a checkpoint; or were removed.
        self._open = frozenset(sums)
        progress: dict[TopicPartition, int] = {}
        for task_id, offsets in {**self._closed, **sums}.items():
            inputs = self._application.processors[task_id.subtopology].subtopology.inputs
            partition = TopicPartition(inputs[0], task_id.partition)
            progress[partition] = progress.get(partition, 0) + offsets
        return progress

    def _read_files(self) -> None:
        with suppress(StoreError):
            stored = stored_offsets(
                self._tasks.state_dir, self._application.topology, application_id=self._application.name
            )
            self._closed = {
                task_id: offset_sum(dict(chain.from_iterable(each.items() for each in stores.values())))
                for task_id, stores in stored.items()
            }
