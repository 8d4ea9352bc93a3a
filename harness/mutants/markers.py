"""Mutants of a dual store's commit marker and staging store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.mutants.mutant import IoFault, LibraryTest, mutant
from harness.mutants.patches import (
    Meta,
    Patches,
    Write,
    engine_of,
    every_engine,
    folders_of,
    instead_of_writes,
    without_syncs,
)
from stores.engines.engine import Engine, Writes
from stores.registry import backends
from stores.strategies.commit_marker import MARKER_SYNCED, MARKER_WRITTEN, Marker
from stores.strategies.dual_store import MARKER_REMOVED

MARKER, RECORD = "commit", b"s"
"""The file of the marker, and the meta entry of the commit record in the staging store (docs/format.md)."""
_RECORD_BYTES = 17


def _has_marker(name: str) -> bool:
    """Return True for a backend whose commits use a marker file."""
    return name in backends() and MARKER_WRITTEN in backends()[name].failpoints


@mutant("a marker is put in place without a sync", IoFault("power", _has_marker, unseen_by="kill"))
def _unsynced_marker(patches: Patches, subject: str) -> None:
    without_syncs(patches, lambda path: path.name == f"{MARKER}.new" or (path / MARKER).exists())


@mutant("a marker is put in place, and its folder is not synced", IoFault("power", _has_marker, unseen_by="kill"))
def _unsynced_marker_folder(patches: Patches, subject: str) -> None:
    without_syncs(patches, lambda path: (path / MARKER).exists())


@mutant("a marker is removed before the copy is synced", IoFault("power", _has_marker, unseen_by="kill"))
def _marker_removed_early(patches: Patches, subject: str) -> None:
    copying = False

    def copy(begins: bool) -> None:
        nonlocal copying
        copying = begins

    def write_unsynced(self: Engine, write: Write, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        write(self, layers, meta, durable=durable and not copying)

    patches.arm(MARKER_SYNCED, lambda: copy(True))
    patches.arm(MARKER_REMOVED, lambda: copy(False))
    instead_of_writes(patches, engine_of(subject), write_unsynced)


@mutant(
    "a dual store compares its marker with the staging store by the commit's number, and not by its token",
    LibraryTest("the two differ only after a commit was tried twice and a kill at CHANGELOG undid the second"),
)
def _marker_by_number(patches: Patches, subject: str) -> None:
    """Show a commit record with the token of the marker beside it, if both have one number."""
    for engine in every_engine():
        _with_token_of_marker(patches, engine)


def _with_token_of_marker(patches: Patches, engine: type[Engine]) -> None:
    folders = folders_of(patches, engine)
    meta = engine.meta

    def mutated(self: Engine) -> dict[bytes, bytes]:
        found = meta(self)
        record = found.get(RECORD, b"")
        if len(record) == _RECORD_BYTES and self in folders:
            marker = Marker.read(Path(folders[self]).parent / MARKER)
            if marker is not None and marker.sequence.to_bytes(8, "big") == record[:8]:
                found[RECORD] = record[:9] + marker.token
        return found

    patches.replace(engine, "meta", mutated)


@mutant(
    "a dual store's staging store is never emptied while it is open",
    LibraryTest("opening empties it: until then it only takes space"),
)
def _staging_store_kept(patches: Patches, subject: str) -> None:
    def leave_out(self: Engine, write: Write, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        empties = dict(meta) == {RECORD: None} and list(layers[0].ranges) != [(None, None)]
        if not empties:
            write(self, layers, meta, durable=durable)

    for engine in every_engine():
        instead_of_writes(patches, engine, leave_out)
