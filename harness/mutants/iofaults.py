"""Mutants: each must be detected by its fault, or the fault injection shows nothing.

They are patched into those children of the fork server that ask for one, and exist nowhere else. All are tried at DISK.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from zlib import crc32

from harness.experiments.iofaults.subjects import (
    ADOPTIONS,
    CHANGELOG,
    CHECKPOINT,
    LAYOUT_CHANGE,
    LAZY_UPGRADE,
    MIGRATION,
    ONLINE_UPGRADE,
    PUNCTUATION,
    RELOCATION,
    STATE_DIRECTORY,
    TASKS,
    UPGRADE,
    is_transactional,
    subjects,
)
from harness.mutants.patch import replace
from harness.mutants.protocols import (
    adopted_before_import,
    checkpoint_before_folder,
    layout_noted_last,
    migration_noted_first,
    one_offset_for_all,
    punctuated_outside,
    removed_in_place,
    stepped_offset_first,
    stream_time_forgotten,
    swapped_without_note,
    unsynced_layout,
    unsynced_process_id,
    upgraded_outside,
)
from harness.mutants.spills import (
    decided_before_seal,
    offsets_before_copy,
    spills_apart,
    unsynced_spill,
    unsynced_spill_folders,
)
from harness.typed_maps import PLAIN
from stores.engines.engine import Engine, Transaction, TransactionalEngine, Writes
from stores.errors import CommitFailedError, ConfigError
from stores.failpoints import Part, failpoint
from stores.files import creation
from stores.files import plain_files as files
from stores.files import store_directory as directory
from stores.files.identity import Identity, present_version
from stores.files.plain_files import sync_folder
from stores.interface import Durability, TopicPartition
from stores.registry import backends
from stores.strategies.commit_marker import MARKER_WRITTEN
from stores.strategies.store import EngineStore

SEGMENT_BYTES = 8
"""The length of the prefix of a key in a window or session store that names its segment."""
LEVEL = "DISK"
"""The level at which mutants are tried: the one that promises most."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect, and the fault that must detect it at DISK in each subject that it ``fits``.

    ``records`` is the kind of store that it needs. ``unseen_by`` is a fault that cannot detect it, which is tried too.
    It is empty where that would show nothing.
    """

    meaning: str
    fault: str
    fits: Callable[[str], bool]
    apply: Callable[[str], None]
    variant: str = ""
    unseen_by: str = ""
    records: str = PLAIN

    def subjects(self) -> list[str]:
        """Return the names of the subjects in which the mutant is a defect."""
        return [name for name, level in subjects() if level == LEVEL and self.fits(name)]


def build_in(mutant: str, subject: str) -> None:
    """Patch this process so that ``subject`` has the defect ``mutant``; "" is none. Raises: ConfigError if unknown."""
    if not mutant:
        return
    if mutant not in MUTANTS:
        raise ConfigError(f"no mutant {mutant!r}; there are: {', '.join(MUTANTS)}")
    MUTANTS[mutant].apply(subject)


def _engine(subject: str) -> type[Engine]:
    return backends()[subject].load_engine()


def _strategy(subject: str) -> type[EngineStore]:
    return backends()[subject].load_strategy()


def _module_of(subject: str) -> Any:
    return import_module(_strategy(subject).__module__)


def _no_sync(subject: str) -> None:
    engine = _engine(subject)
    opening = engine.open.__func__  # type: ignore[attr-defined]

    def broken(cls: type[Engine], path: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
        opened: Engine = opening(cls, path, Durability.PROCESS, options)
        return opened

    replace(engine, "open", classmethod(broken))


def _early_acknowledgement(subject: str) -> None:
    strategy = _strategy(subject)
    commit = strategy.commit
    asked = 0

    def broken(self: EngineStore, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        nonlocal asked
        asked += 1
        if asked % 2 == 0:
            commit(self, changelog_offsets)

    replace(strategy, "commit", broken)


class _WrittenLater(Transaction):
    """A transaction whose commit is one ``write`` of its engine, which may be broken, instead of its own."""

    def __init__(self, engine: Engine, own: Transaction) -> None:
        self._engine, self._own = engine, own
        self._layers: list[Writes] = []

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self._own.get(key, family)

    def fetch(self, *range_and_most: Any, **direction: Any) -> tuple[list[tuple[bytes, bytes]], bool]:
        return self._own.fetch(*range_and_most, **direction)

    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        self._own.put(key, value, family)
        if not self._layers or self._layers[-1].family != family:
            self._layers.append(Writes((), {}, family))
        cast(dict[bytes, bytes | None], self._layers[-1].writes)[key] = value

    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        self._own.delete_range(start, end, family)
        self._layers.append(Writes([(start, end)], {}, family))

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        self._own.abort()
        self._engine.write(self._layers, meta)

    def abort(self) -> None:
        self._own.abort()


def _written_engine(subject: str) -> type[Engine]:
    """Return the subject's engine, patched so that every commit goes through its ``write``."""
    engine = _engine(subject)
    if issubclass(engine, TransactionalEngine):
        begin = engine.begin

        def broken(self: TransactionalEngine) -> Transaction:
            return _WrittenLater(self, begin(self))

        replace(engine, "begin", broken)
    return engine


