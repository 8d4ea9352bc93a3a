"""What can go wrong, named by what the caller should do next.

Engine exceptions never leave this package: they are chained (``__cause__``) to one of these. Wrong types
are ``TypeError`` and refused values ``ValueError``, as everywhere in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class StoreError(Exception):
    """Anything the library reports about a store, a changelog or a task."""


class ConfigError(StoreError, ValueError):
    """A backend, property or setting that does not exist or does not fit. Correct the call; nothing was changed."""


class StoreClosedError(StoreError):
    """The store, reader or iterator was closed. Open it again."""


class WrongThreadError(StoreError):
    """Only the thread that opened a store may write to it (KIP-892, single writer). Read through ``read_only``."""


class StoreLockedError(StoreError):
    """Another process, or another handle in this one, has the store open. Close that one first."""


class StoreIncompatibleError(StoreError):
    """The folder holds something else: another backend's store, or no store at all.

    Open it with what wrote it, or choose another path.
    """


class SerdeMismatchError(StoreIncompatibleError):
    """Bytes in the store are none that the description's serde ever writes; the message names their key.

    Open the store with the serde that wrote them. Wiping and restoring the store would not help: its changelog has the
    same bytes, and damage at rest is detected before a serde sees it (``StoreCorruptedError``).
    """


class StoreTooNewError(StoreIncompatibleError):
    """A newer release wrote the store, in a format that this one can't read. Nothing was changed.

    Open it with that release, or wipe it and restore it from the changelog, as a task does.
    """


class StoreCorruptedError(StoreError):
    """The local state cannot be trusted. Wipe it and restore it from the changelog."""


class StoreMisplacedError(StoreError):
    """Stores lie under another sub-topology's number than the topology gives them, and may not be moved. Nothing was.

    ``misplaced`` has for each of them its name, where it is and where it belongs. Let the task relocate them, or run
    ``python -m stores.relocate``. Source: KIP-816, ``automatic.state.relocation``.
    """

    def __init__(self, message: str, misplaced: Sequence[tuple[str, Any, Any]]) -> None:
        super().__init__(message)
        self.misplaced: list[tuple[str, Any, Any]] = list(misplaced)


class StoreUnavailableError(StoreError):
    """The path or the disk refuses: no permission, not a folder, no space to create. Mend that and open again."""


class NotUpToBoundError(StoreError):
    """The state has not reached the position that the query asks for. Ask again later, or ask another instance.

    ``behind`` says how many offsets are missing, by ``TopicPartition``. Source: KIP-796, ``NOT_UP_TO_BOUND``.
    """

    def __init__(self, message: str, behind: Mapping[Any, int]) -> None:
        super().__init__(message)
        self.behind: dict[Any, int] = dict(behind)


class StoreRestoringError(StoreError):
    """The task is restoring the store from its changelog, and what it holds is no state yet. Ask again later."""


class CommitFailedError(StoreError):
    """A commit changed nothing that can be read, and the staged writes are as they were.

    Where ``reopen`` is false the commit may simply be tried again. Where it is true the engine can't tell how
    much reached the disk, or has given up what was staged: close the store, open it again, read its committed offset
    and go on from there.
    """

    def __init__(self, message: str, *, reopen: bool = False) -> None:
        super().__init__(message)
        self.reopen = reopen


class ChangelogError(StoreError):
    """The changelog refuses: unknown topic, no open transaction, a file that is none. Nothing was written."""


class ChangelogTimeoutError(ChangelogError):
    """The changelog did not answer in time, and has nothing of what it was given. Try again.

    A task whose commit raises this is back at its last commit, with its stores: give it the records since then again.
    """


class CommitInDoubtError(ChangelogError):
    """The changelog may have taken a commit or not. Open another producer of the same id, then read what is there."""


class ProducerFencedError(ChangelogError):
    """A newer producer has taken this transactional id. Stop: another instance owns the task now."""


class ChangelogLostError(ChangelogError):
    """The changelog has never had a record, and a store has been filled from it: its topic, or its file, is another.

    Put it back. To begin anew with an empty one, remove the task's folder in the state directory first.
    """


class OffsetOutOfRangeError(ChangelogError):
    """The offset asked for lies outside the changelog. Wipe the store and restore it from the log's start."""


class TaskCorruptedError(StoreError):
    """A store and its changelog do not fit together. Wipe the store and restore it; a task does, and tells why.

    Source: KIP-892, "Error Handling".
    """
