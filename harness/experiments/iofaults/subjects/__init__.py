"""The subjects of fault injection: every persistent backend, and the library's protocols that keep state beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import code
from harness.experiments.iofaults.subjects.changelogs import ChangelogSubject, VersionLogSubject
from harness.experiments.iofaults.subjects.directory_changes import (
    CheckpointSubject,
    LayoutChangeSubject,
    RelocationSubject,
    TasksSubject,
)
from harness.experiments.iofaults.subjects.store_changes import (
    IMPORTS,
    LazyUpgradeSubject,
    OffsetImportSubject,
    UpgradeSubject,
)
from harness.experiments.iofaults.subjects.subject import StoreSubject, Subject
from harness.experiments.iofaults.subjects.tasks import (
    PAIRS,
    OnlineUpgradeSubject,
    PunctuatedTaskSubject,
    TwoEnginesSubject,
)
from harness.experiments.iofaults.workload import PASSING_KINDS, State, with_passing
from harness.typed_maps import PLAIN, check_kind
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends

CHECKPOINT, CHANGELOG, VERSION_LOG = "checkpoint-file", "embedded-changelog", "changelog-of-files"
STATE_DIRECTORY = "state-directory"
RELOCATION, LAYOUT_CHANGE = "relocation", "layout-change"
LAZY_UPGRADE, UPGRADE = "lazy-upgrade", "format-upgrade"
PUNCTUATION, ONLINE_UPGRADE = "task-punctuation", "task-online-upgrade"
TASKS, OFFSET_IMPORTS = (*PAIRS, PUNCTUATION, ONLINE_UPGRADE), tuple(IMPORTS)


class _Own(NamedTuple):
    """A subject that is no backend, and the durability levels at which it behaves differently."""

    make: partial[Subject]
    expected: Callable[[State], State]
    levels: tuple[Durability, ...]


def _own(kind: type[Subject], *levels: Durability, **arguments: Any) -> _Own:
    return _Own(partial(kind, **arguments), kind.expected, levels or tuple(Durability))


_OWN: Mapping[str, _Own] = {
    # The next five behave the same at all levels: other data depends on them, so they must survive power loss.
    CHECKPOINT: _own(CheckpointSubject, Durability.DISK),
    STATE_DIRECTORY: _own(TasksSubject, Durability.DISK),
    RELOCATION: _own(RelocationSubject, Durability.DISK),
    LAYOUT_CHANGE: _own(LayoutChangeSubject, Durability.DISK),
    VERSION_LOG: _own(VersionLogSubject, Durability.DISK),
    **{
        name: _own(OffsetImportSubject, backend=backend, left_by=left_by)
        for name, (backend, left_by) in IMPORTS.items()
    },
    LAZY_UPGRADE: _own(LazyUpgradeSubject),
    UPGRADE: _own(UpgradeSubject, Durability.PROCESS, Durability.DISK, backend="lmdb-indexed-batch"),
    CHANGELOG: _own(ChangelogSubject, Durability.PROCESS, Durability.DISK),
    **{name: _own(TwoEnginesSubject, backends=pair) for name, pair in PAIRS.items()},
    PUNCTUATION: _own(PunctuatedTaskSubject),
    ONLINE_UPGRADE: _own(OnlineUpgradeSubject),
}


def subject(name: str, root: Path, level: str, records: str = PLAIN) -> Subject:
    """Return the subject ``name``: a backend with stores of the kind ``records``, or a protocol of the library."""
    if name in _OWN:
        return _OWN[name].make(root, Durability(level))
    return StoreSubject(root, Durability(level), name, records)


def subject_named(name: str) -> str:
    """Return the full name of a subject; a backend may have an alias. Raises: ConfigError if it does not exist."""
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


def modules_of(name: str) -> tuple[str, ...]:
    """Return the modules whose code decides how a subject behaves; of all backends, if it is none itself."""
    own = backends().get(name)
    needed = [each for each in backends().values() if each.persistent] if own is None else [own]
    adapter = () if own else (_OWN[name].make.func.__module__,)
    return (
        *adapter,
        "stores.registry",
        "stores.records",
        *(module for each in needed for module in code.modules_of(each)),
    )


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
