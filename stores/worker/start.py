"""The start of a worker: its changelog answers, and all topics exist."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stores.changelog.interface import Changelog
from stores.errors import ChangelogTimeoutError
from stores.worker.definition import Definition, prepared_topics

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5

OpenChangelog = Callable[[Callable[[], None]], Changelog]
"""Opens a changelog, and calls a function again and again while it waits; an exception of that ends it."""


class StoppedError(Exception):
    """The worker is to end before it has begun."""


def open_prepared(
    application: Definition, open_changelog: OpenChangelog, stopped: threading.Event, *, fencing: bool, timeout_s: float
) -> tuple[Changelog, dict[str, int]]:
    """Return the open changelog, and the sub-topology of each leading topic (``prepared_topics``).

    A changelog that does not answer is asked again for ``timeout_s``; the log says so. Raises: ChangelogTimeoutError
    after that time; StoppedError once ``stopped`` is set; as ``prepared_topics``.
    """

    def check_stopped() -> None:
        if stopped.is_set():
            raise StoppedError

    deadline = time.monotonic() + timeout_s
    text = ""
    while True:
        check_stopped()
        try:
            changelog = open_changelog(check_stopped)
            try:
                return changelog, prepared_topics(application, changelog, fencing=fencing)
            except BaseException:
                changelog.close()
                raise
        except ChangelogTimeoutError as error:
            if time.monotonic() >= deadline:
                error.add_note(f"The worker has not begun within task.timeout.ms ({timeout_s:g} s).")
                raise
            if str(error) != text:
                text = str(error)
                _log.warning("the worker can't begin yet, and asks again for up to %g s: %s", timeout_s, text)
        stopped.wait(_PAUSE_S)
