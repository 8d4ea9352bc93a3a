"""The groups of the embedded changelog: the processes of one machine share partitions by locks on files.

    .NAME.txstores-groups/APPLICATION/
        member-TIME-PROCESS-FINGERPRINT     locked (flock) by a member as long as it lives
        TOPIC-PARTITION                     locked by the member that has the partition: its process and its address

The system releases the locks of a process that ends. Each member computes the number of partitions that it may have
from the list of members alone, so nobody coordinates them. The numbers add up to that of the partitions: a member takes
and releases no more than the balance needs. Source: flock(2).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE, GroupListener, GroupMember
from stores.errors import ChangelogError, StoreLockedError
from stores.failpoints import reach
from stores.files.locks import take
from stores.files.plain_files import make_folder, read_file, translated_system_errors
from stores.interface import TopicPartition

BALANCE_S = 0.2
"""The time between two looks at the members: a partition of a killed process has a new member after about this."""
_MEMBER = "member-"
_NOTE_BYTES_MAX = 1024


class FileGroupMember(GroupMember):
    """A member of ``group`` at the changelog ``path``. ``partitions`` are all that the group shares."""

    def __init__(
        self,
        path: Path,
        group: str,
        partitions: Sequence[TopicPartition],
        listener: GroupListener,
        fingerprint: str,
        server: str = "",
    ) -> None:
        """Join. Raises: ChangelogError if members with another fingerprint are in the group."""
        self._folder = path.resolve().with_name(f".{path.name}.txstores-groups") / group
        self._group, self._partitions, self._listener = group, sorted(partitions), listener
        self._fingerprint, self._server = fingerprint, server
        self._held: dict[TopicPartition, int] = {}
        self._balanced_at = 0.0
        self._descriptor = -1
        with translated_system_errors(self._folder):
            for folder in (self._folder.parent, self._folder):
                with suppress(FileExistsError):
                    make_folder(folder, 0o700)
            self._join()

    def poll(self, wait_s: float) -> None:
        ends = time.monotonic() + wait_s
        while True:
            now = time.monotonic()
            if now >= self._balanced_at + BALANCE_S:
                self._balanced_at = now
                with translated_system_errors(self._folder):
                    self._balance()
            left_s = min(ends, self._balanced_at + BALANCE_S) - time.monotonic()
            if time.monotonic() >= ends:
                return
            time.sleep(max(left_s, 0.001))

    def addresses(self) -> Mapping[TopicPartition, str]:
        found: dict[TopicPartition, str] = {}
        with translated_system_errors(self._folder):
            for partition in self._partitions:
                with suppress(FileNotFoundError):
                    _, _, server = read_file(self._place(partition), _NOTE_BYTES_MAX).decode().partition("\n")
                    if server.endswith("\n"):
                        found[partition] = server.strip()
        return found

    def close(self) -> None:
        if self._descriptor < 0:
            return
        self._release(list(self._held))
        with suppress(FileNotFoundError):
            self._own.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _join(self) -> None:
        while self._descriptor < 0:
            # Ordered by the time of joining: a new member changes the numbers of the others as little as possible.
            name = f"{_MEMBER}{time.time_ns():020d}-{os.getpid()}-{self._fingerprint}"
            self._own = self._folder / name
            with suppress(StoreLockedError):  # Another member has just looked whether it is alive.
                self._descriptor = take(self._own)
        others = {name.rpartition("-")[2] for name in self._members()} - {self._fingerprint}
        if others:
            os.close(self._descriptor)
            self._descriptor = -1
            self._own.unlink(missing_ok=True)
            raise ChangelogError(
                f"the group {self._group!r} is in use by another application, or by this one with other sub-topologies "
                f"(see {self._folder}): choose another name for the application, or stop the others first"
            )

    def _members(self) -> list[str]:
        """Return the names of the living members in order, and remove the files of the others."""
        return [name for name in sorted(os.listdir(self._folder)) if name.startswith(_MEMBER) and self._lives(name)]

    def _lives(self, name: str) -> bool:
        file = self._folder / name
        if file == self._own:
            return True
        try:
            descriptor = take(file, note=False)
        except StoreLockedError:
            return True
        file.unlink(missing_ok=True)
        os.close(descriptor)
        return False

    def _balance(self) -> None:
        members = self._members()
        each, more = divmod(len(self._partitions), len(members))
        due = each + (members.index(self._own.name) < more)
        surplus = sorted(self._held)[due:]
        if surplus:
            self._release(surplus)
            return
        gained = []
        for partition in self._partitions:
            if len(self._held) == due:
                break
            if partition not in self._held:
                with suppress(StoreLockedError):
                    self._held[partition] = self._taken(partition)
                    gained.append(partition)
        if gained:
            reach(BEFORE_ASSIGN)
            self._listener.assign(gained)

    def _release(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        reach(BEFORE_REVOKE)
        self._listener.revoke(partitions)
        reach(AFTER_REVOKE)
        for partition in partitions:
            descriptor = self._held.pop(partition)
            if self._server:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def _taken(self, partition: TopicPartition) -> int:
        """Lock a partition, and write the address for the others. Raises: as ``take``."""
        descriptor = take(self._place(partition))
        if self._server:
            try:
                os.pwrite(descriptor, f"{os.getpid()}\n{self._server}\n".encode(), 0)
            except OSError:
                os.close(descriptor)
                raise
        return descriptor

    def _place(self, partition: TopicPartition) -> Path:
        return self._folder / f"{partition.topic}-{partition.partition}"
