"""Mutants of files: creation, removal, replacement, checksums, what a killed process left, and changes of a store."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.mutants.commits import in_several_writes
from harness.mutants.mutant import (
    Act,
    Fits,
    IoFault,
    LibraryTest,
    Meta,
    Patches,
    Write,
    before_opening,
    engine_of,
    every_engine,
    folders_of,
    instead_of,
    instead_of_replacing,
    instead_of_writes,
    isolates,
    mutant,
    only,
    opened_with,
    over,
    path_of,
    unsynced,
)
from stores.engines.engine import Engine, Writes
from stores.files.creation import CREATE_SYNCED, wipe
from stores.files.identity import IDENTITY_FILE, present_version, read_identity
from stores.files.plain_files import replace_file, sync_tree
from stores.interface import Durability, TopicPartition
from stores.meta_entries import OFFSET
from stores.registry import backends
from stores.strategies.store import Store
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.state_directory import CHECKPOINT_FILE
from stores.tasks.directory.store_places import JOURNAL_FILE, LAYOUT_FILE, SWAP_END
from stores.tasks.stores.earlier_store import ADOPTED

CHECKPOINT, CHANGELOG, VERSION_LOG = "checkpoint-file", "embedded-changelog", "changelog-of-files"
STATE_DIRECTORY, LAYOUT_CHANGE = "state-directory", "layout-change"

_UNFINISHED = "unfinished"
_LAYOUT_FILE, _PROCESS_FILE, _REMOVED = ".state-layout", "kafka-streams-process-metadata", ".removed"
"""Names of files that docs/format.md defines."""

unsynced(
    "unsynced-rename",
    "a file is put in place by a rename, and its folder is not synced",
    only(CHECKPOINT),
    lambda path: path.is_dir(),
)


@mutant("the checkpoint file is overwritten in place", IoFault("kill", only(CHECKPOINT)))
def _checkpoint_in_place(patches: Patches, subject: str) -> None:
    def overwrite(replace: Callable[[Path, Path], None], source: Path, target: Path) -> None:
        _write_synced(target, source.read_bytes())
        source.unlink()

    instead_of_replacing(patches, None, overwrite)


@mutant("a checkpoint file is written without its checksum", IoFault("damage", only(CHECKPOINT), "flipped"))
def _unchecked_checkpoint(patches: Patches, subject: str) -> None:
    def without_checksum(replace: Callable[[Path, Path], None], source: Path, target: Path) -> None:
        _write_synced(source, source.read_bytes().rstrip() + b"\n")
        replace(source, target)

    instead_of_replacing(patches, None, without_checksum)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@mutant("a store is made without the file that says that it is unfinished", IoFault("kill", isolates))
def _unmarked_creation(patches: Patches, subject: str) -> None:
    unmarked: set[Path] = set()

    def remove_marker(folder: Path) -> None:
        marker = folder.parent / _UNFINISHED
        if marker.exists():
            marker.unlink()
            unmarked.add(marker)

    def restore_markers() -> None:
        while unmarked:
            unmarked.pop().touch()

    before_opening(patches, engine_of(subject), remove_marker)
    # The end of a creation removes the marker.
    patches.arm(CREATE_SYNCED, restore_markers)


unsynced(
    "unsynced-store-name",
    "a new store is synced, and the folder that its name is in is not",
    isolates,
    lambda path: path.is_dir() and any((each / "lock").exists() for each in path.iterdir()),
    # The other models, like ext4 and xfs, take a name as durable once any file below it is synced.
    "strict",
)


def _keeps_log(name: str) -> bool:
    """Return True for a subject that writes the WAL it finds after a kill once more: the files of SQLite."""
    return name == CHANGELOG or over("sqlite")(name)


def _trusted(name: str, meaning: str, fits: Fits, is_rewriting: Callable[[Path, int], bool]) -> None:
    """Declare a mutant that leaves out the writes with which opening repeats what may have failed to sync."""

    def rewritten(pwrite: Act, descriptor: int, content: Any, offset: int) -> Any:
        return len(content) if is_rewriting(path_of(descriptor), offset) else pwrite(descriptor, content, offset)

    mutant(meaning, IoFault("failed_sync", fits, unseen_by="power"), name=name)(instead_of(os, "pwrite")(rewritten))


_trusted(
    "trusted-log",
    "the WAL of a killed process is continued, though a sync of it may have failed",
    _keeps_log,
    lambda path, offset: path.name.endswith("-wal"),
)
_trusted(
    "trusted-meta-pages",
    "the meta page of the last commit is trusted, though the sync in its write may have failed",
    over("lmdb"),
    # Checksums of meta pages are written at other offsets.
    lambda path, offset: path.name == "data.mdb" and offset == 0,
)


def _checks_records(name: str) -> bool:
    """Return True for a backend whose records have a checksum of the library."""
    return name in backends() and "checksums" in backends()[name].options


@mutant("records are written without checksums", IoFault("damage", _checks_records, "flipped"))
def _unchecked_record(patches: Patches, subject: str) -> None:
    opened_with(
        patches, engine_of(subject), lambda path, durability, options: (durability, {**options, "checksums": False})
    )


@mutant("the folder of a task is removed in place, one file after the other", IoFault("kill", only(STATE_DIRECTORY)))
@instead_of(os, "rename")
def _removed_in_place(rename: Act, source: Any, target: Any) -> None:
    if not str(target).endswith(_REMOVED):
        rename(source, target)
        return
    shutil.rmtree(source)
    Path(target).mkdir()


unsynced(
    "unsynced-layout",
    "the new layout of a state directory is recorded without a sync",
    only(LAYOUT_CHANGE),
    lambda path: path.name.startswith(_LAYOUT_FILE),
)
unsynced(
    "unsynced-process-id",
    "the ID of a state directory is returned before its file is synced",
    only(STATE_DIRECTORY),
    lambda path: path.name.startswith(_PROCESS_FILE),
)
unsynced(
    "unsynced-version",
    "a version's file gets its name before its content is synced",
    only(VERSION_LOG),
    lambda path: path.suffix == ".aside",
)
unsynced(
    "unsynced-version-name",
    "a version's file gets its name, and the folder is not synced",
    only(VERSION_LOG),
    lambda path: path.name == "p00000",
)


# Changes of a store's format, offsets, place and layout.


@mutant(
    "a store records the next format version before its data has that format",
    LibraryTest("no format was released yet, so only a test has a step to the next one"),
)
def _migration_noted_first(patches: Patches, subject: str) -> None:

    def note(folder: Path) -> None:
        store = folder.parent
        if (store / IDENTITY_FILE).exists():
            identity = read_identity(store)
            if identity.format_version < present_version():
                replace_file(
                    store / IDENTITY_FILE, identity._replace(format_version=identity.format_version + 1).text()
                )

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
@instead_of(os, "replace")
def _swapped_without_note(replace: Act, source: Any, target: Any) -> None:
    if Path(target).name.endswith(SWAP_END):
        wipe(Path(target).with_name(Path(target).name.removesuffix(SWAP_END)))
    replace(source, target)


@mutant(
    "an online upgrade records its progress before it writes what it has converted",
    IoFault("kill", only("task-online-upgrade")),
)
@instead_of(Store, "restore")
def _stepped_offset_first(restore: Act, store: Store, pairs: Any, offsets: Any, *rest: Any, **named: Any) -> None:
    restore(store, [], offsets, *rest, **named)
    restore(store, pairs, {})


@mutant(
    "an offset import names the backend that keeps offsets before the store has them",
    IoFault("kill", only("offset-import", "offset-import-rocksdb")),
)
def _import_noted_first(patches: Patches, subject: str) -> None:
    waiting: list[Callable[[], None]] = []

    def write_held() -> None:
        while waiting:
            waiting.pop()()

    for engine in every_engine():
        _holding_offsets(patches, engine, waiting)
    patches.arm(ADOPTED, write_held)


def _holding_offsets(patches: Patches, engine: type[Engine], held: list[Callable[[], None]]) -> None:
    folders = folders_of(patches, engine)

    def hold(write: Write, opened: Engine, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        folder = folders[opened]
        if layers or not any(key.startswith(OFFSET) for key in meta) or _keeps_offsets(folder.parent):
            write(opened, layers, meta, durable=durable)
        else:
            held.append(lambda: write_later(folder, meta))

    def write_later(folder: Path, meta: Meta) -> None:
        backend = backends()[read_identity(folder.parent).backend]
        store = engine.open(folder, Durability.DISK, backend.options)
        try:
            store.write([], meta)
        finally:
            store.close()

    instead_of_writes(patches, engine, hold)


def _keeps_offsets(store: Path) -> bool:
    return not (store / IDENTITY_FILE).exists() or backends()[read_identity(store).backend].manages_offsets


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
    waiting: list[Callable[[], None]] = []

    def hold(replace: Callable[[Path, Path], None], source: Path, target: Path) -> None:
        text = source.read_text()
        source.unlink()
        waiting.append(lambda: write(target, text))

    def write(target: Path, text: str) -> None:
        target.write_text(text)
        sync_tree(target.parent)

    def mutated(unlink: Act, path: Any, **named: Any) -> None:
        # Not the removal of the whole folder, which passes ``dir_fd``.
        if Path(path).name == LAYOUT_FILE and not named:
            waiting.append(lambda: unlink(path))
            return
        unlink(path, **named)
        while Path(path).name == JOURNAL_FILE and waiting:
            waiting.pop()()

    instead_of_replacing(patches, LAYOUT_FILE, hold)
    patches.wrap(os, "unlink", mutated)
