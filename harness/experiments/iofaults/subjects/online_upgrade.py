"""A stream task whose store is upgraded in the background twice: a new store is built beside it, and swapped.

Up to the fourth commit the task's function uses the old format. Then the task is opened with the new format, which
swaps the stores. From the eighth commit on the function uses the next format, through a proxy. The swap then happens at
a commit of the running task.

The values of a format begin with its number. The changelog is durable at every level, because only the two stores are
under test.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiments.iofaults.subjects.subject import COMMITS, NAME, Subject, under_pressure
from harness.experiments.iofaults.workload import Change, State
from harness.mutants.inner_names import upgrade_in_steps
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.errors import StoreError
from stores.files.plain_files import make_folder, translated_system_errors
from stores.interface import Durability
from stores.settings.upgrade import Upgrade, UpgradeMode
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId

_BACKENDS: Mapping[Durability, str] = {
    Durability.CHANGELOG: "rocksdb-indexed-batch",
    Durability.PROCESS: "sqlite-indexed-batch",
    Durability.DISK: "lmdb-indexed-batch",
}
"""One backend of each engine on disk. DISK, where most trials run, has the fastest."""
_APPLICATION = "upgrading"
_SWAPPED_AT, _PROXIED_FROM = 4, 8
"""The commits at which the task is opened again: to swap, and to begin the second upgrade."""
_STEP_RECORDS = 8
"""The records of one upgrade step: so few that an upgrade takes several steps."""


class OnlineUpgradeSubject(Subject):
    """Each commit is one input record. ``add`` swaps the stores first, so that the new store is read."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._log: SqliteChangelog | None = None
        self._task: StreamTask | None = None
        self._made: Sequence[Change] = ()
        self._target = self._version = 0
        """The format that the store is being upgraded to, and the format of the task's function."""
        self._swaps_now = False

    def open(self) -> int | None:
        upgrade_in_steps(_STEP_RECORDS)
        with translated_system_errors(self.path):
            make_folder(self.path)
        self._log = SqliteChangelog(self.path / "log", Durability.DISK)
        self._log.create_topic(COMMITS.topic)
        number = self._number()
        if not self._swaps_now:
            self._target = 1 + (number >= _PROXIED_FROM)
        upgrade, self._version = _upgrade(self._target), self._target
        if not self._swaps_now and number >= _PROXIED_FROM:
            proxy = partial(_Proxied, version=2)
            upgrade = Upgrade(2, upgrade.convert, online=True, before=_upgrade(1), proxy=proxy, swap_running=True)
        elif not self._swaps_now and number < _SWAPPED_AT:
            upgrade, self._version = Upgrade(1, upgrade.convert, online=True), 0
        backend = _BACKENDS[self.level]
        self._task = StreamTask(
            _APPLICATION,
            TaskId(0, COMMITS.partition),
            state_dir=self.path / "state",
            changelog=self._log,
            stores={
                NAME: StoreConfig(
                    backend,
                    self.level,
                    options=under_pressure(backend),
                    upgrade=upgrade,
                    upgrade_mode=UpgradeMode.IN_PLACE,
                )
            },
            process=self._process,
            inputs=[COMMITS],
            commit_interval_ms=NO_INTERVAL,
        )
        self._task.open()
        return self._number()

    def stage(self, made: Sequence[Change], after: State) -> None:
        assert self._task is not None
        self._made = made
        self._task.process(COMMITS, Record(self._number(), b"commit", b"number"))

    def _process(self, record: Record, context: TaskContext) -> None:
        store, stamp = context.store(NAME), bytes([self._version])
        for change in self._made:
            if change.end is not None:
                store.delete_range(change.key, change.end)
            else:
                store.put(change.key, None if change.value is None else stamp + change.value)

    def commit(self, number: int) -> None:
        assert self._task is not None
        self._task.commit()
        if number in (_SWAPPED_AT, _PROXIED_FROM) and not self._swaps_now:
            self.close()
            self.open()

    def add(self, pairs: State, number: int) -> None:
        if not self._swaps_now:
            self._swaps_now = True
            self.close()
            self.open()
        assert self._task is not None
        self._made = [Change(key, value) for key, value in pairs.items()]
        self._task.process(COMMITS, Record(number - 1, b"commit", b"number"))
        self._task.commit()

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        assert self._task is not None
        with self._task.store(NAME).all() as pairs:
            kept = dict(pairs)
        stamp = bytes([self._version])
        state = {
            key: value[1:] if value.startswith(stamp) else b"of another format: " + value for key, value in kept.items()
        }
        return state, self._number(), self._number()

    def close(self) -> None:
        task, self._task = self._task, None
        log, self._log = self._log, None
        try:
            if task is not None:
                task.close()
        finally:
            if log is not None:
                log.close()

    def wipe(self) -> None:
        # A task wipes its stores itself, so this error means that the changelog is corrupt.
        shutil.rmtree(self.path, ignore_errors=True)

    def restore(self, state: State, number: int) -> None:
        # The number is that of another changelog: it no longer selects the format.
        self.add(state, number)

    def must_reopen(self, error: StoreError) -> bool:
        # The staged writes were rolled back.
        return True

    def _number(self) -> int:
        assert self._log is not None
        return self._log.committed_offsets(_APPLICATION).get(COMMITS, 0)


class _Proxied:
    """A proxy that shows ``old``, a store or a view in the format before ``version``, in the format ``version``."""

    def __init__(self, old: Any, version: int) -> None:
        self._old, self._version = old, version

    def put(self, key: bytes, value: bytes | None) -> None:
        self._old.put(key, None if value is None else bytes([self._version - 1]) + value[1:])

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self._old.delete_range(start, end)

    def all(self) -> AbstractContextManager[list[tuple[bytes, bytes]]]:
        own, old = bytes([self._version]), bytes([self._version - 1])
        with self._old.all() as pairs:
            return nullcontext(
                [(key, own + value[1:] if value[:1] == old else b"not old: " + value) for key, value in pairs]
            )


def _upgrade(version: int) -> Upgrade:
    return Upgrade(version, partial(_restamped, version))


def _restamped(version: int, record: Record, _: int) -> Iterable[tuple[bytes, bytes | None]]:
    assert record.key is not None
    return ((record.key, None if record.value is None else bytes([version]) + record.value[1:]),)
