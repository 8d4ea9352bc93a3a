"""Mutants of a dual store's commit marker and staging store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.mutants.commits import engine_of, strategy_of
from harness.mutants.mutant import IoFault, LibraryTest, Mutant, Patches
from stores.engines.engine import Engine, Writes
from stores.files import plain_files
from stores.registry import backends
from stores.strategies import commit_marker
from stores.strategies.commit_marker import MARKER_WRITTEN, Marker
from stores.strategies.dual_store import DualStore
from stores.strategies.spilled import Spill


def _unsynced_marker(patches: Patches, subject: str) -> None:
    write = Marker.write

    def mutated(self: Marker, path: Path, *, durable: bool) -> None:
        write(self, path, durable=False)

    patches.replace(Marker, "write", mutated)


def _unsynced_marker_folder(patches: Patches, subject: str) -> None:
    def mutated(path: Path, content: bytes, **settings: Any) -> None:
        with Patches() as meanwhile:
            meanwhile.replace(plain_files, "sync_folder", lambda folder: None)
            atomic_write(path, content, **settings)

    atomic_write = plain_files.atomic_write
    patches.replace(commit_marker, "atomic_write", mutated)


def _marker_removed_early(patches: Patches, subject: str) -> None:
    strategy, engine = strategy_of(subject), engine_of(subject)
    commit, write = strategy._commit, engine.write
    copying = False

    def mutated_commit(self: Any, *given: Any) -> None:
        nonlocal copying
        copying = True
        try:
            commit(self, *given)
        finally:
            copying = False

    def mutated_write(
        self: Engine, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True
    ) -> None:
        write(self, layers, meta, durable=durable and not copying)

    patches.replace(strategy, "_commit", mutated_commit)
    patches.replace(engine, "write", mutated_write)


def _has_marker(name: str) -> bool:
    """Return True for a backend whose commits use a marker file."""
    return name in backends() and MARKER_WRITTEN in backends()[name].failpoints


def _marker_by_number(patches: Patches, subject: str) -> None:
    def without_token(marker: Marker) -> bytes:
        return marker.sequence.to_bytes(8, "big") + bytes([marker.in_parts])

    recover = DualStore._recover

    def mutated(store: DualStore) -> None:
        staging = store._staging
        record = staging.meta().get(b"s")
        if record is not None:
            patches.replace(staging, "meta", lambda: {b"s": record[:9]})
        recover(store)

    patches.replace(Marker, "seal", property(without_token))
    patches.replace(DualStore, "_recover", mutated)


def _staging_store_kept(patches: Patches, subject: str) -> None:
    def mutated(store: DualStore, spill: Spill) -> None:
        store._spill = None

    patches.replace(DualStore, "_empty", mutated)


MUTANTS = (
    Mutant(
        "unsynced-marker",
        "a marker is put in place without a sync",
        _unsynced_marker,
        (IoFault("power", _has_marker, unseen_by="kill"),),
    ),
    Mutant(
        "unsynced-marker-folder",
        "a marker is put in place, and its folder is not synced",
        _unsynced_marker_folder,
        (IoFault("power", _has_marker, unseen_by="kill"),),
    ),
    Mutant(
        "marker-removed-early",
        "a marker is removed before the copy is synced",
        _marker_removed_early,
        (IoFault("power", _has_marker, unseen_by="kill"),),
    ),
    Mutant(
        "marker-by-number",
        "a dual store compares its marker with the staging store by the commit's number, and not by its token",
        _marker_by_number,
        (LibraryTest("the two differ only after a commit was tried twice and a kill at CHANGELOG undid the second"),),
    ),
    Mutant(
        "staging-store-kept",
        "a dual store's staging store is never emptied while it is open",
        _staging_store_kept,
        (LibraryTest("opening empties it: until then it only takes space"),),
    ),
)
