"""Notes of the members of a group of the embedded changelog: their partitions, and how caught-up their copies are.

    copies/MEMBER    JSON, replaced by the member when it changes; removed with the file of the member

Only members that keep standby copies write them. A note that can't be read counts as missing.
Source: KIP-441, "Computing the most-caught-up instances"; KIP-892, "Offsets for Consumer Rebalances".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stores.changelog.group import Copies
from stores.files.plain_files import make_folder, read_json, replace_file
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


class CopyNotes:
    """The notes in the folder of a group, for the member ``own``, which writes one of them. Raises: OSError."""

    def __init__(self, folder: Path, own: str, copies: Copies) -> None:
        self._folder, self._own, self._copies = folder / _FOLDER, own, copies
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
        notes[self._own] = Note(self._copies.directory, held, self._copies.progress())
        return notes

    def write(self, held: frozenset[TopicPartition]) -> Note:
        """Write its own note, with the partitions ``held``, and return it.

        A full disk does not end the member: the others use its last note.
        """
        own = Note(self._copies.directory, held, self._copies.progress())
        if own != self._written:
            with suppress(OSError):
                replace_file(self._folder / self._own, json.dumps(_content(own)), durable=False)
                self._written = own
        return own


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
    }


def _parsed(content: Any) -> Note:
    """Return the note of its content.

    Raises: KeyError, TypeError, ValueError, OverflowError, AttributeError if it is none.
    """
    return Note(
        str(content["directory"]),
        frozenset(TopicPartition(str(topic), int(number)) for topic, number in content["held"]),
        {TopicPartition(str(topic), int(number)): int(progress) for topic, number, progress in content["progress"]},
    )
