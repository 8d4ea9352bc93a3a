"""The selections of pending changes that are tried at one position: those that reached the disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import NamedTuple

from harness.crash_states.changes import Change, DataChange, NameChange, Rest, WriteTear
from harness.io_trace.recorder import Kind

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
    tried = (
        _torn(pending, rng, depth)
        if depth.beyond_model
        else chain(_kept(pending, names, rng, depth), _torn(pending, rng, depth))
    )
    found: dict[tuple[int, tuple[WriteTear, ...]], KeptChanges] = {}
    for choice in tried:
        found.setdefault((choice.kept, choice.tears), choice)
    chosen = list(found.values())
    most = depth.states_per_position
    if most is not None and len(chosen) > most:
        always = 0 if depth.beyond_model else 2
        chosen = chosen[:always] + _shared_out(chosen[always:], most - always, rng)
    return chosen


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
        drawn = _bits(change for change in pending if rng.random() < share)
        named = rng.randrange(len(names) + 1)
        yield KeptChanges("random", drawn & ~_bits(names) | _bits(names[:named]))


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
    found: set[int] = set()
    for size in sizes:
        begin, end = change.operation.offset, change.operation.offset + len(change.operation.data)
        inside = range(begin - begin % size + size, end, size)
        drawn = inside if len(inside) <= depth.tears else rng.sample(inside, depth.tears)
        found.update(place - begin for place in drawn)
    return sorted(found)


def _shortfalls(change: DataChange, rng: Random, depth: Depth) -> list[int]:
    """Return where to end the zeros before a write beyond the old end of the file, in bytes before its beginning."""
    begin = change.operation.offset
    start = begin - change.gap
    inside = range(start - start % BLOCK_BYTES + BLOCK_BYTES, begin, BLOCK_BYTES)
    drawn = inside if len(inside) <= depth.tears else rng.sample(inside, depth.tears)
    return sorted(begin - place for place in drawn)


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
