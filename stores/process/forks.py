"""Forks: handles that are open when a process forks belong to the parent, and raise in the child.

A fork copies neither the threads of an engine nor the ownership of its locks. A child that used such a handle would
hang, or write into the parent's files. Freeing a handle closes it, with the same results. So the child neither uses nor
frees it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Opened = TypeVar("Opened")

_disown: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()

BELONGS_TO_PARENT = (
    "was open when this process was forked, and belongs to the parent: use it there, or open it in a process that is "
    "started with multiprocessing's 'spawn', after the parent has closed it"
)
"""The end of the error message for the use of such a handle in the child."""


def watch(opened: Opened, disown: Callable[[Opened], None]) -> None:
    """Call ``disown`` with ``opened`` in the child of every fork from now on, as long as ``opened`` is referenced.

    ``disown`` must make every later use raise. It must not take a lock, which another thread of the parent may have
    held. It passes objects that must not be freed to ``never_free``.
    """
    _disown[opened] = disown


def never_free(thing: object) -> None:
    """Never free ``thing``, not even when the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _disown_all() -> None:
    failures = []
    for opened, disown in list(_disown.items()):
        # If one release fails, release the rest: the parent could not give up locks that the child keeps.
        try:
            disown(opened)
        except Exception as error:
            failures.append(error)
    _disown.clear()
    if failures:
        raise failures[0]


os.register_at_fork(after_in_child=_disown_all)
