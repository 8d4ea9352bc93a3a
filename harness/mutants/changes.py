"""Mutants of changes of a store's format, offsets, place and layout."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

from harness.mutants.mutant import IoFault, Mutant, Patches, only
from stores.engines.engine import Engine, Writes
from stores.engines.split import OLD
from stores.files.creation import wipe
from stores.files.identity import STEPS, OpenEngine, present_version
from stores.files.plain_files import sync_folder
from stores.files.store_directory import StoreDirectory
from stores.interface import KeyValueStore, TopicPartition
from stores.records.split import UpgradingReader
from stores.records.timestamps import SURROGATE
from stores.registry import Backend
from stores.strategies import opening
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.directory_layout import write_layout
from stores.tasks.directory.relocation_journal import Journal
from stores.tasks.directory.state_directory import CHECKPOINT_FILE
from stores.tasks.stores import offset_import, upgrading
from stores.tasks.stores.restore import Restored, restore
from stores.tasks.stores.swap import PREPARE_END, beside


def _migration_noted_first(patches: Patches, subject: str) -> None:
    """Record the next format version when a migration step opens the engine, before it has written data."""

    def mutated(directory: StoreDirectory, open_engine: OpenEngine) -> None:
        def opened(folder: Path) -> Engine:
            directory.identify(directory.identity._replace(format_version=version + 1))
            return open_engine(folder)

        while (version := directory.identity.format_version) < present_version():
            STEPS[version - 1](directory.path, opened)

    patches.replace(opening, "migrate", mutated)


def _upgraded_outside(patches: Patches, subject: str) -> None:
    """Delete an old record at once when it is converted, and write the new record with the commit."""

    def mutated(self: UpgradingReader, key: bytes) -> bytes | None:
        store: Any = self._staging.store
        old = store.get(OLD + key) if store.is_split else None
        if old is None:
            return get(self, key)
        store._engine.write([Writes((), {OLD + key: None})], {})
        self._staging.put_unlogged(key, SURROGATE + old)
        return SURROGATE + cast(bytes, old)

    get = UpgradingReader.get
    patches.replace(UpgradingReader, "get", mutated)


def _swapped_without_note(patches: Patches, subject: str) -> None:
    """Delete the old store, then rename the new one, without the file that says the new one counts."""

    def mutated(path: Path) -> None:
        wipe(path)
        beside(path, PREPARE_END).rename(path)
        sync_folder(path.parent)

    patches.replace(upgrading, "swap", mutated)


def _stepped_offset_first(patches: Patches, subject: str) -> None:
    """Write the offset of an upgrade's step into the new store before the step's records."""

    def mutated(store: KeyValueStore, *given: Any, **named: Any) -> Restored:
        write = store.restore

        def apart(pairs: Any, offsets: Any, position: Any = None, marks: Any = None) -> None:
            write([], offsets, position, marks)
            write(pairs, {})

        mutated_store: Any = store
        mutated_store.restore = apart
        try:
            return restore(store, *given, **named)
        finally:
            del mutated_store.restore

    patches.replace(upgrading, "restore", mutated)


def _import_noted_first(patches: Patches, subject: str) -> None:
    """Name the new backend first, and only then write the offsets into the store."""
    write = offset_import._write

    def mutated(directory: StoreDirectory, backend: Backend, *given: Any) -> None:
        directory.identify(directory.identity._replace(backend=backend.name))
        write(directory, backend, *given)

    patches.replace(offset_import, "_write", mutated)


def _checkpoint_before_folder(patches: Patches, subject: str) -> None:
    """Copy a store's offsets into the checkpoint file of its new task, then move its folder."""

    def mutated(self: Journal, state: Path) -> None:
        for move in self.moves:
            file = CheckpointFile(state / str(move.target) / CHECKPOINT_FILE)
            offsets = self.offsets.get(move, {})
            file.write({**file.read(), **{TopicPartition(topic, 0): offset for topic, offset in offsets.items()}})
        carry_out(self, state)

    carry_out = Journal.carry_out
    patches.replace(Journal, "carry_out", mutated)
    # Without a journal, recovery cannot repair this.
    patches.replace(Journal, "write", lambda self, state: None)


def _layout_noted_last(patches: Patches, subject: str) -> None:
    """Carry out and remove the journal of a layout change, then record the new layout."""

    def mutated(self: Journal, state: Path) -> None:
        carry_out(dataclasses.replace(self, layout=None), state)
        if self.layout is not None:
            write_layout(state, self.layout)

    carry_out = Journal.carry_out
    patches.replace(Journal, "carry_out", mutated)


MUTANTS = (
    Mutant(
        "migration-noted-first",
        "a store records the next format version before its data has that format",
        _migration_noted_first,
        (IoFault("kill", only("format-migration")),),
    ),
    Mutant(
        "upgraded-outside",
        "a lazy upgrade removes the old record before the transaction that writes the new one",
        _upgraded_outside,
        (IoFault("kill", only("lazy-upgrade")),),
    ),
    Mutant(
        "swapped-without-note",
        "an upgrade removes the old store before the new one counts",
        _swapped_without_note,
        (IoFault("kill", only("format-upgrade")),),
    ),
    Mutant(
        "stepped-offset-first",
        "an online upgrade records its progress before it writes what it has converted",
        _stepped_offset_first,
        (IoFault("kill", only("task-online-upgrade")),),
    ),
    Mutant(
        "import-noted-first",
        "an offset import names the backend that keeps offsets before the store has them",
        _import_noted_first,
        (IoFault("kill", only("store-adoption", "store-adoption-rocksdb")),),
    ),
    Mutant(
        "checkpoint-before-folder",
        "a store that moves to another task has its offset there before its folder",
        _checkpoint_before_folder,
        (IoFault("kill", only("relocation")),),
    ),
    Mutant(
        "layout-noted-last",
        "a change of layout removes its journal before the directory records the new layout",
        _layout_noted_last,
        (IoFault("kill", only("layout-change")),),
    ),
)
