"""The stores in folders of their own, in the layout ``store-partition``: ``counts/3/rocksdb``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stores.errors import ConfigError
from stores.tasks.directory.store_places import own_engines
from stores.tasks.identifier import StorePartition


def own_folders(state: Path, end: str = "") -> Iterator[tuple[StorePartition, Path]]:
    """Yield the folders ``STORE/PARTITION`` of the state directory ``state`` whose names end in ``end``, in order.

    Links are left out. Raises: OSError.
    """
    for folder in _folders(state):
        for entry in _folders(folder):
            if entry.name.endswith(end):
                with suppress(ValueError, ConfigError):
                    yield StorePartition.parse(f"{folder.name}/{entry.name.removesuffix(end)}"), entry


def own_stores(state: Path) -> Iterator[tuple[StorePartition, str]]:
    """Yield the stores in folders of their own, in order, each with its engine. Raises: OSError."""
    for home, folder in own_folders(state):
        for engine in own_engines(folder):
            yield home, engine


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink())
