"""The thread of a worker's global stores: it opens them, brings them to the ends of their topics, and follows these.

Source: Kafka Streams, ``GlobalStreamThread``.
"""

from __future__ import annotations

import logging
import threading

from stores.errors import ChangelogTimeoutError
from stores.tasks.global_stores import GlobalStores
from stores.telemetry import MetricsRegistry

_log = logging.getLogger(__name__)

FOLLOW_S = 0.1
"""The time between two looks for new records, once the stores have all. Source: Kafka Streams, ``poll.ms``."""


class GlobalThread:
    """The thread of ``stores``, which ``metrics`` gets once they are open.

    All methods are for the worker's own thread, ``lag`` and ``failure`` for any.
    If the changelog does not answer in time, the stores stay as they are, and the thread tries again.
    """

    def __init__(self, stores: GlobalStores, metrics: MetricsRegistry | None = None) -> None:
        self.failure: BaseException | None = None
        """The error that has ended the thread."""
        self.lag: int | None = None
        """The number of offsets that the stores lacked at the last look; None while they are not open."""
        self._stores, self._metrics = stores, metrics
        self._told = ""
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="global-thread", daemon=True)
        self._thread.start()

    def await_ready(self, wait_s: float) -> bool:
        """Wait until the stores have the ends that their topics had at first, or the thread has ended.

        Return False if that takes longer.
        """
        return self._ready.wait(wait_s)

    def stop(self) -> None:
        """Let the thread close the stores, and end. No task may read them any more."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return False if that takes too long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._open()
            self._ready.set()
            while not self._stopping.is_set():
                self._follow()
        except _StoppingError:
            pass
        except BaseException as error:
            _log.error("the thread of the global stores ends after %s", type(error).__name__)
            self.failure = error
            self._ready.set()
            self._stopping.wait()  # The tasks read the stores until then.
        finally:
            self._ready.set()
            self._close()

    def _close(self) -> None:
        try:
            self._stores.close()
        except BaseException as error:
            self.failure = self.failure or error

    def _open(self) -> None:
        while True:
            try:
                self._stores.open(self._progress)
                break
            except ChangelogTimeoutError as error:
                self._try_later(error)
        self.lag, self._told = 0, ""
        if self._metrics is not None:
            for path, store in self._stores.opened().items():
                self._metrics.add(store, {"path": str(path)})

    def _progress(self, left: int) -> None:
        self.lag = left
        if self._stopping.is_set():
            raise _StoppingError

    def _follow(self) -> None:
        try:
            while self._stores.follow():
                self._progress(self._stores.lag())
            self.lag, self._told = 0, ""
        except ChangelogTimeoutError as error:
            self._try_later(error)
        self._stopping.wait(FOLLOW_S)

    def _try_later(self, error: ChangelogTimeoutError) -> None:
        if str(error) != self._told:
            self._told = str(error)
            _log.warning("the global stores do not follow their topics, and try again: %s", error)
        if self._stopping.wait(FOLLOW_S):
            raise _StoppingError


class _StoppingError(Exception):
    """Raised in the thread, which is to end."""
