"""Mutants of files: creation, removal, replacement, checksums, and the files that a killed process left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.mutants.mutant import IoFault, isolates, mutant, only
from harness.mutants.patches import Patches, before_opening, engine_of, instead_of_replacing, opened_with, without_syncs
from stores.files.creation import CREATE_SYNCED
from stores.registry import backends

CHECKPOINT, CHANGELOG, VERSION_LOG = "checkpoint-file", "embedded-changelog", "changelog-of-files"
STATE_DIRECTORY, LAYOUT_CHANGE = "state-directory", "layout-change"

_UNFINISHED = "unfinished"
_LAYOUT_FILE, _PROCESS_FILE, _REMOVED = ".state-layout", "kafka-streams-process-metadata", ".removed"
"""Names of files that docs/format.md defines."""


@mutant(
    "a file is put in place by a rename, and its folder is not synced",
    IoFault("power", only(CHECKPOINT), unseen_by="kill"),
)
def _unsynced_rename(patches: Patches, subject: str) -> None:
    without_syncs(patches, Path.is_dir)


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


@mutant(
    "a new store is synced, and the folder that its name is in is not",
    # The other models, like ext4 and xfs, take a name as durable once any file below it is synced.
    IoFault("power", isolates, "strict", unseen_by="kill"),
)
def _unsynced_store_name(patches: Patches, subject: str) -> None:
    without_syncs(patches, lambda path: path.is_dir() and any((each / "lock").exists() for each in path.iterdir()))


def _keeps_log(name: str) -> bool:
    """Return True for a subject that writes the WAL it finds after a kill once more: the files of SQLite."""
    return name == CHANGELOG or (name in backends() and backends()[name].engine == "sqlite")


@mutant(
    "the WAL of a killed process is continued, though a sync of it may have failed",
    IoFault("failed_sync", _keeps_log, unseen_by="power"),
)
def _trusted_log(patches: Patches, subject: str) -> None:
    _without_rewriting(patches, lambda path, offset: path.name.endswith("-wal"))


def _keeps_meta_pages(name: str) -> bool:
    """Return True for a backend that writes meta pages once more when it opens: those of LMDB."""
    return name in backends() and backends()[name].engine == "lmdb"


@mutant(
    "the meta page of the last commit is trusted, though the sync in its write may have failed",
    IoFault("failed_sync", _keeps_meta_pages, unseen_by="power"),
)
def _trusted_meta_pages(patches: Patches, subject: str) -> None:
    # Checksums of meta pages are written at other offsets.
    _without_rewriting(patches, lambda path, offset: path.name == "data.mdb" and offset == 0)


def _without_rewriting(patches: Patches, fits: Callable[[Path, int], bool]) -> None:
    """Leave out the writes with which opening writes again what a killed process may have failed to sync."""
    pwrite = os.pwrite

    def mutated(descriptor: int, content: Any, offset: int) -> int:
        if fits(Path(os.readlink(f"/proc/self/fd/{descriptor}")), offset):
            return len(content)
        return pwrite(descriptor, content, offset)

    patches.replace(os, "pwrite", mutated)


def _checks_records(name: str) -> bool:
    """Return True for a backend whose records have a checksum of the library."""
    return name in backends() and "checksums" in backends()[name].options


@mutant("records are written without checksums", IoFault("damage", _checks_records, "flipped"))
def _unchecked_record(patches: Patches, subject: str) -> None:
    opened_with(
        patches, engine_of(subject), lambda path, durability, options: (durability, {**options, "checksums": False})
    )


@mutant("the folder of a task is removed in place, one file after the other", IoFault("kill", only(STATE_DIRECTORY)))
def _removed_in_place(patches: Patches, subject: str) -> None:
    """Remove a task's folder in place, one file after the other."""
    rename = os.rename

    def mutated(source: Any, target: Any) -> None:
        if not str(target).endswith(_REMOVED):
            rename(source, target)
            return
        shutil.rmtree(source)
        Path(target).mkdir()

    patches.replace(os, "rename", mutated)


@mutant(
    "the new layout of a state directory is recorded without a sync",
    IoFault("power", only(LAYOUT_CHANGE), unseen_by="kill"),
)
def _unsynced_layout(patches: Patches, subject: str) -> None:
    without_syncs(patches, lambda path: path.name.startswith(_LAYOUT_FILE))


@mutant(
    "the ID of a state directory is returned before its file is synced",
    IoFault("power", only(STATE_DIRECTORY), unseen_by="kill"),
)
def _unsynced_process_id(patches: Patches, subject: str) -> None:
    without_syncs(patches, lambda path: path.name.startswith(_PROCESS_FILE))


@mutant(
    "a version's file gets its name before its content is synced", IoFault("power", only(VERSION_LOG), unseen_by="kill")
)
def _unsynced_version(patches: Patches, subject: str) -> None:
    without_syncs(patches, lambda path: path.suffix == ".aside")


@mutant(
    "a version's file gets its name, and the folder is not synced",
    IoFault("power", only(VERSION_LOG), unseen_by="kill"),
)
def _unsynced_version_name(patches: Patches, subject: str) -> None:
    without_syncs(patches, lambda path: path.name == "p00000")
