"""Adopting a store whose offsets lie in a checkpoint file, for a backend that keeps them with the data.

The engine's files stay as they are: offsets and position are added to them, and only then does ``store.json`` name the
new backend. Until it does, an import that was cut short is repeated; from then on the files beside the store have no
say any more. That is why a missing offset alone imports nothing: after a crash a store may be back at a time before
its first offset, while its checkpoint file tells of a later one.

Source: KIP-892, "Upgrading", "Interactive Query .position Offsets".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stores.config import StoreConfig
from stores.creation import is_unfinished
from stores.directory import StoreDirectory
from stores.engines.engine import Engine
from stores.errors import CommitFailedError, StoreCorruptedError, StoreUnavailableError
from stores.failpoints import declare, reach
from stores.files import system_errors_told
from stores.identity import read_identity
from stores.interface import Durability, TopicPartition
from stores.migration import migrate
from stores.position import OFFSET, POSITION, decode, encode, merge
from stores.registry import Backend, backend_named, backends
from stores.strategies.opening import open_engine

IMPORTED = declare("adoption.imported", "offsets and position are in the store, which still belongs to its old backend")
ADOPTED = declare("adoption.adopted", "the store belongs to the new backend, its position file is still there")
FAILPOINTS = (IMPORTED, ADOPTED)
"""What an adoption reaches, in this order."""


def is_adoptable(path: Path, config: StoreConfig) -> bool:
    """Whether the store at ``path``, if there is one, leaves its offsets to others, and ``config`` does not.

    Both must be of one engine, whose files then are the same. Raises: StoreUnavailableError, StoreCorruptedError.
    """
    with system_errors_told(path):
        if not (path / "store.json").exists() or is_unfinished(path):
            return False
        named = read_identity(path).backend
    former, chosen = backends().get(named), backend_named(config.backend)
    return (
        former is not None
        and chosen.shares_files_with(former)
        and Durability.DISK in chosen.durabilities
        and chosen.manages_offsets
        and not former.manages_offsets
    )


def adopt(
    path: Path,
    config: StoreConfig,
    offsets: Mapping[TopicPartition, int],
    position: Mapping[TopicPartition, int],
    *,
    must_be_clean: bool,
) -> None:
    """Write ``offsets``, where the adoptable store at ``path`` has none yet, and ``position`` into it, and adopt it.

    Raises: StoreCorruptedError where there is no offset for its data, or, with ``must_be_clean``, where it was not
    closed cleanly; StoreLockedError, StoreTooNewError, and StoreUnavailableError where the disk refuses.
    """
    former, chosen = read_identity(path).backend, backend_named(config.backend)
    directory = StoreDirectory.hold(path, former)
    try:
        damage = _damage(directory, chosen) if directory.clean else None
        if not offsets or (must_be_clean and not directory.clean):
            raise StoreCorruptedError(
                f"{path} was left by {former}, without an offset that its data is known to be at: wipe the store and "
                "restore it from its changelog"
            )
        try:
            _write(directory, chosen, {**chosen.options, **config.options}, offsets, position, damage)
            reach(IMPORTED)
            with system_errors_told(path):
                directory.identify(directory.identity._replace(backend=chosen.name))
        except CommitFailedError as error:
            raise StoreUnavailableError(
                f"offsets could not be written into {path}: {error}. Mend that and open the store again"
            ) from error
        reach(ADOPTED)
    finally:
        directory.give_up()


def _damage(directory: StoreDirectory, backend: Backend) -> StoreCorruptedError | None:
    """What no clean close leaves in the engine's files: damage, or an import that was cut short."""
    try:
        with system_errors_told(directory.path):
            backend.load_engine().check_closed(directory.data)
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
        kept = decode(OFFSET, meta)
        if damage is not None and not kept:
            # Only an import has offsets here, which a crash may have cut short: the engine has checked what that left.
            raise damage
        missing = {partition: offset for partition, offset in offsets.items() if partition not in kept}
        merged = merge(decode(POSITION, meta), position)
        engine.write([], {**encode(OFFSET, missing), **encode(POSITION, merged)})
    finally:
        engine.close()
