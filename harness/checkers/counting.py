"""A task that counts the keys of its input, and sends one output for each input: the model, and the comparison with it.

An input is a key and a number of its own, such as ``("b", "17")``. Its output has that number as its key, and as its
value the input's key with its count so far: ``("17", "b 3")``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COUNTS, NEWEST = "counts", "newest"
"""The stores: the count of each key, and the number of its newest input."""
LOST, REPEATED, WRONG, STATE, PROCESS = "lost", "repeated", "wrong", "state", "process"
"""The kinds of findings: outputs that are missing, there twice, or not the model's; stores; processes."""

Pair = tuple[str, str]
Stores = Mapping[str, Mapping[str, str]]


class Finding(NamedTuple):
    """One way in which a trial did not end as promised."""

    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Model:
    """The correct result of an input: the outputs by number, and the content of the stores."""

    outputs: Mapping[str, str]
    stores: Stores


def model_of(inputs: Iterable[Pair]) -> Model:
    """Return the correct result of inputs, in their order."""
    counts: Counter[str] = Counter()
    newest: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for key, number in inputs:
        counts[key] += 1
        newest[key] = number
        outputs[number] = f"{key} {counts[key]}"
    return Model(outputs, {COUNTS: {key: str(count) for key, count in counts.items()}, NEWEST: newest})


def wrong_outputs(model: Model, found: Sequence[Pair], *, exactly_once: bool) -> list[Finding]:
    """Return how the committed outputs differ from the model's.

    Exactly once: each input has one output, and it is the model's. At least once: each input has an output. A count may
    be higher then, because an input that is processed again may read its own earlier writes.
    """
    times = Counter(number for number, _ in found)
    findings = []
    if lost := sorted(model.outputs.keys() - times.keys(), key=int):
        findings.append(Finding(LOST, f"{len(lost)} inputs have no output, first {lost[0]}"))
    if strange := sorted(times.keys() - model.outputs.keys()):
        findings.append(Finding(WRONG, f"{len(strange)} outputs belong to no input, first {strange[0]!r}"))
    if not exactly_once:
        return findings
    if twice := sorted((number for number, count in times.items() if count > 1), key=int):
        findings.append(Finding(REPEATED, f"{len(twice)} inputs have several outputs, first {twice[0]}"))
    if others := [(number, value) for number, value in found if model.outputs.get(number, value) != value]:
        number, value = others[0]
        text = f"{len(others)} outputs are wrong, first that of {number}: {value!r}, not {model.outputs[number]!r}"
        findings.append(Finding(WRONG, text))
    return findings


def repeated(found: Iterable[Pair]) -> int:
    """Return the number of outputs beyond the first one of each input."""
    return sum(count - 1 for count in Counter(number for number, _ in found).values())


def wrong_stores(expected: Stores, found: Stores, whose: str) -> list[Finding]:
    """Return each store that differs from what is expected. ``whose`` names the stores in a sentence."""
    findings = []
    for name, pairs in expected.items():
        other = found.get(name, {})
        if differing := sorted(key for key in pairs.keys() | other.keys() if pairs.get(key) != other.get(key)):
            key = differing[0]
            text = f"{len(differing)} keys of {name} differ in {whose}, first {key!r}: {other.get(key)}"
            findings.append(Finding(STATE, f"{text}, not {pairs.get(key)}"))
    return findings
