"""Parts of the operating-system process that stores depend on: forks and file descriptors.

Handles that are open when a process forks belong to the parent, and raise in the child. A fork copies neither the
threads of an engine nor the ownership of its locks. A child that used such a handle would hang, or write into the
parent's files. Freeing a handle closes it, with the same results. So the child neither uses nor frees it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable
from contextlib import suppress
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
    for each, disown in list(_disown.items()):
        # If one release fails, release the rest: the parent could not give up locks that the child keeps.
        try:
            disown(each)
        except Exception as error:
            failures.append(error)
    _disown.clear()
    if failures:
        raise failures[0]


os.register_at_fork(after_in_child=_disown_all)


def skip_destructors_in_children() -> None:
    """Let the children of every fork from now on end with their own status, without the destructors of C++ libraries.

    Python's own finalizers run. Call it for a library that joins its threads when the process ends. A child does not
    have them, and joining more than one may crash: glibc frees the stacks of all when it joins the first, once they
    exceed its cache of 40 MiB. Source: glibc, ``nptl/nptl-stack.c``.
    """
    os.register_at_fork(after_in_child=_skip_destructors)


def _skip_destructors() -> None:
    libc = ctypes.CDLL(None)
    # It is called before what was registered earlier, with the exit status. Not every C library has it.
    with suppress(AttributeError):
        libc.on_exit(libc._exit, None)


_SPARE = 8
"""With fewer left than these, opening a store or an iterator may fail."""


def descriptors_lacking(reason: str = "") -> str:
    """Return advice if this process has almost no file descriptors left, or had none by ``reason``; else "".

    Call it after a failure, with the engine's own error. That may not say that descriptors were lacking, and the engine
    may have closed those that it had opened.
    """
    if not (os.strerror(errno.EMFILE) in reason or _few_are_left()):
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"This process may open {soft:,} files, and too few of them are left: close stores or iterators, or raise the "
        f"limit ('ulimit -n' before it starts, resource.setrlimit within it; up to {hard:,})"
    )


def _few_are_left() -> bool:
    descriptors: list[int] = []
    try:
        for _ in range(_SPARE):
            descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return False
