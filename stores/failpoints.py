"""Named places in a commit protocol where a crash can be injected.

A module declares its failpoints once, ``BEFORE = declare("indexed_batch.before_write", "...")``, and passes them
with ``reach(BEFORE)``. Nothing happens unless ``arm`` has given that name an action. Failpoints stand on commit,
creation and recovery paths only, never on the path of a single record.

A declaration also says how a crash trial reaches the failpoint: its part of a store's life, the failpoint at which an
earlier process must have been killed, the options it needs. So a strategy of another package brings its own plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

__all__ = ["Failpoint", "Part", "arm", "declare", "declared", "disarm", "failpoint", "reach"]

_declared: dict[str, Failpoint] = {}
_armed: dict[str, Callable[[], None]] = {}


class Part(StrEnum):
    """A part of a store's life, in which a process may be killed."""

    CREATION = "creation"
    COMMIT = "commit"
    """A store's own commit protocol."""
    TASK = "task"
    """The order in which a task commits its changelog and its stores, and the changelog's own commit."""
    RECOVERY = "recovery"
    """A store's own work when it is opened after a crash."""
    RESTORE = "restore"
    """The replay of a changelog's tail."""
    CHANGE = "change"
    """A change of format, layout or place. The crash matrix leaves these to tests of their own."""


@dataclass(frozen=True)
class Failpoint:
    """A declared failpoint, with how a crash trial reaches it."""

    name: str
    meaning: str
    """The state of the store when it is reached."""
    part: Part = Part.COMMIT
    after: str | Mapping[str, str] = ""
    """In RECOVERY and RESTORE: the failpoint at which an earlier process was killed, or one for each durability.
    Empty: any kill between the changelog's commit and the stores' commits leads here."""
    twice: bool = False
    """In RECOVERY and RESTORE: whether a process killed here leaves the same work to the next one."""
    always: bool = False
    """In RECOVERY: whether every opening reaches it, whether or not there is something to recover."""
    settled_before: bool = False
    """In RECOVERY: whether writes before the killed commit must be persistent, or the next process does not reach it. A
    new store notes what it is: a trial closes and opens it first."""
    options: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Options of the backend without which ordinary work does not reach it."""
    transaction_bytes: int = 0
    """The size of a transaction that reaches it with these options; 0 for any."""

    def after_at(self, durability: str) -> str:
        """Return the failpoint of the earlier kill at a level of durability, or "" if any kill will do."""
        return self.after if isinstance(self.after, str) else self.after[durability]


def declare(
    name: str,
    meaning: str,
    *,
    part: Part = Part.COMMIT,
    after: str | Mapping[str, str] = "",
    twice: bool = False,
    always: bool = False,
    settled_before: bool = False,
    options: Mapping[str, str | int | bool] | None = None,
    transaction_bytes: int = 0,
) -> str:
    """Make a failpoint known, and return its name. The arguments are the fields of ``Failpoint``.

    Raises: ValueError if ``name`` is declared otherwise, or ``after`` names a failpoint that is not declared yet.
    """
    point = Failpoint(name, meaning, part, after, twice, always, settled_before, dict(options or {}), transaction_bytes)
    if _declared.get(name, point) != point:
        raise ValueError(f"failpoint {name!r} is declared twice")
    for earlier in {after} if isinstance(after, str) else set(after.values()):
        if earlier:
            failpoint(earlier)
    _declared[name] = point
    return name


def failpoint(name: str) -> Failpoint:
    """Return what is declared about ``name``. Raises: ValueError for a name that no imported module declares."""
    if name not in _declared:
        raise ValueError(f"no failpoint {name!r}; declared are: {', '.join(sorted(_declared))}")
    return _declared[name]


def declared() -> Mapping[str, Failpoint]:
    """Return every failpoint of the modules imported so far, by name."""
    return MappingProxyType(_declared)


def reach(name: str) -> None:
    """Run the action armed for ``name``, if there is one."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Let ``action`` run each time ``name`` is reached in this process: it may raise, or end the process.

    Raises: ValueError for a name that no imported module declares.
    """
    failpoint(name)
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Forget the action of ``name``, or of all failpoints."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)
