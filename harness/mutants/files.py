"""Mutants of files: creation, removal, replacement, checksums, and what a killed process left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

from harness.mutants.commits import engine_of
from harness.mutants.mutant import IoFault, Mutant, Patches, isolates, only
from stores.errors import StoreLockedError
from stores.files import creation, store_directory
from stores.files.identity import Identity, present_version
from stores.files.locks import take
from stores.files.plain_files import replace_file, sync_folder
from stores.registry import backends
from stores.tasks.directory import directory_layout, process_file
from stores.tasks.directory.state_directory import StateDirectory

CHECKPOINT, CHANGELOG = "checkpoint-file", "embedded-changelog"
STATE_DIRECTORY, LAYOUT_CHANGE = "state-directory", "layout-change"


def _unsynced_rename(patches: Patches, subject: str) -> None:
    for module in ("stores.files.plain_files", "stores.tasks.directory.checkpoint_file"):
        patches.replace(import_module(module), "sync_folder", lambda path: None)


def _checkpoint_in_place(patches: Patches, subject: str) -> None:
    def mutated(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    patches.replace(import_module("stores.tasks.directory.checkpoint_file"), "atomic_write", mutated)


def _unmarked_creation(patches: Patches, subject: str) -> None:
    def mutated(path: Path, backend: str, build: Callable[[Path], None]) -> None:
        (path / "unfinished").unlink(missing_ok=True)
        (path / "store.json").write_text(Identity(backend, present_version()).text())
        build(path)

    patches.replace(store_directory, "create", mutated)


def _unsynced_store_name(patches: Patches, subject: str) -> None:
    def mutated(folder: Path) -> None:
        if (folder / creation.LOCK_FILE).exists():
            sync_folder(folder)

    for module in (creation, store_directory):
        patches.replace(module, "sync_folder", mutated)


def _trusted_log(patches: Patches, subject: str) -> None:
    patches.replace(_engine_module_of(subject), "keep_log", lambda connection, file: None)


def _trusted_meta_pages(patches: Patches, subject: str) -> None:
    patches.replace(_engine_module_of(subject), "keep_meta_pages", lambda env, path: None)


def _unchecked_record(patches: Patches, subject: str) -> None:
    module = import_module("stores.engines.checksum")
    patches.replace(module, "crc32", lambda content: crc32(b""))
    patches.replace(module, "_RESIDUE", crc32(b""))


def _unchecked_checkpoint(patches: Patches, subject: str) -> None:
    module = import_module("stores.tasks.directory.checkpoint_file")
    patches.replace(module, "crc32", lambda content: crc32(b""))


def _keeps_log(name: str) -> bool:
    """Return True for a subject that writes the WAL it finds after a kill once more."""
    return (name == CHANGELOG or name in backends()) and hasattr(_engine_module_of(name), "keep_log")


def _checks_records(name: str) -> bool:
    """Return True for a backend whose records have a checksum of the library."""
    return name in backends() and "checksums" in backends()[name].options


def _keeps_meta_pages(name: str) -> bool:
    """Return True for a backend that writes meta pages through its own descriptor, and once more on opening."""
    return name in backends() and hasattr(_engine_module_of(name), "keep_meta_pages")


def _engine_module_of(subject: str) -> Any:
    if subject == CHANGELOG:
        return import_module("stores.changelog.log_file")
    return import_module(engine_of(subject).__module__)


def _removed_in_place(patches: Patches, subject: str) -> None:
    """Remove a task's folder in place, one file after the other."""

    def mutated(self: StateDirectory, folder: Path, oldest: float) -> bool:
        try:
            os.close(take(folder / ".lock", note=False))
        except StoreLockedError:
            return False
        shutil.rmtree(folder)
        return True

    patches.replace(StateDirectory, "_removed", mutated)


def _unsynced_layout(patches: Patches, subject: str) -> None:
    """Write the layout of a state directory without a sync."""

    def mutated(file: Path, text: str) -> None:
        replace_file(file, text, durable=False)

    patches.replace(directory_layout, "replace_file", mutated)
    patches.replace(directory_layout, "sync_folder", lambda folder: None)


def _unsynced_process_id(patches: Patches, subject: str) -> None:
    """Return the ID of a state directory before its file is synced."""

    def mutated(path: Path, text: str) -> None:
        replace_file(path, text, durable=False)

    patches.replace(process_file, "replace_file", mutated)
    patches.replace(process_file, "sync_folder", lambda folder: None)


MUTANTS = (
    Mutant(
        "unsynced-rename",
        "a file is put in place by a rename, and its folder is not synced",
        _unsynced_rename,
        (IoFault("power", only(CHECKPOINT), unseen_by="kill"),),
    ),
    Mutant(
        "checkpoint-in-place",
        "the checkpoint file is overwritten in place",
        _checkpoint_in_place,
        (IoFault("kill", only(CHECKPOINT)),),
    ),
    Mutant(
        "unmarked-creation",
        "a store is made without the file that says that it is unfinished",
        _unmarked_creation,
        (IoFault("kill", isolates),),
    ),
    Mutant(
        "unsynced-store-name",
        "a new store is synced, and the folder that its name is in is not",
        _unsynced_store_name,
        # The other models, like ext4 and xfs, take a name as durable once any file below it is synced.
        (IoFault("power", isolates, "strict", unseen_by="kill"),),
    ),
    Mutant(
        "trusted-log",
        "the WAL of a killed process is continued, though a sync of it may have failed",
        _trusted_log,
        (IoFault("failed_sync", _keeps_log, unseen_by="power"),),
    ),
    Mutant(
        "trusted-meta-pages",
        "the meta page of the last commit is trusted, though the sync in its write may have failed",
        _trusted_meta_pages,
        (IoFault("failed_sync", _keeps_meta_pages, unseen_by="power"),),
    ),
    Mutant(
        "unchecked-record",
        "the checksum of a record is the same for all",
        _unchecked_record,
        (IoFault("damage", _checks_records, "flipped"),),
    ),
    Mutant(
        "unchecked-checkpoint",
        "the checksum of a checkpoint file is the same for all",
        _unchecked_checkpoint,
        (IoFault("damage", only(CHECKPOINT), "flipped"),),
    ),
    Mutant(
        "removed-in-place",
        "the folder of a task is removed in place, one file after the other",
        _removed_in_place,
        (IoFault("kill", only(STATE_DIRECTORY)),),
    ),
    Mutant(
        "unsynced-process-id",
        "the ID of a state directory is returned before its file is synced",
        _unsynced_process_id,
        (IoFault("power", only(STATE_DIRECTORY), unseen_by="kill"),),
    ),
    Mutant(
        "unsynced-layout",
        "the new layout of a state directory is recorded without a sync",
        _unsynced_layout,
        (IoFault("power", only(LAYOUT_CHANGE), unseen_by="kill"),),
    ),
)
