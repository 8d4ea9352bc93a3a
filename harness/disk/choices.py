"""Which of the changes that are not sure reached the disk: the choices that are tried at one position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import NamedTuple

from harness.disk.changes import Change, DataChange, NameChange
from harness.disk.unsynced import Rest, Tear
from harness.effects.recording import Kind

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
BEYOND_SECTOR_BYTES = 64


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is tried at a position.

    Every subset of up to ``subset_effects_max`` effects; of more, each prefix, each one missing, each one alone, every
    subset of the last ``recent_effects`` over all others, each file's missing or alone, and ``random_subsets``; where
    names keep their order, one is missing with all later names, and alone with all earlier ones. The last writes of the
    ``torn_files`` written last are torn, at up to ``tears`` multiples of 512 bytes and as many of 4,096.
    ``unread``: paths, ``*`` standing for anything, whose bytes nobody reads again (an engine's log for people): what
    was written to them is always there, and their effects don't count among the others.
    ``beyond_model``: torn writes alone, at multiples of 64 bytes and with noise.
    ``states_per_position``: no more than so many (2 or more), drawn from all of these, each kind as often; nothing and
    everything kept are always among them.
    """

    subset_effects_max: int = 6
    recent_effects: int = 4
    random_subsets: int = 8
    torn_files: int = 3
    tears: int = 4
    unread: tuple[str, ...] = ()
    beyond_model: bool = False
    states_per_position: int | None = None


class Choice(NamedTuple):
    """The changes ``kept``, as bits by effect, some of them torn; ``kind`` says why this was chosen."""

    kind: str
    kept: int
    tears: tuple[Tear, ...] = ()


def choices(unsure: Sequence[Change], names_in_order: bool, rng: Random, depth: Depth) -> list[Choice]:
    """What to try where ``unsure`` may be lost, each choice once.

    ``names_in_order``: of the names among them, only prefixes are kept.
    """
    names = [change for change in unsure if isinstance(change, NameChange)] if names_in_order else []
    tried = (
        _torn(unsure, rng, depth)
        if depth.beyond_model
        else chain(_kept(unsure, names, rng, depth), _torn(unsure, rng, depth))
    )
    found: dict[tuple[int, tuple[Tear, ...]], Choice] = {}
    for choice in tried:
        found.setdefault((choice.kept, choice.tears), choice)
    chosen = list(found.values())
    most = depth.states_per_position
    if most is not None and len(chosen) > most:
        always = 0 if depth.beyond_model else 2
        chosen = chosen[:always] + _shared_out(chosen[always:], most - always, rng)
    return chosen


def _shared_out(choices: Sequence[Choice], most: int, rng: Random) -> list[Choice]:
    """``most`` of them, as many of each kind where there are; of a kind rather those about later changes."""
    kinds: dict[str, list[int]] = {}
    for place, choice in enumerate(choices):
        kinds.setdefault(choice.kind, []).append(place)
    drawn: list[int] = []
    while len(drawn) < most:
        for kind in rng.sample(list(kinds), len(kinds)):
            if places := kinds[kind]:
                drawn.append(places.pop(max(rng.randrange(len(places)), rng.randrange(len(places)))))
    return [choices[place] for place in sorted(drawn[:most])]


def _kept(unsure: Sequence[Change], names: Sequence[NameChange], rng: Random, depth: Depth) -> Iterator[Choice]:
    everything = _bits(unsure)
    yield Choice("none", 0)
    yield Choice("all", everything)
    if len(unsure) <= depth.subset_effects_max:
        yield from _subsets("subset", 0, unsure, names)
        return
    kept = 0
    for change in unsure:
        kept |= change.bit
        yield Choice("prefix", kept)
    for change in unsure:
        yield Choice("missing", _without_gaps(everything ^ change.bit, names))
    for change in unsure:
        yield Choice("alone", _with_earlier(change.bit, names))
    recent = unsure[max(0, len(unsure) - depth.recent_effects) :]
    yield from _subsets("recent", everything & ~_bits(recent), recent, names)
    data = [change for change in unsure if isinstance(change, DataChange)]
    for file in dict.fromkeys(change.file for change in data):
        own = _bits(change for change in data if change.file == file)
        yield Choice("file missing", everything ^ own)
        yield Choice("file alone", _bits(names) | own)
    for _ in range(depth.random_subsets):
        share = rng.choice((0.25, 0.5, 0.75))
        drawn = _bits(change for change in unsure if rng.random() < share)
        named = rng.randrange(len(names) + 1)
        yield Choice("random", drawn & ~_bits(names) | _bits(names[:named]))


def _subsets(kind: str, others: int, of: Sequence[Change], names: Sequence[NameChange]) -> Iterator[Choice]:
    """Every subset ``of`` these changes, over the ``others`` kept."""
    for number in range(1 << len(of)):
        kept = others | _bits(change for place, change in enumerate(of) if number >> place & 1)
        if _without_gaps(kept, names) == kept:
            yield Choice(kind, kept)


def _torn(unsure: Sequence[Change], rng: Random, depth: Depth) -> Iterator[Choice]:
    """Everything is kept, but one write is torn, or only the size was written of it, or of all of its file's."""
    everything = _bits(unsure)
    last: dict[int, DataChange] = {}
    grown: dict[int, list[DataChange]] = {}
    for change in unsure:
        if isinstance(change, DataChange) and change.effect.kind is Kind.WRITE:
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
                yield Choice("torn", everything, (Tear(change.index, at, rest),))
        if not depth.beyond_model:
            for short in _shortfalls(change, rng, depth):
                yield Choice("torn", everything, (Tear(change.index, -short, Rest.MISSING),))
        rest = Rest.NOISE if depth.beyond_model else Rest.ZEROS
        if longer := grown.get(file):
            yield Choice(f"{rest} at the end", everything, (Tear(longer[-1].index, 0, rest),))
            yield Choice(f"{rest} for all", everything, tuple(Tear(change.index, 0, rest) for change in longer))


def _tears_at(change: DataChange, rng: Random, depth: Depth) -> list[int]:
    """Where to tear a write, in bytes from its beginning."""
    sizes = (BEYOND_SECTOR_BYTES,) if depth.beyond_model else (SECTOR_BYTES, BLOCK_BYTES)
    found: set[int] = set()
    for size in sizes:
        begin, end = change.effect.offset, change.effect.offset + len(change.effect.data)
        inside = range(begin - begin % size + size, end, size)
        drawn = inside if len(inside) <= depth.tears else rng.sample(inside, depth.tears)
        found.update(place - begin for place in drawn)
    return sorted(found)


def _shortfalls(change: DataChange, rng: Random, depth: Depth) -> list[int]:
    """Where to end the zeros before a write that lay behind the old end, in bytes before its beginning."""
    begin = change.effect.offset
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
    """``kept`` without the names behind the first that is missing."""
    missing = False
    for name in names:
        missing = missing or not kept & name.bit
        if missing:
            kept &= ~name.bit
    return kept


def _with_earlier(kept: int, names: Sequence[NameChange]) -> int:
    """``kept`` with the names before the last that is there."""
    needed = False
    for name in reversed(names):
        needed = needed or bool(kept & name.bit)
        if needed:
            kept |= name.bit
    return kept
