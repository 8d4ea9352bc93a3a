"""Open a store: its folder, its engine and its staging, which recovers. Refuse its calls in the child of a fork."""

from __future__ import annotations

import logging
import shutil
from abc import ABC
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stores.engines.engine import Engine
from stores.engines.families import split_or_whole
from stores.errors import StoreClosedError, StoreError, damaged
from stores.files.creation import CAPTURED
from stores.files.identity import present_version
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import StoreDirectory, migrate
from stores.interface import Durability, KeyValueStore, RecoveryOutcome
from stores.process import BELONGS_TO_PARENT, never_free
from stores.strategies.access import Access, catch_up
from stores.strategies.staging import Opened, Staging, Traits, open_engine
from stores.strategies.store import Store
from stores.strategies.store.timestamps import end_split

_log = logging.getLogger(__name__)


def open_over(
    strategy: type[Staging], engine: type[Engine], path: Path, options: Mapping[str, object], traits: Traits
) -> Store:
    """Open the store in the folder ``path``, and recover. ``options`` has a value for every option.

    Raises: as ``stores.open_store``.
    """
    strategy.check_engine(engine, traits.backend)
    catch_up()
    durability = strategy.engine_level(traits.durability)

    def staged(data: Engine, directory: StoreDirectory | None) -> Staging:
        access = Access(traits.name, traits.backend, split_or_whole(data).max_key_bytes, data.max_value_bytes)
        return strategy(Opened(data, directory, options, traits, access))

    if not engine.persistent:
        return Store(staged(engine.open(path, durability, options), None), None, traits)

    def build(folder: Path) -> None:
        strategy.build(engine, folder, durability, options)

    settled: list[RecoveryOutcome | None] = []

    def settle(older: Engine) -> None:
        staging = staged(older, directory)
        settled.append(staging.outcome)
        staging.release()

    tearable = engine.torn_by_power_loss(durability)
    directory = StoreDirectory.open(path, traits.backend, durability, build, tearable=tearable)
    # A process may have been killed while it sent a snapshot from there.
    shutil.rmtree(path / CAPTURED, ignore_errors=True)
    if directory.clean:
        try:
            with translated_system_errors(path):
                for folder in strategy.folders(directory):
                    engine.check_closed(folder)
        except BaseException:
            # No engine was opened yet: the folder stays cleanly closed, so that the next attempt reports the same.
            directory.close(clean=True)
            raise
    try:
        if not directory.clean:
            with translated_system_errors(path):
                for folder in strategy.folders(directory):
                    engine.repair_after_crash(folder)
        data = _open_data(engine, directory, durability, options, settle)
        try:
            staging = staged(data, directory)
            if RecoveryOutcome.ROLLED_FORWARD in settled:
                staging.outcome = RecoveryOutcome.ROLLED_FORWARD
            store = Store(staging, directory, traits, split_has_ended=end_split(staging, path))
            _tell(store, path)
            return store
        except BaseException:
            # The original error matters more than an error of this close.
            with suppress(StoreError):
                data.close()
            raise
    except BaseException:
        directory.close(clean=False)
        raise


def _open_data(
    engine: type[Engine],
    directory: StoreDirectory,
    durability: Durability,
    options: Mapping[str, object],
    settle: Callable[[Engine], None],
) -> Engine:
    """Open the data of the store in ``directory``, in the present format.

    ``settle`` completes an interrupted copy of a spill, in the format that it was written in, before a migration.

    Raises: StoreCorruptedError if the data is gone; StoreUnavailableError; and the errors of ``Engine.open``.
    """
    with translated_system_errors(directory.data):
        missing = not directory.data.is_dir() or not any(directory.data.iterdir())
    if missing:
        # An engine would silently create a new database there.
        raise damaged(f"{directory.data} is gone or empty")
    if directory.identity.format_version < present_version() and directory.staging.exists():
        older = open_engine(engine, directory.data, durability, options)
        try:
            settle(older)
        finally:
            older.close()
    migrate(directory, lambda folder: open_engine(engine, folder, durability, options))
    return open_engine(engine, directory.data, durability, options)


def _tell(store: Store, path: Path) -> None:
    recovery = store.recover()
    if recovery.outcome is RecoveryOutcome.ROLLED_FORWARD:
        _log.info("store %r in %s completed a commit that the last process had begun", store.name, path)
    elif recovery.outcome is RecoveryOutcome.ROLLED_BACK:
        _log.info("store %r in %s was not closed cleanly, and is at its last commit on disk", store.name, path)


def disown(store: Store) -> None:
    """Disable ``store``, its staging and its iterators in the child of a fork: every use raises StoreClosedError."""
    staging, batch = store.staging, store.staging.batch
    store._disown()
    if batch is not None:
        # A lookup of timestamped values reads from the batch without a call of the store.
        batch.writes, batch.recent = {}, {}
    # Change the objects themselves: readers and other holders of a reference are disabled with them.
    for part, refusing in ((store, _ForkedStore), (staging, _ForkedStaging)):
        never_free(dict(vars(part)))
        vars(part).clear()
        part.__class__ = refusing  # type: ignore[assignment]


class _ForkedStore(KeyValueStore):
    """A store that is open in the parent. Closing it has no effect."""

    is_open = False

    def close(self) -> None:
        """Do nothing: the store belongs to the parent process."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("close", "is_open") or name.startswith("__"):
            return super().__getattribute__(name)
        raise StoreClosedError(f"this store {BELONGS_TO_PARENT}")


class _ForkedStaging(ABC):  # noqa: B024 - an object can take this class only if it has the base of ``Staging``.
    """The staging of a store that is open in the parent."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise StoreClosedError(f"this store {BELONGS_TO_PARENT}")
