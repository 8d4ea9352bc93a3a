"""The classes of the points of a recording: at the points of one class, the same thing happens.

By its call site, an operation belongs to a class by the step of the writer process, its kind, the innermost function of
the library and the function in C. One of a thread that an engine has started has the role of its file instead. A
position at which power is lost belongs to a class by the step and by what is pending then: the roles of the files with
pending data, and pending names. So at the positions of a class, the same files may have the same content.

Recordings of other seeds have other operations and, but for some threads of engines, the same classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import PurePosixPath

from harness.crash_states.changes import NameChange
from harness.crash_states.files import Tree
from harness.crash_states.model import Disk, FolderModel, numbered
from harness.io_trace.recorder import NOT_COUNTED, IoOperation, Kind

END = "after the last operation"
_CREATION, _COMMIT, _ELSEWHERE = "creation", "commit", "between commits"
_STEPS = {("of", "open"): _CREATION, ("of", "attempt"): _CREATION, ("attempt", "ack"): _COMMIT}
"""The step between two notes of a writer process, by their first words."""
_NUMBER = re.compile(r"[0-9a-f]*\d[0-9a-f]*")


class Resolution(Enum):
    """The fineness of a division of points into classes."""

    SITE = "call site"
    """By step, kind of operation and call site; for power loss, by step and the files that have pending changes."""
    KIND = "kind"
    """By step and kind of operation; for power loss, by step, and whether data or names are pending."""
    STEP = "step"
    """By step."""


def role(path: str) -> str:
    """Return the role of a file: equal for names that differ in a number only, in whatever folder."""
    place = PurePosixPath(path)
    return _NUMBER.sub("#", place.suffix or place.name)


class PointClasses:
    """The classes of a recording, each way computed once."""

    def __init__(self, recording: Sequence[IoOperation]) -> None:
        self.recording = recording
        self._steps = _steps(recording)

    def of_operations(self, resolution: Resolution) -> list[str]:
        """Return the class of each counted operation."""
        pairs = zip(numbered(self.recording), self._steps, strict=True)
        names = [_of_operation(operation, step, resolution) for operation, step in pairs]
        return names if resolution is not Resolution.SITE else self._with_repeats(names)

    def _with_repeats(self, names: Sequence[str]) -> list[str]:
        """Return the classes, with one more for operations that are not the first of their class in a commit.

        A defect may show between two operations of one call site.
        """
        repeated: list[str] = []
        met: set[str] = set()
        for place, (name, step) in enumerate(zip(names, self._steps, strict=True)):
            if place in self._begins:
                met.clear()
            repeated.append(f"{name}, again" if step == _COMMIT and name in met else name)
            met.add(name)
        return repeated

    @cached_property
    def _begins(self) -> set[int]:
        """The first operations of commits."""
        return {each.index for each in self.recording if each.text.startswith("attempt")}

    def of_positions(self, resolution: Resolution) -> list[str]:
        """Return the class of each position at which power may be lost, with the last one."""
        steps = [*self._steps, END]
        if resolution is Resolution.STEP:
            return steps
        return [_of_position(step, *each, resolution) for step, each in zip(steps, self._pending, strict=True)]

    @cached_property
    def _pending(self) -> list[tuple[frozenset[str], bool]]:
        """The roles of the files with pending data at each position, and if names are pending."""
        disk = Disk(self.recording, Tree(), FolderModel.NAMES)
        roles: dict[int, str] = {}
        pending = [_pending_on(disk, roles)]
        for operation in disk.operations:
            if operation.path:
                roles[operation.file] = role(operation.path)
            disk.advance()
            pending.append(_pending_on(disk, roles))
        return pending


def _of_operation(operation: IoOperation, step: str, resolution: Resolution) -> str:
    if resolution is Resolution.STEP:
        return step
    kind = f"{operation.kind} and sync" if operation.synchronous else str(operation.kind)
    if resolution is Resolution.KIND:
        return f"{step}: {kind}"
    if not operation.site:
        return f"{step}: {kind} of {role(operation.path)}, by a thread of the engine"
    return f"{step}: {kind} in {' > '.join(operation.site.split(' > ')[-2:])}"


def _pending_on(disk: Disk, roles: Mapping[int, str]) -> tuple[frozenset[str], bool]:
    changes = disk.pending()
    data = {(change.file, change.operation.kind) for change in changes if not isinstance(change, NameChange)}
    names = any(isinstance(change, NameChange) for change in changes)
    return frozenset(_of_data(roles.get(file, ""), kind) for file, kind in data), names


def _of_data(name: str, kind: Kind) -> str:
    return name if kind is Kind.WRITE else f"{kind} of {name}"


def _of_position(step: str, files: frozenset[str], names: bool, resolution: Resolution) -> str:
    data = ["data"] if files and resolution is Resolution.KIND else sorted(files)
    return f"{step}: pending {', '.join([*data, *(['names'] if names else [])]) or 'nothing'}"


def _steps(recording: Sequence[IoOperation]) -> list[str]:
    """Return the step of each counted operation."""
    words = [operation.text.partition(" ")[0] for operation in recording if operation.kind is Kind.NOTE]
    steps: list[str] = []
    notes = 0
    for operation in recording:
        if operation.kind is Kind.NOTE:
            notes += 1
        elif operation.kind not in NOT_COUNTED:
            around = ("", *words, "")[notes : notes + 2]
            steps.append(_STEPS.get((around[0], around[1]), _ELSEWHERE))
    return steps
