"""Crash states, position by position: enumerated, without duplicates, and rebuilt from a description.

At each position some selections of the pending changes are tried: those that reached the disk. ``Depth`` says how many.

Everything is lazy and depends on its arguments alone. Random selections are drawn per position, so the crash states at
a position do not depend on which other positions are enumerated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from random import Random
from typing import NamedTuple

from harness.crash_states.changes import Change, DataChange, NameChange, Rest, WriteTear
from harness.crash_states.files import Tree
from harness.crash_states.model import Disk, FolderModel, numbered
from harness.io_trace.recorder import IoOperation, Kind

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
BEYOND_SECTOR_BYTES = 64


@dataclass(frozen=True, slots=True)
class Depth:
    """The number of selections tried at a position.

    Of up to ``subset_operations_max`` operations, every subset is tried. Of more, these are tried: each prefix, each
    one missing, each one alone, every subset of the last ``recent_operations`` over all others, each file's missing or
    alone, and ``random_subsets``. If names keep their order, a missing name takes all later names with it, and a name
    alone has all earlier names. The last writes of the ``torn_files`` that were written last are torn, at up to
    ``tears`` multiples of 512 bytes and as many of 4,096.

    ``unread`` are paths (``*`` stands for any text) whose bytes are never read again, such as an engine's log messages.
    Writes to them are always kept, and do not count among the other operations. With ``beyond_model``, only torn writes
    are tried, at multiples of 64 bytes and with noise. ``states_per_position`` is a bound, 2 or more: as many are drawn
    from all of these, of each kind the same number. Nothing kept and everything kept are always among them, but
    for ``beyond_model``.
    """

    subset_operations_max: int = 6
    recent_operations: int = 4
    random_subsets: int = 8
    torn_files: int = 3
    tears: int = 4
    unread: tuple[str, ...] = ()
    beyond_model: bool = False
    states_per_position: int | None = None


DEFAULT_DEPTH = Depth()


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


class KeptChanges(NamedTuple):
    """The changes ``kept``, as bits by operation, some of them torn. ``kind`` names the rule that chose them."""

    kind: str
    kept: int
    tears: tuple[WriteTear, ...] = ()


def choices(pending: Sequence[Change], names_in_order: bool, rng: Random, depth: Depth) -> list[KeptChanges]:
    """Return the selections to try if the changes ``pending`` are pending, each once.

    With ``names_in_order``, only prefixes of the name changes are kept.
    """
    names = [change for change in pending if isinstance(change, NameChange)] if names_in_order else []
    candidates = (
        _torn(pending, rng, depth)
        if depth.beyond_model
        else chain(_kept(pending, names, rng, depth), _torn(pending, rng, depth))
    )
    by_content: dict[tuple[int, tuple[WriteTear, ...]], KeptChanges] = {}
    for choice in candidates:
        by_content.setdefault((choice.kept, choice.tears), choice)
    selections = list(by_content.values())
    most = depth.states_per_position
    if most is not None and len(selections) > most:
        always = 0 if depth.beyond_model else 2
        selections = selections[:always] + _shared_out(selections[always:], most - always, rng)
    return selections


def _shared_out(choices: Sequence[KeptChanges], most: int, rng: Random) -> list[KeptChanges]:
    """Return ``most`` of the choices, the same number of each kind where possible; later changes are preferred."""
    kinds: dict[str, list[int]] = {}
    for place, choice in enumerate(choices):
        kinds.setdefault(choice.kind, []).append(place)
    drawn: list[int] = []
    while len(drawn) < most:
        for kind in rng.sample(list(kinds), len(kinds)):
            if places := kinds[kind]:
                drawn.append(places.pop(max(rng.randrange(len(places)), rng.randrange(len(places)))))
    return [choices[place] for place in sorted(drawn[:most])]


def _kept(pending: Sequence[Change], names: Sequence[NameChange], rng: Random, depth: Depth) -> Iterator[KeptChanges]:
    everything = _bits(pending)
    yield KeptChanges("none", 0)
    yield KeptChanges("all", everything)
    if len(pending) <= depth.subset_operations_max:
        yield from _subsets("subset", 0, pending, names)
        return
    kept = 0
    for change in pending:
        kept |= change.bit
        yield KeptChanges("prefix", kept)
    for change in pending:
        yield KeptChanges("missing", _without_gaps(everything ^ change.bit, names))
    for change in pending:
        yield KeptChanges("alone", _with_earlier(change.bit, names))
    recent = pending[max(0, len(pending) - depth.recent_operations) :]
    yield from _subsets("recent", everything & ~_bits(recent), recent, names)
    data = [change for change in pending if isinstance(change, DataChange)]
    for file in dict.fromkeys(change.file for change in data):
        own = _bits(change for change in data if change.file == file)
        yield KeptChanges("file missing", everything ^ own)
        yield KeptChanges("file alone", _bits(names) | own)
    for _ in range(depth.random_subsets):
        share = rng.choice((0.25, 0.5, 0.75))
        bits = _bits(change for change in pending if rng.random() < share)
        number = rng.randrange(len(names) + 1)
        yield KeptChanges("random", bits & ~_bits(names) | _bits(names[:number]))


def _subsets(kind: str, others: int, of: Sequence[Change], names: Sequence[NameChange]) -> Iterator[KeptChanges]:
    """Yield every subset ``of`` these changes, with the ``others`` kept."""
    for number in range(1 << len(of)):
        kept = others | _bits(change for place, change in enumerate(of) if number >> place & 1)
        if _without_gaps(kept, names) == kept:
            yield KeptChanges(kind, kept)


def _torn(pending: Sequence[Change], rng: Random, depth: Depth) -> Iterator[KeptChanges]:
    """Yield choices that keep everything, but tear one write, or keep only the size of some writes."""
    everything = _bits(pending)
    last: dict[int, DataChange] = {}
    grown: dict[int, list[DataChange]] = {}
    for change in pending:
        if isinstance(change, DataChange) and change.operation.kind is Kind.WRITE:
            last.pop(change.file, None)
            last[change.file] = change
            if change.grows:
                grown.setdefault(change.file, []).append(change)
    for file, change in list(last.items())[: -depth.torn_files - 1 : -1]:
        for at in _tears_at(change, rng, depth):
            if depth.beyond_model:
                rests: tuple[Rest, ...] = (Rest.MISSING, Rest.BEFORE, *((Rest.NOISE,) if change.grows else ()))
            else:
                rests = (Rest.MISSING, Rest.BEFORE, *((Rest.ZEROS,) if change.grows else ()))
            for rest in rests:
                yield KeptChanges("torn", everything, (WriteTear(change.index, at, rest),))
        if not depth.beyond_model:
            for short in _shortfalls(change, rng, depth):
                yield KeptChanges("torn", everything, (WriteTear(change.index, -short, Rest.MISSING),))
        rest = Rest.NOISE if depth.beyond_model else Rest.ZEROS
        if longer := grown.get(file):
            yield KeptChanges(f"{rest} at the end", everything, (WriteTear(longer[-1].index, 0, rest),))
            yield KeptChanges(
                f"{rest} for all", everything, tuple(WriteTear(change.index, 0, rest) for change in longer)
            )


def _tears_at(change: DataChange, rng: Random, depth: Depth) -> list[int]:
    """Return where to tear a write, in bytes from its beginning."""
    sizes = (BEYOND_SECTOR_BYTES,) if depth.beyond_model else (SECTOR_BYTES, BLOCK_BYTES)
    places: set[int] = set()
    for size in sizes:
        begin, end = change.operation.offset, change.operation.offset + len(change.operation.data)
        inside = range(begin - begin % size + size, end, size)
        sample = inside if len(inside) <= depth.tears else rng.sample(inside, depth.tears)
        places.update(place - begin for place in sample)
    return sorted(places)


def _shortfalls(change: DataChange, rng: Random, depth: Depth) -> list[int]:
    """Return where to end the zeros before a write beyond the old end of the file, in bytes before its beginning."""
    begin = change.operation.offset
    start = begin - change.gap
    inside = range(start - start % BLOCK_BYTES + BLOCK_BYTES, begin, BLOCK_BYTES)
    sample = inside if len(inside) <= depth.tears else rng.sample(inside, depth.tears)
    return sorted(begin - place for place in sample)


def _bits(changes: Iterable[Change]) -> int:
    bits = 0
    for change in changes:
        bits |= change.bit
    return bits


def _without_gaps(kept: int, names: Sequence[NameChange]) -> int:
    """Return ``kept`` without the names after the first missing one."""
    missing = False
    for name in names:
        missing = missing or not kept & name.bit
        if missing:
            kept &= ~name.bit
    return kept


def _with_earlier(kept: int, names: Sequence[NameChange]) -> int:
    """Return ``kept`` with all names before the last kept one."""
    needed = False
    for name in reversed(names):
        needed = needed or bool(kept & name.bit)
        if needed:
            kept |= name.bit
    return kept
