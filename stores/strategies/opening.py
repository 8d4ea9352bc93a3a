"""Open a store's engine: create it atomically, migrate older formats, report missing data as corruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from stores.engines.engine import Engine
from stores.errors import StoreError, damaged
from stores.files.identity import present_version
from stores.files.open_probe import probe_open
from stores.files.plain_files import sync_folder, translated_system_errors
from stores.files.store_directory import StoreDirectory, migrate
from stores.interface import Durability


def open_data(
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


def build_engine(engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
    """Create a new engine's files in ``folder``, with an empty commit: opening never finds them incomplete."""
    folder.mkdir()
    made = engine.open(folder, durability, options)
    try:
        made.write([], {})
    finally:
        made.close()


def open_engine(engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
    """Open an engine's files. They may have been changed or damaged since they were last open."""
    probe_open(engine, folder, options)
    opened = engine.open(folder, durability, options)
    if durability is Durability.DISK:
        # Opening may have created a file. The engine syncs its contents, and nothing else would sync its name.
        try:
            with translated_system_errors(folder):
                sync_folder(folder)
        except BaseException:
            with suppress(StoreError):
                opened.close()
            raise
    return opened
