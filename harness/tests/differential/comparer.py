"""The comparer: it names each difference between the two sides, those that are by design and all others.

It shares no code with the library. What is by design must be explained: a model of the rule gives the same outputs and
the same entries of the store, for both sides.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.tests.differential.model import BY_STARTS, FORGOTTEN, WRITE_KEPT, Explanation, Plain, explanations
from harness.tests.differential.trial import Input

Partition = tuple[str, int]
OUTPUT_TOPIC, LETTERS_TOPIC = "output", "letters"
ERROR_HEADERS = frozenset(f"__streams.errors.{name}" for name in ("exception", "message", "stacktrace"))
ERROR_TEXT = "an error has the name and the text of its language"
NO_KEY = "a dead letter without a key has another partition"
MARKERS = "an input offset is before the markers of transactions, or after them"
NAMES = (FORGOTTEN, BY_STARTS, WRITE_KEPT, ERROR_TEXT, NO_KEY, MARKERS)
"""All differences that are by design; docs/kafka.md has the reasons."""
_SHOWN = 3


class Output(NamedTuple):
    """A committed record of a side's topic, which is ``OUTPUT_TOPIC`` or ``LETTERS_TOPIC``."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def base_key(self) -> bytes | None:
        """The key without its window."""
        return None if self.key is None else self.key.partition(b"@")[0]


class Seen(NamedTuple):
    """The results of one side: outputs in the order of each partition, entries of the store, and input offsets."""

    outputs: Sequence[Output]
    entries: Sequence[Mapping[str, Any]]
    offsets: Mapping[Partition, int]


class Comparison(NamedTuple):
    """The differences that have no reason, as sentences, and the number of each that is by design."""

    differences: list[str]
    by_design: Counter[str]


def compare(
    topology: str, inputs: Sequence[Input], ends: Mapping[Partition, tuple[int, int]], ours: Seen, theirs: Seen
) -> Comparison:
    """Compare the results of the two sides.

    ``ends`` has for each input partition the offset after its last committed record, and that after all markers.
    """
    known: Counter[str] = Counter()
    differences: list[str] = []
    explained: dict[str, Explanation] = {}
    explain = explanations(topology, inputs)
    groups = [_grouped(side.outputs) for side in (ours, theirs)]
    entries = [_by_key(side.entries) for side in (ours, theirs)]
    keys = {(OUTPUT_TOPIC, key.encode()) for key in (*entries[0], *entries[1])}
    for topic, key in sorted({*groups[0], *groups[1], *keys}, key=repr):
        own, other = (group[topic, key] for group in groups)
        if topic == LETTERS_TOPIC:
            own, other = _letters(own, other, known)
        text = key.decode() if key is not None and topic == OUTPUT_TOPIC else ""
        if own == other and entries[0][text] == entries[1][text]:
            continue
        found = explain(key, _plain(own), _plain(other)) if key is not None and text else None
        if found is not None and _partitions(own) == _partitions(other):
            known.update(found.counts)
            explained[text] = found
        elif own != other:
            differences.append(f"{topic} of {key!r}: {_difference(own, other)}")
    differences += _of_entries(entries, explained)
    differences += _of_offsets(ends, ours.offsets, theirs.offsets, known)
    return Comparison(differences, +known)


def _grouped(outputs: Iterable[Output]) -> defaultdict[tuple[str, bytes | None], list[Output]]:
    groups: defaultdict[tuple[str, bytes | None], list[Output]] = defaultdict(list)
    for output in outputs:
        groups[output.topic, output.base_key].append(output)
    return groups


def _plain(outputs: Iterable[Output]) -> list[Plain]:
    return [Plain(each.key, each.value, each.timestamp_ms, each.headers) for each in outputs]


def _partitions(outputs: Iterable[Output]) -> set[int]:
    return {output.partition for output in outputs}


def _letters(own: list[Output], other: list[Output], known: Counter[str]) -> tuple[list[Output], list[Output]]:
    """Return dead letters of a key without the texts of errors, which all must have; of no key without partitions."""
    sides = [[_without_error(each) for each in side] for side in (own, other)]
    known[ERROR_TEXT] += sum(a.headers != b.headers for a, b in zip(own, other, strict=False))
    if any(each.key is None for side in sides for each in side):
        sides = [sorted(side, key=lambda each: (each.timestamp_ms, each.headers, each.value or b"")) for side in sides]
        known[NO_KEY] += sum(a.partition != b.partition for a, b in zip(*sides, strict=False))
        sides = [[each._replace(partition=-1) for each in side] for side in sides]
    return sides[0], sides[1]


def _without_error(letter: Output) -> Output:
    """Return the letter with a mark in place of its error; as it is if it has none."""
    if not {name for name, _ in letter.headers} >= ERROR_HEADERS:
        return letter
    headers = [each for each in letter.headers if each[0] not in ERROR_HEADERS]
    return letter._replace(headers=(*headers, ("an error", b"")))


def _difference(own: Sequence[Output], other: Sequence[Output]) -> str:
    """Return how two sequences differ: lost and repeated outputs, or only their order."""
    lost, extra = Counter(other) - Counter(own), Counter(own) - Counter(other)
    if not lost and not extra:
        return "another order"
    repeated = Counter({each: count for each, count in extra.items() if each in other})
    parts = {"ours lacks": lost, "ours repeats": repeated, "ours alone has": extra - repeated}
    return "; ".join(f"{what} {_text(outputs)}" for what, outputs in parts.items() if outputs)


def _text(found: Counter[Any]) -> str:
    shown = ", ".join(_short(each) for each in list(found)[:_SHOWN])
    return f"{found.total()}: {shown}{', ...' if len(found) > _SHOWN else ''}"


def _short(found: Any) -> str:
    if isinstance(found, Output):
        return f"{found.key!r}={found.value!r} at {found.timestamp_ms} in partition {found.partition}"
    return str(found)


def _of_entries(sides: Sequence[Mapping[str, Counter[str]]], explained: Mapping[str, Explanation]) -> list[str]:
    """Compare the stores by key, those of an explained key with its model."""
    differences = []
    for key in sorted({*sides[0], *sides[1], *explained}):
        contents = [side[key] for side in sides]
        if key in explained:
            expected = [_by_key(side.entries)[key] for side in (explained[key].ours, explained[key].theirs)]
            pairs = [("ours, its model", contents[0], expected[0]), ("theirs, its model", contents[1], expected[1])]
        else:
            pairs = [("ours, theirs", contents[0], contents[1])]
        for what, left, right in pairs:
            if left != right:
                differences.append(f"store at {key!r}, {what}: {_text(left - right)} | {_text(right - left)}")
    return differences


def _by_key(entries: Iterable[Mapping[str, Any]]) -> defaultdict[str, Counter[str]]:
    by_key: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        by_key[entry["key"]][json.dumps(entry, sort_keys=True)] += 1
    return by_key


def _of_offsets(
    ends: Mapping[Partition, tuple[int, int]],
    own: Mapping[Partition, int],
    other: Mapping[Partition, int],
    known: Counter[str],
) -> list[str]:
    differences = []
    for partition, (last, end) in ends.items():
        pair = own.get(partition), other.get(partition)
        if pair[0] == pair[1] == end or pair[0] == pair[1] == last:
            continue
        if all(offset is not None and last <= offset <= end for offset in pair):
            known[MARKERS] += 1
        else:
            differences.append(f"offset of {partition}: ours {pair[0]}, theirs {pair[1]}, end {last} to {end}")
    return differences
