"""The limit on the memory of a process, its parts, and the memory that the machine or the container has.

The interpreter with its modules has a fixed part. Half of the rest is for the caches and write buffers of engines. An
eighth each is for staged writes, for their copy in a commit, for restores, and for the changelog's client.

Source: Kafka Streams, "Memory Management"; the kernel's manual, "Control Group v2" and "Memory Resource Controller".
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stores.changed_keys import CHANGED_KEYS_BYTES
from stores.contract.arguments import check_number
from stores.errors import ConfigError

PROPERTY = "memory.max.bytes"
MIB = 1 << 20
PROCESS_BYTES = 64 * MIB
"""The interpreter, the library and the engines' own code and threads, as measured (docs/operations.md)."""
LEAST_BYTES = PROCESS_BYTES + 32 * MIB
"""With less, RocksDB's write buffers would be so small that it flushes in every commit."""
_DEFAULT_MOST_BYTES = 1 << 30
_UNLIMITED = 1 << 60
"""Version 1 of cgroups has a number of about 2**63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The parts of a limit on the memory of a process, each for all stores and tasks of the process together."""

    max_bytes: int

    @property
    def engine_bytes(self) -> int:
        """Blocks, indexes, filters and write buffers of RocksDB; the pages that SQLite keeps."""
        return (self.max_bytes - PROCESS_BYTES) // 2

    @property
    def staged_bytes(self) -> int:
        """Staged writes. A commit takes as much again for their copy in the engine."""
        return (self.max_bytes - PROCESS_BYTES) // 8

    @property
    def restore_bytes(self) -> int:
        """Records that restores and global stores have read and not written yet."""
        return (self.max_bytes - PROCESS_BYTES) // 8

    @property
    def changed_keys_bytes(self) -> int:
        """Keys that have changed since a snapshot by files. They share the part of restores, which are seldom."""
        return min(self.restore_bytes // 2, CHANGED_KEYS_BYTES)

    @property
    def client_bytes(self) -> int:
        """Records that the client of the changelog has read ahead, and those that it has not sent yet."""
        return (self.max_bytes - PROCESS_BYTES) // 8

    def __str__(self) -> str:
        return (
            f"{_size(self.max_bytes)}: {_size(PROCESS_BYTES)} for Python and its modules, {_size(self.engine_bytes)} "
            f"for caches and write buffers of engines, {_size(self.staged_bytes)} for uncommitted writes and as much "
            f"for a commit of them, {_size(self.restore_bytes)} for restores, {_size(self.client_bytes)} for the client"
        )


def parts_of(max_bytes: int) -> MemoryParts:
    """Return the parts of a limit of ``max_bytes``. Raises: TypeError; ConfigError if it is too small."""
    check_number("memory_max_bytes", max_bytes, "a number of bytes", 0)
    if max_bytes < LEAST_BYTES:
        raise ConfigError(
            f"{PROPERTY} is at least {LEAST_BYTES:,} ({_size(LEAST_BYTES)}), not {max_bytes:,}: Python and its modules "
            f"take {_size(PROCESS_BYTES)}, and the parts of {MemoryParts(LEAST_BYTES)}. Set it to that or more"
        )
    return MemoryParts(max_bytes)


class AvailableMemory(NamedTuple):
    """The most memory that this process can have."""

    num_bytes: int
    where: str
    """The file of the container's limit, or "this machine"."""
    is_container: bool


def available_memory(root: Path = Path("/")) -> AvailableMemory:
    """Return the lowest limit of a cgroup of this process, or the memory of the machine. ``root`` has ``proc``."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [AvailableMemory(limit, str(file), True) for file in _limit_files(root) if (limit := _limit_in(file))]
    lowest = min(limits, default=None)
    return lowest if lowest is not None and lowest.num_bytes < pages else AvailableMemory(pages, "this machine", False)


def default_limit(available: AvailableMemory) -> int:
    """Return the limit of a worker that sets none: half of its container, or an eighth of a machine, up to 1 GiB.

    A machine has several workers, and the page cache needs room in a container, too.
    """
    part = available.num_bytes // (2 if available.is_container else 8)
    return max(LEAST_BYTES, min(part, _DEFAULT_MOST_BYTES))


def warning_for(limit_bytes: int, available: AvailableMemory) -> str | None:
    """Return the warning for a limit that is larger than what the process can have; None if it is not."""
    if limit_bytes <= available.num_bytes:
        return None
    return (
        f"{PROPERTY} is {_size(limit_bytes)}, and {available.where} allows {_size(available.num_bytes)}: the kernel "
        "may kill this process before it has used its limit. Lower the property, or raise the other limit"
    )


def _limit_files(root: Path) -> list[Path]:
    """Return the files of the limits of this process's cgroups and of those above them, in either version."""
    files = []
    with suppress(OSError, ValueError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        own = dict(line.split(":", 2)[1:] for line in lines)
        for line in (root / "proc/self/mounts").read_text().splitlines():
            _, folder, kind, options, *_ = line.split()
            version_1 = kind == "cgroup" and "memory" in options.split(",")
            if not version_1 and kind != "cgroup2":
                continue
            wanted = "memory" if version_1 else ""
            path = next((own[names] for names in own if wanted in names.split(",")), "/")
            mounted = root / folder.lstrip("/")
            group = mounted / path.lstrip("/")
            name = "memory.limit_in_bytes" if version_1 else "memory.max"
            files += [each / name for each in (group, *group.parents) if each.is_relative_to(mounted)]
    return files


def _limit_in(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        limit = int(file.read_text())  # A group of version 2 without a limit has the word max.
        if 0 < limit < _UNLIMITED:
            return limit
    return None


def _size(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f} MiB"
