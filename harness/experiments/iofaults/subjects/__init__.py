"""The subjects of fault injection: every persistent backend, and the library's protocols that keep state beside it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.experiments.iofaults.subjects.changelog import ChangelogSubject
from harness.experiments.iofaults.subjects.checkpoint import CheckpointSubject
from harness.experiments.iofaults.subjects.layout_change import LayoutChangeSubject
from harness.experiments.iofaults.subjects.lazy_upgrade import LazyUpgradeSubject
from harness.experiments.iofaults.subjects.migration import MigrationSubject
from harness.experiments.iofaults.subjects.offset_import import IMPORTS, OffsetImportSubject
from harness.experiments.iofaults.subjects.online_upgrade import OnlineUpgradeSubject
from harness.experiments.iofaults.subjects.punctuated import PunctuatedTaskSubject
from harness.experiments.iofaults.subjects.relocation import RelocationSubject
from harness.experiments.iofaults.subjects.state_directory import StateDirectorySubject
from harness.experiments.iofaults.subjects.subject import StoreSubject, Subject
from harness.experiments.iofaults.subjects.task import PAIRS, TaskSubject
from harness.experiments.iofaults.subjects.upgrade import UpgradeSubject
from harness.experiments.iofaults.subjects.version_log import VersionLogSubject
from harness.experiments.iofaults.workload import PASSING_KINDS, State, with_passing
from harness.typed_maps import PLAIN, check_kind
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends

__all__ = [
    "CHANGELOG",
    "CHECKPOINT",
    "LAYOUT_CHANGE",
    "LAZY_UPGRADE",
    "MIGRATION",
    "OFFSET_IMPORTS",
    "ONLINE_UPGRADE",
    "PUNCTUATION",
    "RELOCATION",
    "STATE_DIRECTORY",
    "TASKS",
    "UPGRADE",
    "VERSION_LOG",
    "Subject",
    "check_subject",
    "is_transactional",
    "shown",
    "subject",
    "subject_named",
    "subjects",
]

CHECKPOINT, CHANGELOG, VERSION_LOG = "checkpoint-file", "embedded-changelog", "changelog-of-files"
MIGRATION, STATE_DIRECTORY = "format-migration", "state-directory"
RELOCATION, LAYOUT_CHANGE = "relocation", "layout-change"
LAZY_UPGRADE, UPGRADE = "lazy-upgrade", "format-upgrade"
PUNCTUATION, ONLINE_UPGRADE = "task-punctuation", "task-online-upgrade"
TASKS, OFFSET_IMPORTS = (*PAIRS, PUNCTUATION, ONLINE_UPGRADE), tuple(IMPORTS)


class _Own(NamedTuple):
    """A subject that is no backend, and the durability levels at which it behaves differently."""

    make: Callable[[Path, Durability], Subject]
    expected: Callable[[State], State]
    levels: tuple[Durability, ...]


_OWN: Mapping[str, _Own] = {
    # The next five behave the same at all levels: other data depends on them, so they must survive power loss.
    CHECKPOINT: _Own(CheckpointSubject, CheckpointSubject.expected, (Durability.DISK,)),
    STATE_DIRECTORY: _Own(StateDirectorySubject, StateDirectorySubject.expected, (Durability.DISK,)),
    RELOCATION: _Own(RelocationSubject, RelocationSubject.expected, (Durability.DISK,)),
    LAYOUT_CHANGE: _Own(LayoutChangeSubject, LayoutChangeSubject.expected, (Durability.DISK,)),
    VERSION_LOG: _Own(VersionLogSubject, VersionLogSubject.expected, (Durability.DISK,)),
    **{
        name: _Own(
            partial(OffsetImportSubject, backend=backend, left_by=left_by),
            OffsetImportSubject.expected,
            tuple(Durability),
        )
        for name, (backend, left_by) in IMPORTS.items()
    },
    LAZY_UPGRADE: _Own(LazyUpgradeSubject, LazyUpgradeSubject.expected, tuple(Durability)),
    MIGRATION: _Own(MigrationSubject, MigrationSubject.expected, tuple(Durability)),
    UPGRADE: _Own(
        partial(UpgradeSubject, backend="lmdb-indexed-batch"),
        UpgradeSubject.expected,
        (Durability.PROCESS, Durability.DISK),
    ),
    CHANGELOG: _Own(ChangelogSubject, ChangelogSubject.expected, (Durability.PROCESS, Durability.DISK)),
    **{
        name: _Own(partial(TaskSubject, backends=pair), TaskSubject.expected, tuple(Durability))
        for name, pair in PAIRS.items()
    },
    PUNCTUATION: _Own(PunctuatedTaskSubject, PunctuatedTaskSubject.expected, tuple(Durability)),
    ONLINE_UPGRADE: _Own(OnlineUpgradeSubject, OnlineUpgradeSubject.expected, tuple(Durability)),
}


_OLD_NAMES = {"store-adoption": "offset-import", "store-adoption-rocksdb": "offset-import-rocksdb"}


def current_name(name: str) -> str:
    """Return the name of a subject that had another one in an earlier version, with a DeprecationWarning; else it."""
    if name not in _OLD_NAMES:
        return name
    warnings.warn(f"the subject {name} is called {_OLD_NAMES[name]}", DeprecationWarning, stacklevel=3)
    return _OLD_NAMES[name]


def subject(name: str, root: Path, level: str, records: str = PLAIN) -> Subject:
    """Return the subject ``name``: a backend with stores of the kind ``records``, or a protocol of the library."""
    if name in _OWN:
        return _OWN[name].make(root, Durability(level))
    return StoreSubject(root, Durability(level), name, records)


def subject_named(name: str) -> str:
    """Return the full name of a subject; a backend may have an alias. Raises: ConfigError if it does not exist."""
    name = current_name(name)
    return name if name in _OWN else backend_named(name).name


def subjects() -> list[tuple[str, str]]:
    """Return every subject with each of its durability levels, in a fixed order."""
    carried = [
        (name, str(level))
        for name, backend in backends().items()
        if backend.persistent
        for level in Durability
        if level in backend.durabilities
    ]
    return [*carried, *((name, str(level)) for name, own in _OWN.items() for level in own.levels)]


def shown(name: str, state: State, records: str = PLAIN) -> State:
    """Return the state that the subject called ``name`` must show for the workload's ``state``."""
    if name in _OWN:
        return _OWN[name].expected(state)
    return with_passing(state) if records in PASSING_KINDS else state


def is_transactional(name: str) -> bool:
    """Return True if the subject called ``name`` isolates uncommitted writes."""
    backend = backends().get(name)
    # The property is a constant of the backend, so no store is needed.
    return backend is None or backend.transactional


def check_subject(name: str, level: str, records: str = PLAIN) -> None:
    """Raise ConfigError if the subject does not exist, or does not have that level or kind of stores."""
    check_kind(records)
    if records and name in _OWN:
        raise ConfigError(f"{name} has the kinds of stores that it has: leave out {records!r}, or choose a backend")
    if (name, level) not in subjects():
        if name not in _OWN:
            backend_named(name)
        raise ConfigError(f"{name} is not tested at {level}. Choose one of: {', '.join(map('@'.join, subjects()))}")
