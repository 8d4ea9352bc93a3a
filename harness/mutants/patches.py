"""The changes that mutants make to a process: of declared interfaces, of file functions, and of few inner names."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Self

from stores import failpoints
from stores.changelog.files import PartitionLog
from stores.changelog.interface import Changelog, Producer
from stores.engines.engine import Engine, IngestingEngine, Transaction, TransactionalEngine
from stores.interface import KeyValueStore
from stores.spark.local_state import LocalState
from stores.tasks.context import TaskContext
from stores.tasks.task import StreamTask

INTERFACES = (
    *(Engine, TransactionalEngine, IngestingEngine, Transaction, KeyValueStore),
    *(Changelog, Producer, StreamTask, TaskContext, PartitionLog, LocalState),
)
"""The declared interfaces of the library. A mutant may replace their public methods in any class that has them."""
FILE_FUNCTIONS = ("fsync", "replace", "rename", "unlink", "pwrite")
"""The functions of ``os`` by which the library changes files."""

_ABSENT = object()


class Patches:
    """Changes of this process. They last until ``undo``, or the end of a ``with`` block."""

    def __init__(self) -> None:
        self._changed: list[tuple[object, str, object]] = []
        self._armed: list[str] = []

    def replace(self, owner: object, name: str, mutated: object) -> None:
        """Replace a public method of a class with one of ``INTERFACES``, or one of ``FILE_FUNCTIONS`` of ``os``.

        Raises: AttributeError if ``owner`` has no such name; ValueError if it is not declared.
        """
        if not _is_declared(owner, name):
            raise ValueError(f"{owner!r} declares no {name!r}: use another seam")
        self.replace_inner(owner, name, mutated)

    def replace_inner(self, owner: object, name: str, mutated: object) -> None:
        """Replace any attribute of a module, a class or an object. For ``harness.mutants.inner_names`` only.

        Raises: AttributeError if ``owner`` has no such name: after a move in the library, the change would do nothing.
        """
        getattr(owner, name)
        self._changed.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, mutated)

    def arm(self, failpoint: str, action: Callable[[], None]) -> None:
        """Run ``action`` each time ``failpoint`` is reached. Raises: ValueError for an unknown failpoint."""
        failpoints.arm(failpoint, action)
        self._armed.append(failpoint)

    def undo(self) -> None:
        """Restore everything that was replaced, the last change first."""
        while self._changed:
            owner, name, before = self._changed.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        while self._armed:
            failpoints.disarm(self._armed.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()


def _is_declared(owner: object, name: str) -> bool:
    if owner is os:
        return name in FILE_FUNCTIONS
    if not isinstance(owner, type) or (name.startswith("_") and name != "__init__"):
        return False
    return any(issubclass(owner, each) and hasattr(each, name) for each in INTERFACES)
