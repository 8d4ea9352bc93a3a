"""Crash states, position by position: enumerated, without duplicates, and rebuilt from a description.

Everything is lazy and depends on its arguments alone. Random selections are drawn per position, so the crash states at
a position do not depend on which other positions are enumerated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from random import Random

from harness.crash_states.changes import DataChange, Rest, WriteTear
from harness.crash_states.choices import Depth, KeptChanges, choices
from harness.crash_states.files import Tree
from harness.crash_states.model import Disk, FolderModel, numbered
from harness.io_trace.recorder import IoOperation, Kind


@dataclass(frozen=True, slots=True)
class Description:
    """A short description of a state. ``rebuild`` generates the state from it, the recording and the base.

    At ``position``, the operations ``kept`` had reached the disk in addition to those that ``folder_model`` makes
    durable; those of ``tears`` in part. An operation ``kept`` at ``position`` itself was in progress. ``kind`` names
    the rule that chose the selection.
    """

    folder_model: FolderModel
    position: int
    kind: str
    kept: tuple[int, ...]
    tears: tuple[WriteTear, ...] = ()

    def to_json(self) -> str:
        """Return one line of text for a row or a command line."""
        tears = [[tear.operation, tear.at, tear.rest] for tear in self.tears]
        return json.dumps([self.folder_model, self.position, self.kind, self.kept, tears], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Return the description that ``to_json`` wrote. Raises: ValueError if the text is none."""
        try:
            folder_model, position, kind, kept, tears = json.loads(text)
            torn = tuple(WriteTear(int(operation), int(at), Rest(rest)) for operation, at, rest in tears)
            kept = tuple(int(operation) for operation in kept)
            return cls(FolderModel(folder_model), int(position), str(kind), kept, torn)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text!r} describes no state: {error}") from error


@dataclass(frozen=True, slots=True)
class State:
    """A legal crash state. ``tree`` must not be changed.

    ``said_before`` and ``said_by`` are arguments for ``said``: bounds of what the process had acknowledged.
    """

    description: Description
    tree: Tree
    said_before: int
    said_by: int


@dataclass(frozen=True, slots=True)
class Distinct:
    """A crash state that is legal at one position or more of those enumerated; ``description`` is that of the first.

    ``states`` counts how often it was enumerated. It is checked against the strictest of these positions. It must
    contain the commits acknowledged in ``said(recording, said_by)``, the most at any of them. It must contain no commit
    that was not attempted in ``said(recording, said_before)``, the least. ``tree`` must not be changed.
    """

    description: Description
    tree: Tree
    states: int
    said_before: int
    said_by: int


DEFAULT_DEPTH = Depth()


def positions(recording: Sequence[IoOperation]) -> range:
    """Return every position of ``recording``: before each operation, and after the last."""
    return range(len(numbered(recording)) + 1)


def said(recording: Sequence[IoOperation], upto: int) -> tuple[str, ...]:
    """Return the notes before operation ``upto`` began, in order. A note has the index of the next operation."""
    return tuple(operation.text for operation in recording if operation.kind is Kind.NOTE and operation.index <= upto)


def states(
    recording: Sequence[IoOperation],
    base: Tree,
    positions: Sequence[int],
    folder_model: FolderModel,
    seed: int,
    depth: Depth = DEFAULT_DEPTH,
) -> Iterator[State]:
    """Yield every state at ``positions``, which must ascend, in order. Equal states are repeated.

    ``base`` is the content of the folder when the recording began.
    """
    for point in _points(recording, base, positions, folder_model, seed, depth):
        yield State(point.describe(), point.tree(), point.said_before, point.said_by)


def distinct(
    recording: Sequence[IoOperation],
    base: Tree,
    positions: Sequence[int],
    folder_model: FolderModel,
    seed: int,
    depth: Depth = DEFAULT_DEPTH,
) -> Iterator[Distinct]:
    """Yield the states at ``positions`` without duplicates in paths and bytes, in the order of their first occurrence.

    States that differ only in ``depth.unread`` files are duplicates. Every state is generated once before the first is
    yielded, because the last position may repeat the first state.
    """
    met: dict[bytes, _Met] = {}
    for place, point in enumerate(_points(recording, base, positions, folder_model, seed, depth)):
        digest = point.tree().digest(depth.unread)
        found = met.get(digest)
        if found is None:
            met[digest] = _Met(place, point.said_before, point.said_by)
        else:
            found.states += 1
            found.said_before = min(found.said_before, point.said_before)
            found.said_by = max(found.said_by, point.said_by)
    again = _points(recording, base, positions, folder_model, seed, depth)
    place = 0
    for first in met.values():
        point = next(islice(again, first.place - place, None))
        place = first.place + 1
        yield Distinct(point.describe(), point.tree(), first.states, first.said_before, first.said_by)


def rebuild(recording: Sequence[IoOperation], base: Tree, description: Description) -> Tree:
    """Return the state of ``description``. It must not be changed.

    Raises: ValueError if the recording has no such position.
    """
    disk = Disk(recording, base, description.folder_model)
    if not 0 <= description.position <= len(disk.operations):
        raise ValueError(f"the recording has positions 0 to {len(disk.operations)}, not {description.position}")
    while disk.position < description.position:
        disk.advance()
    if description.position in description.kept:
        disk.start()
    return disk.tree(sum(1 << operation for operation in description.kept), description.tears)


@dataclass(slots=True)
class _Met:
    place: int
    said_before: int
    said_by: int
    states: int = 1


@dataclass(frozen=True, slots=True)
class _Point:
    """A selection at a position. It is made into a state while the disk is still at that position."""

    disk: Disk
    choice: KeptChanges
    said_before: int
    said_by: int

    def describe(self) -> Description:
        kept = tuple(change.index for change in self.disk.pending() if change.bit & self.choice.kept)
        return Description(self.disk.folder_model, self.disk.position, self.choice.kind, kept, self.choice.tears)

    def tree(self) -> Tree:
        return self.disk.tree(self.choice.kept, self.choice.tears)


def _points(
    recording: Sequence[IoOperation],
    base: Tree,
    positions: Sequence[int],
    folder_model: FolderModel,
    seed: int,
    depth: Depth,
) -> Iterator[_Point]:
    if any(later <= earlier for earlier, later in pairwise(positions)):
        raise ValueError(f"positions ascend, and these do not: {positions}")
    disk = Disk(recording, base, folder_model)
    for position in positions:
        while disk.position < position:
            disk.advance()
        for choice in _choices(disk, Random(f"{seed} {position}"), depth):
            # Legal after the operation before this position, and until the next operation begins.
            yield _Point(disk, choice, position - 1, position)
        if position < len(disk.operations) and disk.operations[position].synchronous:
            disk.start()
            for choice in _choices(disk, Random(f"{seed} {position} under way"), depth):
                if choice.kept >> position & 1:
                    yield _Point(disk, choice, position, position)


def _choices(disk: Disk, rng: Random, depth: Depth) -> Iterator[KeptChanges]:
    """Yield the selections to try, with all bytes of the files that are never read."""
    pending = disk.pending()
    unread = [change for change in pending if isinstance(change, DataChange) and change.is_of(depth.unread)]
    kept = sum(change.bit for change in unread)
    in_order = disk.folder_model is not FolderModel.STRICT
    for choice in choices([change for change in pending if not change.bit & kept], in_order, rng, depth):
        yield choice._replace(kept=choice.kept | kept)
