"""Errors of the library, named by what the caller should do next.

Engine exceptions never leave this package: they are chained (``__cause__``) to one of these. Wrong types
are ``TypeError`` and refused values ``ValueError``, as everywhere in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any


class StoreError(Exception):
    """Anything the library reports about a store, a changelog or a task."""


class ConfigError(StoreError, ValueError):
    """A backend, property or setting that does not exist or does not fit. Correct the call; nothing was changed."""


class StoreClosedError(StoreError):
    """The store, reader or iterator was closed. Open it again."""


class WrongThreadError(StoreError):
    """Only the thread that opened a store may write to it (KIP-892, single writer). Read through ``read_only``."""


class ReadOnlyViewError(StoreError, AttributeError):
    """A view has no methods that write. Write to the store itself, on the thread that opened it."""


class StoreLockedError(StoreError):
    """Another process, or another handle in this one, has the store open. Close that one first."""


class StoreIncompatibleError(StoreError):
    """The folder holds something else: another backend's store, or no store at all.

    Open it with what wrote it, or choose another path.
    """


class SerdeMismatchError(StoreIncompatibleError):
    """Bytes in the store are none that the description's serde ever writes; the message names their key.

    Open the store with the serde that wrote them. Wiping and restoring the store would not help: its changelog has the
    same bytes, and corruption at rest is detected before a serde sees it (``StoreCorruptedError``).
    """


class DeserializationError(StoreError):
    """A record of a topic has bytes that the topic's serde can't read. The message has topic, part and offset.

    Correct the serde, or choose by ``on_deserialization_error`` to leave such records out. Source: KIP-161.
    """


class StoreTooNewError(StoreIncompatibleError):
    """A newer release wrote the store, in a format that this one can't read. Nothing was changed.

    Open it with that release, or wipe it and restore it from the changelog, as a task does.
    """


class StoreCorruptedError(StoreError):
    """The local state cannot be trusted. Wipe it and restore it from the changelog."""


def damaged(what: str) -> StoreCorruptedError:
    """Return the error for damage of a store: ``what`` says where and how. The error adds what to do."""
    return StoreCorruptedError(f"{what}: wipe the store and restore it from its changelog")


class StoreMisplacedError(StoreError):
    """Stores lie in the folder of another sub-topology than the topology gives them. Nothing was moved.

    ``misplaced`` has the name of each store, its path and its right path. Let the task relocate them, or run
    ``python -P -m stores.relocate``. Source: KIP-816, ``automatic.state.relocation``.
    """

    def __init__(self, message: str, misplaced: Sequence[tuple[str, Any, Any]]) -> None:
        super().__init__(message)
        self.misplaced: list[tuple[str, Any, Any]] = list(misplaced)


class StoreUnavailableError(StoreError):
    """The path or the disk can't be used: no permission, no folder, no space. Fix the cause and open again."""


class NotUpToBoundError(StoreError):
    """The state has not reached the position that the query asks for. Ask again later, or ask another instance.

    ``behind`` says how many offsets are missing, by ``TopicPartition``. Source: KIP-796, ``NOT_UP_TO_BOUND``.
    """

    def __init__(self, message: str, behind: Mapping[Any, int]) -> None:
        super().__init__(message)
        self.behind: dict[Any, int] = dict(behind)


class StoreRestoringError(StoreError):
    """The task is restoring the store from its changelog, so that it has no complete state yet. Ask again later."""


class CommitFailedError(StoreError):
    """A commit or a write failed without a visible change.

    If ``reopen`` is False, the staged writes are as they were, and the commit may be tried again. If it is True, it is
    unknown how much reached the disk, or the staged writes are lost: close the store, open it again, read its committed
    offset and continue from there.
    """

    def __init__(self, message: str, *, reopen: bool = False) -> None:
        super().__init__(message)
        self.reopen = reopen


def must_reopen(what: str) -> CommitFailedError:
    """Return the error for ``what``, after which only opening the store again shows what is committed."""
    return CommitFailedError(
        f"{what}. Close the store, open it again and continue from its committed offset", reopen=True
    )


class ChangelogError(StoreError):
    """The changelog refused the call: unknown topic, no open transaction, no changelog file. Nothing was written."""


class ChangelogTimeoutError(ChangelogError):
    """The changelog did not answer in time, and has nothing of what it was given. Try again.

    A task whose commit raises this is back at its last commit, with its stores: give it the records since then again.
    """


class SchemaRegistryTimeoutError(ChangelogTimeoutError):
    """The schema registry does not answer, or can't now. A task asks again, as it does with a changelog."""


class CommitInDoubtError(ChangelogError):
    """It is unknown whether the changelog has a commit. Open another producer with the same ID, then read the log."""


class ProducerFencedError(ChangelogError):
    """A newer producer has this transactional ID. Stop: another instance owns the task now.

    ``transactional_id`` is that ID, "" if it is unknown.
    """

    def __init__(self, message: str, transactional_id: str = "") -> None:
        super().__init__(message)
        self.transactional_id = transactional_id


class TransactionAbortedError(ChangelogError):
    """The transaction of a task was aborted for the sake of another task in it. Nothing of it is committed.

    The task is back at its last commit, with its stores: give it the records since then again.
    """


class ChangelogLostError(ChangelogError):
    """The changelog is empty, although a store was filled from it: its topic or its file was lost or replaced.

    Restore the changelog. To start over with an empty one, remove the task's folder in the state directory first.
    """


class OffsetOutOfRangeError(ChangelogError):
    """The requested offset is outside the changelog. Wipe the store and restore it from the changelog's start."""


class TaskCorruptedError(StoreError):
    """A store and its changelog do not fit together. Wipe the store and restore it; a task does, and reports why.

    Source: KIP-892, "Error Handling".
    """


def nearest(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """Return `` (did you mean 'NAME'?)`` with the most similar one of ``names``, or nothing.

    In brackets, it fits before any punctuation of an error's message.
    """
    close = get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""
