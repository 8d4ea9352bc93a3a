"""The process of a function, and a limit on the memory of such processes, page cache included.

The command is ``python -m harness.processes.apart [GROUP] MODULE:FUNCTION FOLDER``, see ``child.figures_in``. The limit
is a cgroup of Linux, below that of this process. The process enters it before it imports the function.

Source: the kernel's manual, "Control Group v2", "Memory", and "Memory Resource Controller" for version 1.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

_NUMBERS = count(1)
_ROOT = Path("/")


class NoMemoryLimitError(Exception):
    """No limit can be set here. The message says why."""


@contextlib.contextmanager
def memory_limit(num_bytes: int, root: Path = _ROOT) -> Iterator[Path]:
    """Yield the folder of a new cgroup whose processes can have ``num_bytes``, and remove it when they have ended.

    ``root`` is the folder that has ``proc``. Raises: NoMemoryLimitError.
    """
    parent, limit, swap_limit = _place(root)
    group = parent / f"txstores-{os.getpid()}-{next(_NUMBERS)}"
    try:
        group.mkdir()
    except OSError as error:
        raise NoMemoryLimitError(f"no cgroup can be made in {parent}: {error.strerror}") from error
    try:
        try:
            (group / limit).write_text(str(num_bytes))
            if (group / swap_limit).exists():
                # Version 1 counts memory and swap together, version 2 swap by itself.
                (group / swap_limit).write_text("0" if limit == "memory.max" else str(num_bytes))
        except OSError as error:
            raise NoMemoryLimitError(f"{group / limit} can't be written: {error.strerror}") from error
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def memory_kills(group: Path) -> int:
    """Return how many processes of a cgroup of ``memory_limit`` the kernel has killed for want of memory."""
    for name in ("memory.events", "memory.oom_control"):
        if (group / name).exists():
            counts = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


def _place(root: Path) -> tuple[Path, str, str]:
    """Return the folder for new cgroups, and the names of the files of their limits: of memory, and of swap."""
    try:
        own = dict(line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines())
        mounts = [line.split() for line in (root / "proc/self/mounts").read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise NoMemoryLimitError(f"this system shows no cgroups in /proc: {error}") from error
    for _, folder, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            return _below(root, folder, own["memory"]), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
    for _, folder, kind, *_ in mounts:
        if kind == "cgroup2" and "" in own:
            group = _below(root, folder, own[""])
            # A cgroup with processes gives its cgroups no limits, so those of this process's neighbours may serve.
            for parent in (group, group.parent):
                with contextlib.suppress(OSError):
                    if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                        return parent, "memory.max", "memory.swap.max"
            raise NoMemoryLimitError(f"the cgroup {group} does not pass the control of memory on to others")
    raise NoMemoryLimitError("no cgroups that limit memory are mounted")


def _below(root: Path, folder: str, path: str) -> Path:
    """Return the folder of the cgroup ``path`` in what is mounted on ``folder``: that itself if it has no such one."""
    mounted = root / folder.lstrip("/")
    group = mounted / path.lstrip("/")
    return group if group.is_dir() else mounted


if __name__ == "__main__":
    *groups, name, _ = sys.argv[1:]
    for each in groups:
        Path(each, "cgroup.procs").write_text(f"{os.getpid()}\n")
    from harness.processes.child import measure

    module, _, function = name.partition(":")
    measure(getattr(import_module(module), function))
