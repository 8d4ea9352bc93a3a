"""Tasks whose store is upgraded from text to typed, timestamped numbers, and a process that upgrades until it dies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stores.changelog import Record, SqliteChangelog
from stores.interface import IsolationLevel
from stores.records import INT64, STR, TimestampedKeyValue, ValueAndTimestamp
from stores.settings import Upgrade
from stores.tasks import StreamTask, TaskContext
from stores.tasks.directory.store_places import ENDS, beside
from stores.tests.tasks.setup import INDEXED
from stores.tests.tasks.typed import sent, store_folder, typed_task

BACKENDS = [INDEXED, "lmdb-indexed-batch", "sqlite-native", "rocksdb-dual-store"]
NEW = TimestampedKeyValue(key=STR, value=INT64)


def to_new(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
    """Format 0 is bytes, text under ``k`` and a number; format 1 is typed, under ``key-`` and the number."""
    assert version == 0
    assert record.key is not None
    key = b"key-" + record.key[1:]
    return [(key, None if record.value is None else INT64.serialize(int(record.value)))]


def write_old(record: Record, context: TaskContext) -> None:
    context.store("s").put(b"k%d" % record.offset, b"%d" % record.offset)
    if record.offset % 5 == 4:
        context.store("s").delete(b"k%d" % (record.offset - 1))


def write_new(record: Record, context: TaskContext) -> None:
    context.store("s").put(f"key-{record.offset}", record.offset, record.timestamp_ms)
    if record.offset % 5 == 4:
        context.store("s").delete(f"key-{record.offset - 1}")


def expected(count: int) -> dict[str, ValueAndTimestamp[int]]:
    return {f"key-{n}": ValueAndTimestamp(n, sent(n)[1]) for n in range(count) if not (n % 5 == 3 and n + 1 < count)}


def old_task(folder: Path, log: Any, backend: str = INDEXED, **settings: Any) -> StreamTask:
    return typed_task(folder, log, "key-value", backend, **{"store_records": None, "process": write_old, **settings})


def new_task(
    folder: Path, log: Any, backend: str = INDEXED, mode: str | None = "in_place", **settings: Any
) -> StreamTask:
    arguments = {
        "store_records": NEW,
        "store_upgrade": Upgrade(1, to_new),
        "store_upgrade_mode": mode,
        "process": write_new,
    }
    return typed_task(folder, log, "key-value", backend, **{**arguments, **settings})


def online_task(folder: Path, log: Any, backend: str = INDEXED, **settings: Any) -> StreamTask:
    """The old function, with the new store being built beside the old one."""
    upgrade = Upgrade(
        1, settings.pop("convert", to_new), online=True, records=NEW, on_upgrade=settings.pop("told", None)
    )
    return old_task(folder, log, backend, store_upgrade=upgrade, store_upgrade_mode="in_place", **settings)


def rewriting_task(folder: Path, log: Any, backend: str = INDEXED, **settings: Any) -> StreamTask:
    """As ``new_task``, with everything in the changelog logged again in the new format."""
    upgrade = Upgrade(1, to_new, rewrite_changelog=True)
    return new_task(folder, log, backend, **{"store_upgrade": upgrade, **settings})


class NewApi:
    """Speaks the new format, and keeps the old one. Of a view it has what readers need."""

    def __init__(self, old: Any) -> None:
        self._old = old

    def put(self, key: str, value: int, timestamp_ms: int) -> None:
        self._old.put(b"k" + key.removeprefix("key-").encode(), b"%d" % value)

    def delete(self, key: str) -> None:
        self._old.delete(b"k" + key.removeprefix("key-").encode())

    def get(self, key: str) -> ValueAndTimestamp[int] | None:
        value = self._old.get(b"k" + key.removeprefix("key-").encode())
        return None if value is None else ValueAndTimestamp(int(value), -1)


def running_task(folder: Path, log: Any, backend: str = INDEXED, **settings: Any) -> StreamTask:
    """The new function over the old store, which the new one replaces at a commit."""
    upgrade = Upgrade(
        1,
        settings.pop("convert", to_new),
        online=True,
        records=NEW,
        proxy=NewApi,
        swap_running=True,
        on_upgrade=settings.pop("told", None),
    )
    arguments = {"process": write_new, "store_upgrade": upgrade, "store_upgrade_mode": "in_place", **settings}
    return old_task(folder, log, backend, **arguments)


def shown(task: StreamTask) -> dict[Any, Any]:
    with task.store("s", IsolationLevel.READ_UNCOMMITTED).all() as pairs:
        return dict(pairs)


def work(task: StreamTask, count: int | None = None) -> None:
    task.open()
    task.run(count, commit=True)
    task.close()


def names_beside(folder: Path) -> list[str]:
    """Return the names beside the store that an upgrade creates."""
    return [end for end in ENDS if beside(store_folder(folder), end).exists()]


WAYS = {"offline": new_task, "online": online_task, "running": running_task, "rewriting": rewriting_task}
"""The ways in which a task upgrades its store."""


ROLLING = "rolling"
"""The other way: a new instance, below ``new``, rebuilds the store while an old one owns the task."""


def upgrade(folder: Path, backend: str = INDEXED, *, way: str) -> None:
    """Open a task, and work in commits of two records. ``way`` is one of ``WAYS``, or ``ROLLING``: then it only
    rebuilds."""
    log = SqliteChangelog(folder / "log.sqlite")
    if way == ROLLING:
        new_task(folder / "new", log, backend, mode="roll_over").rebuild()
        return
    task = WAYS[way](folder, log, backend, commit_every_records=2)
    task.open()
    task.run(6)
    task.close()