def _offsets_apart(*, first: bool) -> Callable[[str], None]:
    def apply(subject: str) -> None:
        engine = _written_engine(subject)
        write = engine.write

        def broken(
            self: Engine, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True
        ) -> None:
            if not layers or not meta:
                write(self, layers, meta, durable=durable)
                return
            write(self, [] if first else layers, meta if first else {}, durable=durable)
            write(self, layers if first else [], {} if first else meta, durable=durable)

        replace(engine, "write", broken)

    return apply


def _write_per_key(subject: str) -> None:
    engine = _written_engine(subject)
    write = engine.write

    def broken(
        self: Engine, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True
    ) -> None:
        for layer in layers:
            write(self, [Writes(layer.ranges, {}, layer.family)], {}, durable=durable)
            for key, value in layer.writes.items():
                write(self, [Writes((), {key: value}, layer.family)], {}, durable=durable)
        write(self, [], meta, durable=durable)

    replace(engine, "write", broken)


def _write_per_segment(subject: str) -> None:
    engine = _written_engine(subject)
    write = engine.write

    def broken(
        self: Engine, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True
    ) -> None:
        segments = {key[:SEGMENT_BYTES] for layer in layers for key in layer.writes}
        newest = max(segments, default=b"")
        for segment in sorted(segments | {newest}, reverse=True):
            part = [
                Writes(
                    layer.ranges if segment == newest else (),
                    {key: value for key, value in layer.writes.items() if key[:SEGMENT_BYTES] == segment},
                )
                for layer in layers
            ]
            write(self, part, meta if segment == newest else {}, durable=durable)

    replace(engine, "write", broken)


def _unsynced_marker(subject: str) -> None:
    marker = _module_of(subject).Marker
    write = marker.write

    def broken(self: Any, path: Path, *, durable: bool) -> None:
        write(self, path, durable=False)

    replace(marker, "write", broken)


def _unsynced_marker_folder(subject: str) -> None:
    def broken(path: Path, content: bytes, **settings: Any) -> None:
        replace(files, "sync_folder", lambda folder: None)
        try:
            files.atomic_write(path, content, **settings)
        finally:
            replace(files, "sync_folder", sync_folder)

    replace(import_module("stores.strategies.commit_marker"), "atomic_write", broken)


def _marker_removed_early(subject: str) -> None:
    strategy, engine = _strategy(subject), _engine(subject)
    commit, write = strategy._commit, engine.write
    copying = False

    def broken_commit(self: Any, *given: Any) -> None:
        nonlocal copying
        copying = True
        try:
            commit(self, *given)
        finally:
            copying = False

    def broken_write(
        self: Engine, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True
    ) -> None:
        write(self, layers, meta, durable=durable and not copying)

    replace(strategy, "_commit", broken_commit)
    replace(engine, "write", broken_write)


