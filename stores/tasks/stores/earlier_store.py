"""A store that an earlier process has left: may its data be used with its offset, and the import of that offset.

Offset import gives a store the offsets of its checkpoint file, for a backend that keeps them with the data.

The engine's files stay as they are. Offsets and position are added to them, and then ``store.json`` names the new
backend. Until it does, an interrupted import is repeated. After that the checkpoint file is ignored. So a missing
offset alone never triggers an import: after a crash a store may be back at a commit before its first offset, while its
checkpoint file has a later one.

Power loss may tear RocksDB's MANIFEST within a record, and RocksDB then does not open. Such a store counts as damaged
and is restored from its changelog. To do better, the import would have to work on a second copy of the engine's files.

Source: KIP-892, "Upgrading", "Interactive Query .position Offsets", "Error Handling"; KIP-844, step 1.1; KIP-129,
unclean shutdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stores.config import StoreConfig
from stores.engines.engine import Engine
from stores.errors import CommitFailedError, StoreCorruptedError, StoreUnavailableError, TaskCorruptedError
from stores.failpoints import Part, declare, reach
from stores.files.creation import is_unfinished
from stores.files.identity import read_identity
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import StoreDirectory, migrate
from stores.interface import Durability, KeyValueStore, RecoveryOutcome, TopicPartition
from stores.meta_entries import OFFSET, POSITION, decode_offsets, encode_offsets, merge_positions
from stores.records.record_kind import is_empty
from stores.registry import Backend, backend_named, backends
from stores.strategies.staging import open_engine
from stores.tasks.directory.entry_files import CheckpointFile, Origin

IMPORTED = declare(
    "adoption.imported",
    "offsets and position are in the store, which still belongs to its old backend",
    part=Part.CHANGE,
)
ADOPTED = declare(
    "adoption.adopted", "the store belongs to the new backend, its position file is still there", part=Part.CHANGE
)
FAILPOINTS = (IMPORTED, ADOPTED)
"""The failpoints of an offset import, in this order."""


class PositionFiles:
    """The files with a store's position that Kafka Streams has left: some for its release, some for KIP-892."""

    def __init__(self, *paths: Path) -> None:
        self._files = [CheckpointFile(path) for path in paths]

    def read(self) -> dict[TopicPartition, int]:
        """Return the position in the files; empty without one."""
        position: dict[TopicPartition, int] = {}
        for file in self._files:
            with suppress(StoreCorruptedError):
                # Without it, bounded queries wait until the position is reached again. No data is lost.
                position = merge_positions(position, file.read())
        return position

    def remove(self) -> None:
        """Remove the files: their content is in the store now, or was that of another one."""
        for file in self._files:
            file.write({})


def can_import_offsets(path: Path, config: StoreConfig) -> bool:
    """Return whether the backend at ``path`` keeps no offsets, and that of ``config``, of its engine, does."""
    with translated_system_errors(path):
        if not (path / "store.json").exists() or is_unfinished(path):
            return False
        name = read_identity(path).backend
    former, backend = backends().get(name), backend_named(config.backend)
    return (
        former is not None
        and backend.shares_files_with(former)
        and Durability.DISK in backend.durabilities
        and backend.manages_offsets
        and not former.manages_offsets
    )


def import_offsets(
    path: Path,
    config: StoreConfig,
    offsets: Mapping[TopicPartition, int],
    position: Mapping[TopicPartition, int],
    *,
    must_be_clean: bool,
) -> None:
    """Import offsets that a store lacks, and ``position``; then set its backend to that of ``config``.

    Raises: StoreCorruptedError without an offset, or, with ``must_be_clean``, if it was not closed cleanly; StoreError.
    """
    former, backend = read_identity(path).backend, backend_named(config.backend)
    directory = StoreDirectory.lock_existing(path, former)
    try:
        damage = _damage(directory, backend) if directory.clean else None
        if not offsets or (must_be_clean and not directory.clean):
            raise StoreCorruptedError(
                f"{path} was closed by {former}, and the offset of its data is unknown: wipe the store and "
                "restore it from its changelog"
            )
        try:
            _write(directory, backend, {**backend.options, **config.limited_options()}, offsets, position, damage)
            reach(IMPORTED)
            with translated_system_errors(path):
                directory.identify(directory.identity._replace(backend=backend.name))
        except CommitFailedError as error:
            raise StoreUnavailableError(
                f"offsets could not be written into {path}: {error}. Correct the cause and open the store again"
            ) from error
        reach(ADOPTED)
    finally:
        directory.release()


