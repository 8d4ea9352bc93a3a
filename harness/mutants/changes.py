"""Mutants of changes of a store's format, offsets, place and layout."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.mutants.commits import in_several_writes
from harness.mutants.mutant import IoFault, LibraryTest, mutant, only
from harness.mutants.patches import (
    Meta,
    Patches,
    Write,
    before_opening,
    every_engine,
    folders_of,
    instead_of_replacing,
    instead_of_writes,
)
from stores.engines.engine import Engine, Writes
from stores.files.creation import wipe
from stores.files.identity import FILE, present_version, read_identity
from stores.files.plain_files import replace_file, sync_tree
from stores.interface import Durability, TopicPartition
from stores.position import OFFSET
from stores.registry import backends
from stores.strategies.store import Store
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.directory_layout import JOURNAL_FILE, LAYOUT_FILE
from stores.tasks.directory.state_directory import CHECKPOINT_FILE
from stores.tasks.directory.store_places import SWAP_END
from stores.tasks.stores.offset_import import ADOPTED


@mutant(
    "a store records the next format version before its data has that format",
    LibraryTest("no format was released yet, so only a test has a step to the next one"),
)
def _migration_noted_first(patches: Patches, subject: str) -> None:
    """Record the next format version when a migration step opens the engine, before it has written data."""

    def note(folder: Path) -> None:
        store = folder.parent
        if (store / FILE).exists():
            identity = read_identity(store)
            if identity.format_version < present_version():
                replace_file(store / FILE, identity._replace(format_version=identity.format_version + 1).text())

    for engine in every_engine():
        before_opening(patches, engine, note)


def _families_apart(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    """Divide a commit that removes old records and writes new ones, each in their own data family."""
    old = [layer for layer in layers if layer.family == 0]
    new = [layer for layer in layers if layer.family != 0]
    return [(old, {}), (new, meta)] if old and new else [(layers, meta)]


@mutant(
    "a lazy upgrade removes the old record before the transaction that writes the new one",
    IoFault("kill", only("lazy-upgrade")),
)
def _upgraded_outside(patches: Patches, subject: str) -> None:
    for engine in every_engine():
        in_several_writes(_families_apart, engine)(patches, subject)


@mutant("an upgrade removes the old store before the new one counts", IoFault("kill", only("format-upgrade")))
def _swapped_without_note(patches: Patches, subject: str) -> None:
    """Delete the old store before the file is written that says the new one counts."""
    replace = os.replace

    def mutated(source: Any, target: Any) -> None:
        if Path(target).name.endswith(SWAP_END):
            wipe(Path(target).with_name(Path(target).name.removesuffix(SWAP_END)))
        replace(source, target)

    patches.replace(os, "replace", mutated)


@mutant(
    "an online upgrade records its progress before it writes what it has converted",
    IoFault("kill", only("task-online-upgrade")),
)
def _stepped_offset_first(patches: Patches, subject: str) -> None:
    """Write the offset of a restore's step into the store before the step's records."""
    restore = Store.restore

    def mutated(self: Store, pairs: Any, offsets: Any, position: Any = None, marks: Any = None) -> None:
        restore(self, [], offsets, position, marks)
        restore(self, pairs, {})

    patches.replace(Store, "restore", mutated)


@mutant(
    "an offset import names the backend that keeps offsets before the store has them",
    IoFault("kill", only("offset-import", "offset-import-rocksdb")),
)
def _import_noted_first(patches: Patches, subject: str) -> None:
    """Hold the imported offsets back until the store names the backend that keeps them."""
    held: list[Callable[[], None]] = []

    def write_held() -> None:
        while held:
            held.pop()()

    for engine in every_engine():
        _holding_offsets(patches, engine, held)
    patches.arm(ADOPTED, write_held)


def _holding_offsets(patches: Patches, engine: type[Engine], held: list[Callable[[], None]]) -> None:
    folders = folders_of(patches, engine)

    def hold(self: Engine, write: Write, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        folder = folders[self]
        if layers or not any(key.startswith(OFFSET) for key in meta) or _keeps_offsets(folder.parent):
            write(self, layers, meta, durable=durable)
        else:
            held.append(lambda: write_later(folder, meta))

    def write_later(folder: Path, meta: Meta) -> None:
        backend = backends()[read_identity(folder.parent).backend]
        opened = engine.open(folder, Durability.DISK, backend.options)
        try:
            opened.write([], meta)
        finally:
            opened.close()

    instead_of_writes(patches, engine, hold)


def _keeps_offsets(store: Path) -> bool:
    return not (store / FILE).exists() or backends()[read_identity(store).backend].manages_offsets


@mutant(
    "a store that moves to another task has its offset there before its folder", IoFault("kill", only("relocation"))
)
def _checkpoint_before_folder(patches: Patches, subject: str) -> None:
    """Write the offsets of moved stores into the files of their new tasks first, and leave no journal for recovery."""

    def copy_offsets(replace: Callable[[Path, Path], None], source: Path, target: Path) -> None:
        for move in json.loads(source.read_text())["moves"]:
            file = CheckpointFile(target.parent / move["to"] / CHECKPOINT_FILE)
            offsets = {TopicPartition(topic, 0): offset for topic, offset in move["offsets"].items()}
            file.write({**file.read(), **offsets})
        source.unlink()

    instead_of_replacing(patches, JOURNAL_FILE, copy_offsets)


@mutant(
    "a change of layout removes its journal before the directory records the new layout",
    IoFault("kill", only("layout-change")),
)
def _layout_noted_last(patches: Patches, subject: str) -> None:
    """Hold the change of the layout's file back until the journal is removed."""
    unlink = os.unlink
    held: list[Callable[[], None]] = []

    def hold(replace: Callable[[Path, Path], None], source: Path, target: Path) -> None:
        text = source.read_text()
        source.unlink()
        held.append(lambda: write(target, text))

    def write(target: Path, text: str) -> None:
        target.write_text(text)
        sync_tree(target.parent)

    def mutated(path: Any, *given: Any, **named: Any) -> None:
        # Not the removal of the whole folder, which passes ``dir_fd``.
        if Path(path).name == LAYOUT_FILE and not named:
            held.append(lambda: unlink(path))
            return
        unlink(path, *given, **named)
        while Path(path).name == JOURNAL_FILE and held:
            held.pop()()

    instead_of_replacing(patches, LAYOUT_FILE, hold)
    patches.replace(os, "unlink", mutated)
