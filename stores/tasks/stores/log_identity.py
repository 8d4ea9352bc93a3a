"""The log that a store follows, and the age that the store may have: a topic and an offset alone do not tell both.

A topic that was deleted and created again has another ID under the same name. A store keeps the ID of its log as a
mark. What it has of the other log is wiped, even if the new log has the store's offset by now.

A store that was not changed for long may lack deletions: a compacted log drops a tombstone some time after it was
written, in Kafka after the topic's ``delete.retention.ms``. A store that has not read it by then has the key for ever.

Source: KIP-516 (topic IDs); KIP-1259 (``state.cleanup.dir.max.age.ms``).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from stores.errors import TaskCorruptedError
from stores.files.creation import LOCK_FILE, is_complete
from stores.files.plain_files import translated_system_errors
from stores.interface import IsolationLevel, KeyValueStore
from stores.records.record_kind import is_empty
from stores.tasks.directory.state_directory import last_used
from stores.tasks.directory.task_files import StorePlan

LOG_ID: Final = "log_id"
"""The mark with the ID of the log that a store follows."""
_DAY_S = 86_400


def other_log(store: KeyValueStore, topic: str, log_id: str) -> str | None:
    """Return why the data of ``store`` are none of the log with ``log_id``; None if they may be.

    A store may have no mark, and a log may have no ID (""): both fit.
    """
    mark = store.mark(LOG_ID) if store.keeps_marks else None
    if not log_id or mark is None or mark == log_id.encode():
        return None
    return (
        f"the topic {topic!r} is another one than the store has followed: its ID is {log_id}, and was "
        f"{mark.decode('utf-8', 'replace')}. It was deleted and created again, or the changelog is another one"
    )


def keep_log_id(store: KeyValueStore, log_id: str) -> None:
    """Note that ``store`` follows the log with ``log_id``, if it has one. Nothing may be staged."""
    if log_id and store.keeps_marks and store.mark(LOG_ID) != log_id.encode():
        store.restore([], {}, marks={LOG_ID: log_id.encode()})


def check_log(store: KeyValueStore, plan: StorePlan, offset: int | None, log_id: str, aged: str | None) -> None:
    """Check that ``store``, which is at ``offset``, has data of the log with ``log_id``, and is not ``aged``.

    It then keeps the ID. Raises: TaskCorruptedError, but not for a store whose log is empty: a restore refuses that.
    """
    misfit = other_log(store, plan.partition.topic, log_id) or aged
    if misfit is None or (offset is None and not _has_data(store, plan)):
        keep_log_id(store, log_id)
    elif offset is None or not plan.is_log_empty:
        raise TaskCorruptedError(misfit)


def _has_data(store: KeyValueStore, plan: StorePlan) -> bool:
    """Return whether a store without an offset has data in whose place those of the log are to be.

    One whose checkpoint is damaged or missing may have data without a position.
    """
    return bool(store.position(IsolationLevel.READ_COMMITTED)) or not (plan.is_log_empty or is_empty(store))


def too_old(path: Path, max_age_s: float | None) -> str | None:
    """Return why the store at ``path``, which is not open, is too old to be trusted; None if it is not.

    The age is that of the last change of its files by the system's time. A file from the future is not old. Raises:
    StoreUnavailableError.
    """
    with translated_system_errors(path):
        if max_age_s is None or not is_complete(path):
            return None
        age_s = time.time() - last_used(path, lock=LOCK_FILE)
    if age_s <= max_age_s:
        return None
    return (
        f"it was last changed {age_s / _DAY_S:.2f} days ago, and state.cleanup.dir.max.age.ms is "
        f"{round(max_age_s * 1_000):,}: its log may have dropped deletions that the store lacks"
    )