def _damage(directory: StoreDirectory, backend: Backend) -> StoreCorruptedError | None:
    """Return the error of a check of the closed engine's files, from damage or an interrupted import; else None."""
    try:
        with translated_system_errors(directory.path):
            backend.load_engine().check_before_commit(directory.data)
    except StoreCorruptedError as error:
        return error
    return None


def _write(
    directory: StoreDirectory,
    backend: Backend,
    options: Mapping[str, object],
    offsets: Mapping[TopicPartition, int],
    position: Mapping[TopicPartition, int],
    damage: StoreCorruptedError | None,
) -> None:
    def opened(folder: Path) -> Engine:
        return open_engine(backend.load_engine(), folder, Durability.DISK, options)

    migrate(directory, opened)
    engine = opened(directory.data)
    try:
        meta = engine.meta()
        own_offsets = decode_offsets(OFFSET, meta)
        if damage is not None and not own_offsets:
            # Offsets in the engine come from an import that a crash interrupted: opening has recovered its files.
            raise damage
        missing = {partition: offset for partition, offset in offsets.items() if partition not in own_offsets}
        merged = merge_positions(decode_offsets(POSITION, meta), position)
        engine.write([], {**encode_offsets(OFFSET, missing), **encode_offsets(POSITION, merged)})
    finally:
        engine.close()


UNCLEAN = "it keeps uncommitted writes among the committed ones, and was not closed with a checkpoint"
SWITCHED = "it was written at least once and not closed cleanly: it may have writes that were never committed"
NO_OFFSET = "it has data, and its changelog offset is unknown"
ROLLED_BACK = "it keeps uncommitted writes among the committed ones, and the transaction was rolled back"
IN_DOUBT = "it keeps no offset with its data, and it is unknown how much of a commit reached the disk"


class Trust:
    """The rules of a task under its guarantee. ``origin`` is a store's entry in the origin file, or None."""

    def __init__(self, *, exactly_once: bool) -> None:
        self.exactly_once = exactly_once
        """True if a store whose data has no known offset must be wiped."""

    def is_checked(self, origin: Origin | None) -> bool:
        """Return whether data without a known offset is wiped: an exactly-once task, now or before, requires it."""
        return self.exactly_once or origin is Origin.EXACTLY_ONCE

    def check_import(self, origin: Origin | None) -> None:
        """Check that an offset may be imported into the store. Raises: TaskCorruptedError."""
        if self.is_checked(origin) and origin is not Origin.CLEAN:
            raise TaskCorruptedError(SWITCHED if origin is Origin.AT_LEAST_ONCE else UNCLEAN)

    def check(self, store: KeyValueStore, offset: int | None, origin: Origin | None) -> None:
        """Check that the data of ``store`` is that of ``offset``, or that there is none. Raises: TaskCorruptedError."""
        if not self.is_checked(origin):
            return
        mixes = store.persistent and not keeps_apart(store)
        unclean = mixes and not _was_closed(store, origin)
        if (unclean or origin is Origin.AT_LEAST_ONCE or offset is None) and not is_empty(store):
            raise TaskCorruptedError(SWITCHED if origin is Origin.AT_LEAST_ONCE else UNCLEAN if mixes else NO_OFFSET)

    def may_be_mixed(self, store: KeyValueStore, origin: Origin | None) -> bool:
        """Return whether ``store``, opened and checked, may still have writes that are in no changelog."""
        if self.is_checked(origin):
            return False
        trusted = origin is not Origin.AT_LEAST_ONCE if keeps_apart(store) else _was_closed(store, origin)
        return not trusted and not is_empty(store)

    def origin(self, store: KeyValueStore, *, mixed: bool, running: bool) -> Origin | None:
        """Return the entry for the origin file. ``mixed`` stores may have writes that are in no changelog."""
        if not store.persistent:
            return None
        if keeps_apart(store):
            return Origin.AT_LEAST_ONCE if mixed else None
        if running:
            return Origin.EXACTLY_ONCE if self.exactly_once else Origin.AT_LEAST_ONCE
        return Origin.AT_LEAST_ONCE if mixed else Origin.CLEAN


def keeps_apart(store: KeyValueStore) -> bool:
    """Return True if the store's own files identify the committed data and its offset."""
    return store.transactional and store.manages_offsets


def _was_closed(store: KeyValueStore, origin: Origin | None) -> bool:
    return origin is Origin.CLEAN and store.recover().outcome is RecoveryOutcome.NOTHING_TO_DO
