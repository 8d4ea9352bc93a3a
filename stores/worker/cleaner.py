"""The thread that removes what this machine no longer needs: folders of tasks that went elsewhere, and unnamed stores.

Source: Kafka Streams, ``state.cleanup.delay.ms`` and ``StateDirectory.cleanRemovedTasks``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from stores.errors import StoreError
from stores.tasks.config import TaskConfig
from stores.tasks.directory.state_directory import Watch
from stores.tasks.identifier import Home

_log = logging.getLogger(__name__)

LOOKS = 4
"""The number of looks in the delay: a folder goes after the delay and up to one part of it."""
LOOK_S_MIN, LOOK_S_MAX = 1.0, 300.0
END_S = 1.0
"""The time to wait for the thread's end: the removal of a large folder goes on at the next start."""


class Cleaner:
    """Cleans the state directory of ``tasks`` from time to time, by ``state.cleanup.delay.ms``.

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
