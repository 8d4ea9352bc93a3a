"""Mutants of a store's commit: it is not one write, or not durable when it returns, or a step of it comes too early."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, cast

from harness.mutants.mutant import (
    Act,
    Build,
    CrashDetection,
    IoFault,
    LibraryTest,
    Meta,
    Patches,
    ReaderDetection,
    Write,
    engine_of,
    every_engine,
    folders_of,
    ingesting_one_by_one,
    instead_of,
    instead_of_writes,
    isolates,
    mutant,
    opened_with,
    reaching,
    unsynced,
)
from stores.engines.engine import Engine, Transaction, TransactionalEngine, Writes
from stores.engines.ingesting import FilePart, IngestingEngine
from stores.errors import CommitFailedError
from stores.failpoints import Part, declare, failpoint, reach
from stores.interface import Durability
from stores.registry import backends
from stores.strategies.dual_store import MARKER_REMOVED
from stores.strategies.indexed_batch import DECIDED
from stores.strategies.spilled import MARKER_SYNCED, MARKER_WRITTEN, Marker
from stores.strategies.sst_ingest import INGESTED, RECOVER_BEFORE_REMOVAL
from stores.strategies.store import Store

SEGMENT_BYTES = 8
"""The length of the prefix of a key in a window or session store that names its segment."""

HALF_WRITTEN = declare("mutant.half_written", "a commit that should be one write has done the first of several")

_ingests, _has_marker, _makes_spills = reaching(INGESTED), reaching(MARKER_WRITTEN), reaching(DECIDED)
"""Backends whose commit is an ingestion of files, whose commits use a marker file, and which make a spill for a
transaction that exceeds its memory bound."""


def syncs_by_level(name: str) -> bool:
    """Return True for a backend that isolates writes, and whose engine syncs because of the level of durability."""
    # RocksDB syncs what it ingests, whatever the level is.
    return isolates(name) and not _ingests(name)


@mutant("a store at DISK opens its engine without syncs", IoFault("power", syncs_by_level, unseen_by="kill"))
def _no_sync(patches: Patches, subject: str) -> None:
    opened_with(patches, engine_of(subject), lambda path, durability, options: (Durability.PROCESS, options))


@mutant(
    "every other commit of a store returns at once, and the next one makes up for it",
    IoFault("kill", isolates),
    CrashDetection("durability"),
)
def _early_acknowledgement(patches: Patches, subject: str) -> None:
    calls: dict[str, int] = {}

    def mutated(commit: Act, store: Store, *offsets: Any) -> None:
        calls[store.name] = calls.get(store.name, 0) + 1
        if calls[store.name] % 2 == 0:
            commit(store, *offsets)

    patches.wrap(Store, "commit", mutated)


@mutant("a commit that failed is acknowledged all the same", IoFault("error", isolates, variant="EIO once"))
@instead_of(Store, "commit")
def _swallowed_error(commit: Act, store: Store, *offsets: Any) -> None:
    try:
        commit(store, *offsets)
    except CommitFailedError:
        store.rollback()


@mutant("a put also writes into the engine at once", CrashDetection("uncommitted"))
def _write_through(patches: Patches, subject: str) -> None:
    folders = folders_of(patches, engine_of(subject))

    def mutated(put: Act, store: Store, key: bytes, value: bytes | None) -> None:
        put(store, key, value)
        for engine, folder in folders.items():
            if folder.name == "data" and store.name in folder.parts:
                engine.put(key, value)

    patches.wrap(Store, "put", mutated)


class _OneWrite:
    """A transaction whose commit is one ``write`` of its engine, where a mutant can divide it, instead of its own."""

    def __init__(self, engine: Engine, own: Transaction) -> None:
        self._engine, self._own = engine, own
        self._layers: list[Writes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        self._own.put(key, value, family)
        if not self._layers or self._layers[-1].family != family:
            self._layers.append(Writes((), {}, family))
        cast(dict[bytes, bytes | None], self._layers[-1].writes)[key] = value

    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        self._own.delete_range(start, end, family)
        self._layers.append(Writes([(start, end)], {}, family))

    def commit(self, meta: Meta) -> None:
        self._own.abort()
        self._engine.write(self._layers, meta)


Division = Callable[[Sequence[Writes], Meta], Iterable[tuple[Sequence[Writes], Meta]]]
"""Return the writes into which a mutant divides one."""


def in_several_writes(divide: Division, of: type[Engine] | None = None) -> Build:
    """Return the builder of a mutant that divides each commit into the writes that ``divide`` yields, and its name.

    It is built into the engine ``of``, or into that of the subject.
    """

    @wraps(divide)
    def build(patches: Patches, subject: str) -> None:
        engine = of or engine_of(subject)
        if issubclass(engine, TransactionalEngine):
            patches.wrap(engine, "begin", lambda begin, opened: _OneWrite(opened, begin(opened)))

        def divided(write: Write, opened: Engine, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
            if not layers or not meta:
                write(opened, layers, meta, durable=durable)
                return
            for number, (some, entries) in enumerate(divide(layers, meta)):
                if number == 1:
                    reach(HALF_WRITTEN)
                    time.sleep(0)
                write(opened, some, entries, durable=durable)

        instead_of_writes(patches, engine, divided)

    return build


def commits_once(name: str) -> bool:
    """Return True for a backend whose commit is one write: recovery repeats no commit of ordinary size."""
    return isolates(name) and not any(map(_repeats_ordinary_commits, backends()[name].failpoints))


@mutant(
    "a commit writes its offsets first, and its data in a second write",
    IoFault("kill", commits_once),
    CrashDetection("atomicity"),
)
@in_several_writes
def _offsets_before(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    return [([], meta), (layers, {})]


@mutant("a commit writes its data first, and its offsets in a second write", IoFault("kill", commits_once))
@in_several_writes
def _offsets_after(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    return [(layers, {}), ([], meta)]


@mutant(
    "a commit writes half of its data first, and the rest with its offsets in a second write",
    CrashDetection("atomicity"),
    ReaderDetection("indexed-batch"),
)
@in_several_writes
def _torn_commit(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    parts = [(layer, list(layer.writes.items())) for layer in layers]
    return [
        ([Writes(layer.ranges, dict(pairs[: len(pairs) // 2]), layer.family) for layer, pairs in parts], {}),
        ([Writes((), dict(pairs[len(pairs) // 2 :]), layer.family) for layer, pairs in parts], meta),
    ]


@mutant("a commit is one write for each key", IoFault("kill", commits_once))
@in_several_writes
def _write_per_key(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    for layer in layers:
        yield [Writes(layer.ranges, {}, layer.family)], {}
        for key, value in layer.writes.items():
            yield [Writes((), {key: value}, layer.family)], {}
    yield [], meta


@mutant(
    "a window store commits segment by segment, the newest first, with the offsets (KIP-258, as in Kafka)",
    IoFault("kill", commits_once, records="window"),
    CrashDetection("atomicity"),
)
@in_several_writes
def _segments_one_by_one(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    segments = {key[:SEGMENT_BYTES] for layer in layers for key in layer.writes}
    newest = max(segments, default=b"")
    for segment in sorted(segments | {newest}, reverse=True):
        part = [
            Writes(
                layer.ranges if segment == newest else (),
                {key: value for key, value in layer.writes.items() if key[:SEGMENT_BYTES] == segment},
                layer.family,
            )
            for layer in layers
        ]
        yield part, meta if segment == newest else {}


def _repeats_ordinary_commits(name: str) -> bool:
    """Return True for a failpoint of a recovery that a kill in a commit of ordinary size leads to."""
    if name == RECOVER_BEFORE_REMOVAL:
        return False
    point = failpoint(name)
    earlier = point.after_at(Durability.DISK)
    return point.part is Part.RECOVERY and not (earlier and failpoint(earlier).options)


# The commit marker of a dual store, and its staging store.

MARKER, STAGING_RECORD = "commit", b"s"
"""The file of the marker, and the meta entry of the commit record in the staging store (docs/format.md)."""
_RECORD_BYTES = 17

unsynced(
    "unsynced-marker",
    "a marker is put in place without a sync",
    _has_marker,
    lambda path: path.name == f"{MARKER}.new" or (path / MARKER).exists(),
)
unsynced(
    "unsynced-marker-folder",
    "a marker is put in place, and its folder is not synced",
    _has_marker,
    lambda path: (path / MARKER).exists(),
)


@mutant("a marker is removed before the copy is synced", IoFault("power", _has_marker, unseen_by="kill"))
def _marker_removed_early(patches: Patches, subject: str) -> None:
    copying = False

    def copy(begins: bool) -> None:
        nonlocal copying
        copying = begins

    def write_unsynced(write: Write, opened: Engine, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        write(opened, layers, meta, durable=durable and not copying)

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

    def mutated(meta: Act, opened: Engine) -> dict[bytes, bytes]:
        entries: dict[bytes, bytes] = meta(opened)
        record = entries.get(STAGING_RECORD, b"")
        if len(record) == _RECORD_BYTES and opened in folders:
            marker = Marker.read(Path(folders[opened]).parent / MARKER)
            if marker is not None and marker.sequence.to_bytes(8, "big") == record[:8]:
                entries[STAGING_RECORD] = record[:9] + marker.token
        return entries

    patches.wrap(engine, "meta", mutated)


@mutant(
    "a dual store's staging store is never emptied while it is open",
    LibraryTest("opening empties it: until then it only takes space"),
)
def _staging_store_kept(patches: Patches, subject: str) -> None:
    def leave_out(write: Write, opened: Engine, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        empties = dict(meta) == {STAGING_RECORD: None} and list(layers[0].ranges) != [(None, None)]
        if not empties:
            write(opened, layers, meta, durable=durable)

    for engine in every_engine():
        instead_of_writes(patches, engine, leave_out)


# The commit of a spilled transaction, and of an ingestion of files.

SPILLS, RECORD, COPYING = "data.tmp", b"commit", b"c"
"""The folder of spills, the meta entry of a spill's commit record, and the store's with its name (docs/format.md)."""


@mutant("the commit of a spilled transaction is decided before the spill is complete", IoFault("kill", _makes_spills))
def _decided_before_record(patches: Patches, subject: str) -> None:
    folders = folders_of(patches, engine_of(subject))

    def name_first(write: Write, opened: Engine, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        if RECORD in meta:
            spill = folders[opened]
            data = spill.parent.parent / "data"
            for engine, folder in folders.items():
                if folder == data:
                    write(engine, [], {COPYING: bytes.fromhex(spill.name)})
        write(opened, layers, meta, durable=durable)

    instead_of_writes(patches, engine_of(subject), name_first)


@mutant("the commit of a spilled transaction writes its offsets before its data", IoFault("kill", _makes_spills))
def _offsets_before_copy(patches: Patches, subject: str) -> None:
    final: dict[bytes, bytes | None] = {}

    def finish_first(write: Write, opened: Engine, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
        write(opened, layers, meta, durable=durable)
        if record := meta.get(RECORD):
            final.update({**Marker.read_text(record, Path()).meta, COPYING: None})
        elif meta.get(COPYING):
            write(opened, [], final)
            final.clear()

    instead_of_writes(patches, engine_of(subject), finish_first)


@mutant("the files of a spilled commit are ingested one by one", IoFault("kill", _ingests))
def _ingested_one_by_one(patches: Patches, subject: str) -> None:
    ingesting_one_by_one(patches, engine_of(subject))


@mutant("the offsets of a commit are ingested before the file with its data is written", IoFault("kill", _ingests))
def _offsets_ingested_first(patches: Patches, subject: str) -> None:
    def mutated(
        write_file: Act, opened: IngestingEngine, path: Path, parts: Iterable[FilePart], meta: Meta | None
    ) -> None:
        if meta is not None:
            offsets = path.with_suffix(".offsets")
            write_file(opened, offsets, [], meta)
            opened.ingest([offsets])
        write_file(opened, path, parts, meta)

    patches.wrap(engine_of(subject), "write_file", mutated)


@mutant("a commit is decided while its spill is not synced", IoFault("power", _makes_spills, unseen_by="kill"))
def _unsynced_spill(patches: Patches, subject: str) -> None:
    engine = engine_of(subject)

    def without_sync(
        path: Path, durability: Durability, options: Mapping[str, object]
    ) -> tuple[Durability, Mapping[str, object]]:
        return (Durability.PROCESS if path.parent.name == SPILLS else durability), options

    def persist_others(persist: Act, opened: Engine) -> None:
        if folders[opened].parent.name != SPILLS:
            persist(opened)

    opened_with(patches, engine, without_sync)
    folders = folders_of(patches, engine)
    patches.wrap(engine, "persist", persist_others)


# The files of a spill are synced, but none of the folders that name them.
unsynced(
    "unsynced-spill-folders",
    "a commit is decided while the folders of its spill are not synced",
    _makes_spills,
    lambda path: path.is_dir() and (SPILLS in path.parts or (path / SPILLS).exists()),
    # A journaling file system keeps names in the order of their creation, and the next sync of any file commits them.
    "strict",
)