def _swallowed_error(subject: str) -> None:
    strategy = _strategy(subject)
    commit = strategy.commit

    def broken(self: EngineStore, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        try:
            commit(self, changelog_offsets)
        except CommitFailedError:
            self.rollback()

    replace(strategy, "commit", broken)


def _unsynced_rename(subject: str) -> None:
    for module in ("stores.files.plain_files", "stores.tasks.directory.checkpoint_file"):
        replace(import_module(module), "sync_folder", lambda path: None)


def _checkpoint_in_place(subject: str) -> None:
    def broken(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    replace(import_module("stores.tasks.directory.checkpoint_file"), "atomic_write", broken)


def _unmarked_creation(subject: str) -> None:
    def broken(path: Path, backend: str, build: Callable[[Path], None]) -> None:
        (path / "unfinished").unlink(missing_ok=True)
        (path / "store.json").write_text(Identity(backend, present_version()).text())
        build(path)

    replace(directory, "create", broken)


def _unsynced_store_name(subject: str) -> None:
    def broken(folder: Path) -> None:
        if (folder / creation.LOCK_FILE).exists():
            sync_folder(folder)

    for module in (creation, directory):
        replace(module, "sync_folder", broken)


def _trusted_log(subject: str) -> None:
    replace(_engine_module_of(subject), "keep_log", lambda connection, file: None)


def _unchecked_record(subject: str) -> None:
    seal = import_module("stores.engines.checksum")
    replace(seal, "crc32", lambda content: crc32(b""))
    replace(seal, "_RESIDUE", crc32(b""))


def _unchecked_checkpoint(subject: str) -> None:
    module = import_module("stores.tasks.directory.checkpoint_file")
    replace(module, "crc32", lambda content: crc32(b""))


def _trusted_meta_pages(subject: str) -> None:
    replace(_engine_module_of(subject), "keep_meta_pages", lambda env, path: None)


def _engine_module_of(subject: str) -> Any:
    if subject == CHANGELOG:
        return import_module("stores.changelog.log_file")
    return import_module(_engine(subject).__module__)


def _keeps_apart(name: str) -> bool:
    """Return True for a backend with isolation: visibility at the wrong time is a defect there."""
    return name in backends() and is_transactional(name)


def _marks(name: str) -> bool:
    """Return True for a backend whose commits use a marker file."""
    return name in backends() and MARKER_WRITTEN in backends()[name].failpoints


def _writes_once(name: str) -> bool:
    """Return True for a backend whose commit is one write: recovery repeats no commit of ordinary size."""
    return _keeps_apart(name) and not any(map(_repeats_ordinary_commits, backends()[name].failpoints))


def _repeats_ordinary_commits(name: str) -> bool:
    """Return True for a failpoint of a recovery that a kill in a commit of ordinary size leads to."""
    point = failpoint(name)
    earlier = point.after_at(LEVEL)
    return point.part is Part.RECOVERY and not (earlier and failpoint(earlier).options)


def _keeps_log(name: str) -> bool:
    """Return True for a subject that writes the WAL it finds after a kill once more."""
    return (name == CHANGELOG or name in backends()) and hasattr(_engine_module_of(name), "keep_log")


def _checks_records(name: str) -> bool:
    """Return True for a backend whose records have a checksum of the library."""
    return name in backends() and "checksums" in backends()[name].options


def _keeps_meta_pages(name: str) -> bool:
    """Return True for a backend that writes meta pages through its own descriptor, and once more on opening."""
    return name in backends() and hasattr(_engine_module_of(name), "keep_meta_pages")


def _only(subject: str) -> Callable[[str], bool]:
    return lambda name: name == subject


def _among(subjects: Collection[str]) -> Callable[[str], bool]:
    return lambda name: name in subjects


MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {
        "no-sync": Mutant(
            "a store at DISK opens its engine without syncs", "power", _keeps_apart, _no_sync, unseen_by="kill"
        ),
        "early-acknowledgement": Mutant(
            "every other commit returns at once, and is made up for by the next one",
            "kill",
            _keeps_apart,
            _early_acknowledgement,
        ),
        "offsets-before": Mutant(
            "offsets are a write of their own, before the data", "kill", _writes_once, _offsets_apart(first=True)
        ),
        "offsets-after": Mutant(
            "offsets are a write of their own, after the data", "kill", _writes_once, _offsets_apart(first=False)
        ),
        "write-per-key": Mutant("a commit is one write for each key", "kill", _writes_once, _write_per_key),
        "segments-one-by-one": Mutant(
            "a window store commits segment by segment, the newest first, with the offsets (KIP-258, as in Kafka)",
            "kill",
            _writes_once,
            _write_per_segment,
            records="window",
        ),
        "unsynced-marker": Mutant(
            "a marker is put in place without a sync", "power", _marks, _unsynced_marker, unseen_by="kill"
        ),
        "unsynced-marker-folder": Mutant(
            "a marker is put in place, and its folder is not synced",
            "power",
            _marks,
            _unsynced_marker_folder,
            unseen_by="kill",
        ),
        "marker-removed-early": Mutant(
            "a marker is removed before the copy is synced", "power", _marks, _marker_removed_early, unseen_by="kill"
        ),
        "decided-before-seal": Mutant(
            "a spilled commit is decided before what was spilled is complete",
            "kill",
            spills_apart,
            decided_before_seal,
        ),
        "offsets-before-copy": Mutant(
            "a spilled commit has its offsets before its data", "kill", spills_apart, offsets_before_copy
        ),
        "unsynced-spill": Mutant(
            "a commit is decided while what was spilled is not synced",
            "power",
            spills_apart,
            unsynced_spill,
            unseen_by="kill",
        ),
        "unsynced-spill-folders": Mutant(
            "a commit is decided while the folders of what was spilled are not synced",
            "power",
            spills_apart,
            unsynced_spill_folders,
            # A journaling file system keeps names in the order of their creation, and the next sync of any file commits
            # them.
            "strict",
            unseen_by="kill",
        ),
        "swallowed-error": Mutant(
            "a commit that failed is acknowledged all the same",
            "error",
            _keeps_apart,
            _swallowed_error,
            variant="EIO once",
        ),
        "unsynced-rename": Mutant(
            "a file is put in place by a rename, and its folder is not synced",
            "power",
            _only(CHECKPOINT),
            _unsynced_rename,
            unseen_by="kill",
        ),
        "checkpoint-in-place": Mutant(
            "the checkpoint file is written where it lies", "kill", _only(CHECKPOINT), _checkpoint_in_place
        ),
        "unmarked-creation": Mutant(
            "a store is made without a mark that it does not count yet", "kill", _keeps_apart, _unmarked_creation
        ),
        "unsynced-store-name": Mutant(
            "a new store is synced, and the folder that its name is in is not",
            "power",
            _keeps_apart,
            _unsynced_store_name,
            # The other models, like ext4 and xfs, take a name as durable once any file below it is synced.
            variant="strict",
            unseen_by="kill",
        ),
        "trusted-log": Mutant(
            "a log that a killed process left is gone on with, though a sync of it may have failed",
            "failed_sync",
            _keeps_log,
            _trusted_log,
            unseen_by="power",
        ),
        "unchecked-record": Mutant(
            "the checksum of a record is the same for all", "damage", _checks_records, _unchecked_record, "flipped"
        ),
        "unchecked-checkpoint": Mutant(
            "the checksum of a checkpoint file is the same for all",
            "damage",
            _only(CHECKPOINT),
            _unchecked_checkpoint,
            "flipped",
        ),
        "trusted-meta-pages": Mutant(
            "the page of the last commit is trusted as it is found, though the sync in its write may have failed",
            "failed_sync",
            _keeps_meta_pages,
            _trusted_meta_pages,
            unseen_by="power",
        ),
        "migration-noted-first": Mutant(
            "a store says that it has the next format before it has", "kill", _only(MIGRATION), migration_noted_first
        ),
        "upgraded-outside": Mutant(
            "a lazy upgrade removes the old record first, outside of the transaction that writes the new one",
            "kill",
            _only(LAZY_UPGRADE),
            upgraded_outside,
        ),
        "swapped-without-note": Mutant(
            "an upgrade removes the old store before the new one counts", "kill", _only(UPGRADE), swapped_without_note
        ),
        "stepped-offset-first": Mutant(
            "an online upgrade notes how far it has come before it writes what it has converted",
            "kill",
            _only(ONLINE_UPGRADE),
            stepped_offset_first,
        ),
        "adopted-before-import": Mutant(
            "a store says that it keeps its offsets before it has them",
            "kill",
            _among(ADOPTIONS),
            adopted_before_import,
        ),
        "one-offset-for-all": Mutant(
            "each store of a task is committed with the highest offset of all their changelogs",
            "kill",
            _only(TASKS[0]),
            one_offset_for_all,
        ),
        "stream-time-forgotten": Mutant(
            "the stream time of a task is not committed with the input's offsets",
            "kill",
            _only(PUNCTUATION),
            stream_time_forgotten,
        ),
        "punctuated-outside": Mutant(
            "what a punctuator forwards is sent outside of the task's transaction",
            "kill",
            _only(PUNCTUATION),
            punctuated_outside,
        ),
        "removed-in-place": Mutant(
            "the folder of a task is removed file by file where it lies",
            "kill",
            _only(STATE_DIRECTORY),
            removed_in_place,
        ),
        "checkpoint-before-folder": Mutant(
            "a store that moves to another task has its offset there before its folder",
            "kill",
            _only(RELOCATION),
            checkpoint_before_folder,
        ),
        "layout-noted-last": Mutant(
            "a change of layout removes its journal before the directory notes the new layout",
            "kill",
            _only(LAYOUT_CHANGE),
            layout_noted_last,
        ),
        "unsynced-layout": Mutant(
            "the new layout of a state directory is noted without a sync",
            "power",
            _only(LAYOUT_CHANGE),
            unsynced_layout,
            unseen_by="kill",
        ),
        "unsynced-process-id": Mutant(
            "the id of a state directory is told before its file is synced",
            "power",
            _only(STATE_DIRECTORY),
            unsynced_process_id,
            unseen_by="kill",
        ),
    }
)
"""Every mutant by its name."""
