"""Mutants of the commit of a spilled transaction: each does one step too early, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from harness.mutants.mutant import IoFault, mutant
from harness.mutants.patches import (
    Meta,
    Patches,
    Write,
    engine_of,
    folders_of,
    instead_of_writes,
    opened_with,
    without_syncs,
)
from stores.engines.engine import Engine, FilePart, IngestingEngine, Writes
from stores.interface import Durability
from stores.registry import backends
from stores.strategies.commit_marker import Marker
from stores.strategies.indexed_batch import DECIDED
from stores.strategies.sst_ingest import INGESTED

SPILLS, RECORD, COPYING = "data.tmp", b"commit", b"c"
"""The folder of spills, the meta entry of a spill's commit record, and the store's with its name (docs/format.md)."""


def _makes_spills(name: str) -> bool:
    """Return True for a backend that makes a spill for a transaction that exceeds its memory bound."""
    return name in backends() and DECIDED in backends()[name].failpoints


@mutant("the commit of a spilled transaction is decided before the spill is complete", IoFault("kill", _makes_spills))
def _decided_before_record(patches: Patches, subject: str) -> None:
    """Write the spill's name into the store before the spill has its commit record."""
    folders = folders_of(patches, engine_of(subject))

    def name_first(self: Engine, write: Write, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        if RECORD in meta:
            spill = folders[self]
            data = spill.parent.parent / "data"
            for engine, folder in folders.items():
                if folder == data:
                    write(engine, [], {COPYING: bytes.fromhex(spill.name)})
        write(self, layers, meta, durable=durable)

    instead_of_writes(patches, engine_of(subject), name_first)


@mutant("the commit of a spilled transaction writes its offsets before its data", IoFault("kill", _makes_spills))
def _offsets_before_copy(patches: Patches, subject: str) -> None:
    """Write the offsets, and that no copy is pending, before the copy."""
    final: dict[bytes, bytes | None] = {}

    def finish_first(self: Engine, write: Write, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        write(self, layers, meta, durable=durable)
        if record := meta.get(RECORD):
            final.update({**Marker.read_text(record, Path()).meta, COPYING: None})
        elif meta.get(COPYING):
            write(self, [], final)
            final.clear()

    instead_of_writes(patches, engine_of(subject), finish_first)


def _ingests(name: str) -> bool:
    """Return True for a backend whose commit is an ingestion of files."""
    return name in backends() and INGESTED in backends()[name].failpoints


@mutant("the files of a spilled commit are ingested one by one", IoFault("kill", _ingests))
def _ingested_one_by_one(patches: Patches, subject: str) -> None:
    """Let the engine ingest the files of a commit one by one."""
    engine = cast(type[IngestingEngine], engine_of(subject))
    ingest = engine.ingest

    def mutated(self: IngestingEngine, files: Sequence[Path]) -> None:
        for file in files:
            ingest(self, [file])

    patches.replace(engine, "ingest", mutated)


@mutant("the offsets of a commit are ingested before the file with its data is written", IoFault("kill", _ingests))
def _offsets_ingested_first(patches: Patches, subject: str) -> None:
    """Let the engine ingest the offsets of a commit before it has the file with the data."""
    engine = cast(type[IngestingEngine], engine_of(subject))
    write_file, ingest = engine.write_file, engine.ingest

    def mutated(self: IngestingEngine, path: Path, parts: Iterable[FilePart], meta: Meta | None) -> None:
        if meta is not None:
            offsets = path.with_suffix(".offsets")
            write_file(self, offsets, [], meta)
            ingest(self, [offsets])
        write_file(self, path, parts, meta)

    patches.replace(engine, "write_file", mutated)


@mutant("a commit is decided while its spill is not synced", IoFault("power", _makes_spills, unseen_by="kill"))
def _unsynced_spill(patches: Patches, subject: str) -> None:
    """Open spills without syncs."""
    engine = engine_of(subject)

    def unsynced(
        path: Path, durability: Durability, options: Mapping[str, object]
    ) -> tuple[Durability, Mapping[str, object]]:
        return (Durability.PROCESS if path.parent.name == SPILLS else durability), options

    opened_with(patches, engine, unsynced)
    folders = folders_of(patches, engine)
    persist = engine.persist

    def mutated(self: Engine) -> None:
        if folders[self].parent.name != SPILLS:
            persist(self)

    patches.replace(engine, "persist", mutated)


@mutant(
    "a commit is decided while the folders of its spill are not synced",
    # A journaling file system keeps names in the order of their creation, and the next sync of any file commits
    # them.
    IoFault("power", _makes_spills, "strict", unseen_by="kill"),
)
def _unsynced_spill_folders(patches: Patches, subject: str) -> None:
    """Sync the files of a spill, but none of the folders that name them."""
    without_syncs(patches, lambda path: path.is_dir() and (SPILLS in path.parts or (path / SPILLS).exists()))
