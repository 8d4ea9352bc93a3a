"""The groups of the embedded changelog: the processes of one machine share partitions by locks on files.

    .NAME.txstores-groups/APPLICATION/
        member-TIME-PROCESS-FINGERPRINT     locked (flock) by a member as long as it lives
        TOPIC-PARTITION                     locked by the member that has the partition: its process and its address
        copies/                             notes of members that keep standby copies (``CopyNotes``)

The system releases the locks of a process that ends. Each member computes the number of partitions that it may have
from the list of members alone, so nobody coordinates them. The numbers add up to that of the partitions: a member takes
and releases no more than the balance needs. A free partition goes to the member whose copy of it is the most
caught-up. Source: flock(2); KIP-892, "Offsets for Consumer Rebalances".
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE, Copies, GroupListener, GroupMember, Peer
from stores.errors import ChangelogError, StoreLockedError
from stores.failpoints import reach
from stores.files.locks import take
from stores.files.plain_files import make_folder, read_file, read_json, replace_file, translated_system_errors
from stores.interface import TopicPartition

_FOLDER = "copies"
_BYTES_MAX = 16 << 20
"""Enough for the lines of 100,000 partitions."""


class Note(NamedTuple):
    """The note of one member."""

    directory: str
    """The ID of its state directory."""
    held: frozenset[TopicPartition]
    progress: Mapping[TopicPartition, int]
    """The progress of each local copy, its own partitions included (``Copies.progress``)."""
    server: str = ""
    """The address at which it answers queries; empty if it does not."""


class CopyNotes:
    """The notes in the folder of a group, for the member ``own``, which writes one of them. Raises: OSError.

    They say what partitions the members have, and how caught-up their copies are. Only members that keep standby copies
    write them, as JSON. A note that can't be read counts as missing. Source: KIP-441, "Computing the most-caught-up
    instances"; KIP-892, "Offsets for Consumer Rebalances".
    """

    def __init__(self, folder: Path, own: str, copies: Copies, server: str) -> None:
        self._folder, self._own, self._copies, self._server = folder / _FOLDER, own, copies, server
        self._written: Note | None = None
        with suppress(FileExistsError):
            make_folder(self._folder, 0o700)

    @staticmethod
    def remove(folder: Path, name: str) -> None:
        """Remove the note of a member that is gone, if it has one."""
        for file in (name, f"{name}.new"):
            (folder / _FOLDER / file).unlink(missing_ok=True)

    def read(self, members: Iterable[str], held: frozenset[TopicPartition]) -> dict[str, Note]:
        """Return the notes of these members, as far as they have one. Its own has the partitions ``held``."""
        notes = {}
        for name in members:
            if name != self._own:
                with suppress(FileNotFoundError, ValueError, OverflowError, TypeError, KeyError, AttributeError):
                    notes[name] = _parsed(read_json(self._folder / name, _BYTES_MAX))
        notes[self._own] = self._note(held)
        return notes

    def write(self, held: frozenset[TopicPartition]) -> Note:
        """Write its own note, with the partitions ``held``, and return it.

        A full disk does not end the member: the others use its last note.
        """
        own = self._note(held)
        if own != self._written:
            with suppress(OSError):
                replace_file(self._folder / self._own, json.dumps(_content(own)), durable=False)
                self._written = own
        return own

    def _note(self, held: frozenset[TopicPartition]) -> Note:
        return Note(self._copies.directory, held, self._copies.progress(), self._server)


def is_better_elsewhere(partition: TopicPartition, own: str, notes: Mapping[str, Note], due: Mapping[str, int]) -> bool:
    """Return whether a member other than ``own`` has the most caught-up copy among those that have room.

    ``due`` has the number of partitions that each member may have. Equal copies are in order of names. Without any copy
    the answer is no.
    """
    copies = {
        name: note.progress[partition] for name, note in _with_room(notes, due).items() if partition in note.progress
    }
    return bool(copies) and min(copies, key=lambda name: (-copies[name], name)) != own


def most_advanced_first(
    partitions: Sequence[TopicPartition], own: str, notes: Mapping[str, Note], due: Mapping[str, int]
) -> list[TopicPartition]:
    """Return the partitions in the order in which ``own`` takes them: first those in which it leads the others most."""
    return sorted(partitions, key=lambda partition: -_lead(partition, own, notes, due))


def least_lacking(
    held: Collection[TopicPartition], number: int, own: str, notes: Mapping[str, Note], due: Mapping[str, int]
) -> list[TopicPartition]:
    """Return the ``number`` partitions that ``own`` releases: those in which it leads the others least, or the last."""
    return sorted(sorted(sorted(held, reverse=True), key=lambda each: _lead(each, own, notes, due))[:number])


def _lead(partition: TopicPartition, own: str, notes: Mapping[str, Note], due: Mapping[str, int]) -> int:
    """Return by how much the copy of ``own`` is ahead of the best one among members that have room."""
    if own not in notes:
        return 0
    others = [note.progress.get(partition, -1) for name, note in _with_room(notes, due).items() if name != own]
    return notes[own].progress.get(partition, -1) - max(others, default=-1)


def _with_room(notes: Mapping[str, Note], due: Mapping[str, int]) -> dict[str, Note]:
    return {name: note for name, note in notes.items() if len(note.held) < due[name]}


def _content(note: Note) -> dict[str, object]:
    return {
        "directory": note.directory,
        "held": [list(partition) for partition in sorted(note.held)],
        "progress": [[*partition, progress] for partition, progress in sorted(note.progress.items())],
        "server": note.server,
    }


def _parsed(content: Any) -> Note:
    """Return the note of its content.

    Raises: KeyError, TypeError, ValueError, OverflowError, AttributeError if it is none.
    """
    return Note(
        str(content["directory"]),
        frozenset(TopicPartition(str(topic), int(number)) for topic, number in content["held"]),
        {TopicPartition(str(topic), int(number)): int(progress) for topic, number, progress in content["progress"]},
        str(content["server"]),
    )


BALANCE_S = 0.2
"""The time between two looks at the members: a partition of a killed process has a new member after about this."""
LEFT_LOOKS = 10
"""The number of looks for which a free partition is left to a member with a better copy, which may hang."""
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
        copies: Copies | None = None,
    ) -> None:
        """Join. Raises: ChangelogError if members with another fingerprint are in the group."""
        self._folder = _folder(path, group)
        self._group, self._partitions, self._listener = group, sorted(partitions), listener
        self._fingerprint, self._server = fingerprint, server
        self._held: dict[TopicPartition, int] = {}
        self._balanced_at = 0.0
        self._descriptor = -1
        self._notes: CopyNotes | None = None
        self._left: dict[TopicPartition, int] = {}
        """The number of looks for which a free partition was left to another member."""
        self._peers: Sequence[Peer] | None = None
        with translated_system_errors(self._folder):
            for folder in (self._folder.parent, self._folder):
                with suppress(FileExistsError):
                    make_folder(folder, 0o700)
            self._join(copies)

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
        servers: dict[TopicPartition, str] = {}
        with translated_system_errors(self._folder):
            for partition in self._partitions:
                with suppress(FileNotFoundError, UnicodeDecodeError):
                    _, _, server = read_file(self._place(partition), _NOTE_BYTES_MAX).decode().partition("\n")
                    if server.endswith("\n"):
                        servers[partition] = server.strip()
        return servers

    def peers(self) -> Sequence[Peer] | None:
        return self._peers

    def close(self) -> None:
        if self._descriptor < 0:
            return
        self._release(list(self._held))
        self._leave()

    def _leave(self) -> None:
        CopyNotes.remove(self._folder, self._own.name)
        self._own.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _join(self, copies: Copies | None) -> None:
        while self._descriptor < 0:
            # Ordered by the time of joining: a new member changes the numbers of the others as little as possible.
            name = f"{_MEMBER}{time.time_ns():020d}-{os.getpid()}-{self._fingerprint}"
            self._own = self._folder / name
            if copies is not None:
                # Before it is a member: what the others release then depends on its copies.
                self._notes = CopyNotes(self._folder, name, copies, self._server)
                self._notes.write(frozenset())
            try:
                self._descriptor = take(self._own)
            except StoreLockedError:  # Another member has just looked whether it is alive.
                CopyNotes.remove(self._folder, name)
        try:
            _check_same(self._folder, self._group, self._fingerprint, self._members())
        except ChangelogError:
            self._leave()
            raise

    def _members(self) -> list[str]:
        return _living_members(self._folder, self._own.name)

    def _balance(self) -> None:
        members, own = self._members(), self._own.name
        each, more = divmod(len(self._partitions), len(members))
        due = {name: each + (index < more) for index, name in enumerate(members)}
        notes = {} if self._notes is None else self._notes.read(members, frozenset(self._held))
        surplus = len(self._held) - due[own]
        if surplus > 0:
            self._release(least_lacking(self._held, surplus, own, notes, due))
        else:
            self._gain(due, notes)
        if self._notes is not None:
            notes[own] = self._notes.write(frozenset(self._held))
            self._peers = [_peer(name, notes.get(name), name == own) for name in members]

    def _gain(self, due: Mapping[str, int], notes: Mapping[str, Note]) -> None:
        gained = []
        for partition in most_advanced_first(self._partitions, self._own.name, notes, due):
            if len(self._held) == due[self._own.name]:
                break
            if partition not in self._held and not self._is_left(partition, due, notes):
                with suppress(StoreLockedError):
                    self._held[partition] = self._taken(partition)
                    gained.append(partition)
        if gained:
            reach(BEFORE_ASSIGN)
            self._listener.assign(gained)

    def _is_left(self, partition: TopicPartition, due: Mapping[str, int], notes: Mapping[str, Note]) -> bool:
        """Return whether to leave the partition to another member, which has it or has a better copy of it."""
        own = self._own.name
        if any(partition in note.held for name, note in notes.items() if name != own):
            self._left.pop(partition, None)
            return True
        looks = self._left.get(partition, 0)
        if looks < LEFT_LOOKS and is_better_elsewhere(partition, own, notes, due):
            self._left[partition] = looks + 1
            return True
        self._left.pop(partition, None)
        return False

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


def _peer(name: str, note: Note | None, is_self: bool) -> Peer:
    if note is None:
        return Peer(name, None, frozenset(), is_self)
    return Peer(name, note.directory, note.held, is_self, note.server)


def check_members(path: Path, group: str, fingerprint: str) -> None:
    """Check that all members of ``group`` at the changelog ``path`` have the ``fingerprint``.

    Raises: ChangelogError if there are others; StoreUnavailableError.
    """
    folder = _folder(path, group)
    with translated_system_errors(folder), suppress(FileNotFoundError):
        _check_same(folder, group, fingerprint, _living_members(folder))


def _folder(path: Path, group: str) -> Path:
    return path.resolve().with_name(f".{path.name}.txstores-groups") / group


def _check_same(folder: Path, group: str, fingerprint: str, members: Sequence[str]) -> None:
    if any(name.rpartition("-")[2] != fingerprint for name in members):
        raise ChangelogError(
            f"the group {group!r} is in use by another application, or by this one with other sub-topologies (see "
            f"{folder}): choose another name for the application, or stop the others first"
        )


def _living_members(folder: Path, own: str = "") -> list[str]:
    """Return the names of the living members in order, and remove the files of the others."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(_MEMBER))
    return [name for name in names if name == own or _lives(folder, name)]


def _lives(folder: Path, name: str) -> bool:
    file = folder / name
    try:
        descriptor = take(file, note=False)
    except StoreLockedError:
        return True
    CopyNotes.remove(folder, name)
    file.unlink(missing_ok=True)
    os.close(descriptor)
    return False
