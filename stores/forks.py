"""What is open when its process forks belongs to the parent alone: in the child every use of it says so.

A fork copies neither the threads of an engine nor what its locks stand for. A child that used such a handle would hang,
or write into the parent's files; and one that only freed it would, too, since freeing is closing. So in the child
nothing of it is touched any more.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Opened = TypeVar("Opened")

_disown: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()

WHOSE = (
    "was open when this process was forked, and is the parent's: use it there, or open it in a process that is "
    "started anew (multiprocessing's 'spawn') once the parent has closed it"
)
"""The end of the sentence for who uses such a handle in the child."""


def watch(opened: Opened, disown: Callable[[Opened], None]) -> None:
    """Call ``disown`` with ``opened`` in the child of every fork from now on, as long as somebody refers to it.

    It makes every later use raise. It takes no lock, which another thread of the parent may have held, and gives what
    must not be freed to ``keep_for_good``.
    """
    _disown[opened] = disown


def keep_for_good(thing: object) -> None:
    """Never free ``thing``, not even when the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _disown_all() -> None:
    for opened, disown in list(_disown.items()):
        disown(opened)
    _disown.clear()


os.register_at_fork(after_in_child=_disown_all)
