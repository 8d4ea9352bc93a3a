"""The local copies of stores in a worker's state directory: their progress, and the removal of those that nobody needs.

Source: KIP-441, "Computing the most-caught-up instances"; KIP-892, "Offsets for Consumer Rebalances"; Kafka Streams,
``state.cleanup.delay.ms`` and ``StateDirectory.cleanRemovedTasks``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from stores.errors import StoreError
from stores.interface import TopicPartition
from stores.tasks.config import TaskConfig
from stores.tasks.directory.placement import stored_offsets
from stores.tasks.directory.state_directory import StateDirectory, Watch, offset_sum
from stores.tasks.identifier import Home, TaskId
from stores.worker.definition import Definition

_log = logging.getLogger(__name__)

LOOKS = 4
"""The number of looks in the delay: a folder goes after the delay and up to one part of it."""
LOOK_S_MIN, LOOK_S_MAX = 1.0, 300.0
END_S = 1.0
"""The time to wait for the thread's end: the removal of a large folder goes on at the next start."""

OpenOffsets = Callable[[], Mapping[TaskId, Mapping[TopicPartition, int | None]]]


class LocalCopies:
    """The copies in the state directory of ``tasks``: tasks, standby copies, and files that earlier ones have left.

    ``open_offsets`` return the offsets of the stores that this worker has open, by task: those are not read from files.
    For the worker's own thread.

    Raises: StoreUnavailableError if the directory can't be used.
    """

    def __init__(self, application: Definition, tasks: TaskConfig, open_offsets: Sequence[OpenOffsets]) -> None:
        self._application, self._tasks, self._open_offsets = application, tasks, open_offsets
        self.directory = str(StateDirectory(tasks.state_dir).process_id())
        """Its ID."""
        self._closed: dict[TaskId, int] = {}
        self._open: frozenset[TaskId] = frozenset()
        self._outdated = False
        self._read_files()

    def read_again(self) -> None:
        """Read the files at the next question: some were removed. For any thread."""
        self._outdated = True

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
            offsets = stored_offsets(
                self._tasks.state_dir, self._application.topology, application_id=self._application.name
            )
            self._closed = {
                task_id: offset_sum(dict(chain.from_iterable(each.items() for each in stores.values())))
                for task_id, stores in offsets.items()
            }


class Cleaner:
    """Cleans the state directory of ``tasks`` from time to time: folders of tasks that went elsewhere, unnamed stores.

    ``needed`` returns the tasks and stores that this worker has, or is to have, opened or not; ``cleaned`` is called
    after folders were removed. What any process has open is locked, and stays. So does a folder for the whole delay
    after this worker has first seen it, whatever the system's time says.
    """

    def __init__(
        self, tasks: TaskConfig, needed: Callable[[], Collection[Home]], cleaned: Callable[[], None] = lambda: None
    ) -> None:
        self._tasks, self._needed, self._cleaned = tasks, needed, cleaned
        self._watch = Watch(tasks.state_cleanup_delay_s)
        self._told = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleaner", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(END_S)

    def look(self) -> None:
        """Remove what is due. An error is logged: the worker does not need the room."""
        try:
            for home in self._tasks.clean(self._watch, self._needed()):
                _log.info("removed the folder of %s, which is not used any more", home)
                self._cleaned()
        except StoreError as error:
            if str(error) != self._told:
                self._told = str(error)
                _log.warning("the state directory is not cleaned, which is tried again: %s", error)

    def _run(self) -> None:
        pause_s = min(max(self._tasks.state_cleanup_delay_s / LOOKS, LOOK_S_MIN), LOOK_S_MAX)
        while not self._stopping.wait(pause_s):
            self.look()
