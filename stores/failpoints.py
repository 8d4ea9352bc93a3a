"""Named places in a commit protocol where a crash can be injected.

A module declares its failpoints once, ``BEFORE = declare("indexed_batch.before_write", "...")``, and passes them
with ``reach(BEFORE)``. Nothing happens unless ``arm`` has given that name an action. Failpoints stand on commit,
creation and recovery paths only, never on the path of a single record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

_declared: dict[str, str] = {}
_armed: dict[str, Callable[[], None]] = {}


def declare(name: str, meaning: str) -> str:
    """Make ``name`` known, with what is true when it is reached; returns the name. Raises ValueError if it is taken."""
    if _declared.get(name, meaning) != meaning:
        raise ValueError(f"failpoint {name!r} is declared twice")
    _declared[name] = meaning
    return name


def declared() -> Mapping[str, str]:
    """Meaning by name of every failpoint of the modules imported so far."""
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
    if name not in _declared:
        raise ValueError(f"no failpoint {name!r}; declared are: {', '.join(sorted(_declared))}")
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Forget the action of ``name``, or of all failpoints."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)
