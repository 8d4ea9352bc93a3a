"""Counting: the outputs and the stores of a task, or the rows and the state of a query, compared with the right ones.

A task counts the keys of its input, and sends one output for each input. An input is a key and a number of its own,
such as ``("b", "17")``. Its output has that number as its key, and as its value the input's key with its count so far:
``("17", "b 3")``. The right ones are those of a model.

After any fault the rows and the state of a query equal the answer that Spark SQL gives of the same events. Rows of an
answer and a sink are a name, a batch, and the count of the name after that batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

COUNTS, NEWEST = "counts", "newest"
"""The stores: the count of each key, and the number of its newest input."""
LOST, REPEATED, WRONG, STATE, PROCESS = "lost", "repeated", "wrong", "state", "process"
"""The kinds of findings: outputs that are missing, there twice, or not the model's; stores; processes."""

Pair = tuple[str, str]
Stores = Mapping[str, Mapping[str, str]]
Rows = Sequence[Sequence[Any]]


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


def wrong_rows(answer: Rows, sink: Rows) -> str:
    """Return how the rows in a sink differ from the answer, "" if they are equal. Each row counts once."""
    expected, actual = Counter(map(tuple, answer)), Counter(map(tuple, sink))
    if not expected:
        return "the answer has no rows"
    missing, more = expected - actual, actual - expected
    if not missing and not more:
        return ""
    parts = [
        f"{sum(rows.values())} rows {how}, first {min(rows)}"
        for rows, how in ((missing, "missing"), (more, "too many"))
        if rows
    ]
    return f"of {sum(expected.values())} rows of the sink: {'; '.join(parts)}"


def wrong_state(answer: Rows, state: Rows, partitions: int, version: int) -> str:
    """Return how the state after batch ``version`` differs from the answer, "" if it is right.

    Rows of a state begin with a store, a key and a value.

    The store ``counts`` has the last count of each name. The store ``batches`` has one entry for each partition: the
    number of its batches, in hexadecimal.
    """
    by_batch = sorted(answer, key=lambda row: int(row[1]))
    last = {name: value for name, batch, value in by_batch if batch <= version}
    counts = {key: int(value) for store, key, value, *_ in state if store == "counts"}
    batches = [int(bytes.fromhex(value)) for store, _, value, *_ in state if store == "batches"]
    wrong = sorted(name for name in last.keys() | counts.keys() if last.get(name) != counts.get(name))
    if wrong:
        name = wrong[0]
        return f"{len(wrong)} names of the state differ, first {name}: {counts.get(name)}, not {last.get(name)}"
    if batches != [version + 1] * partitions:
        return f"the partitions have counted {batches} batches, not {version + 1} each"
    return ""


def wrong_timers(fired: Rows, registered: Rows, state: Rows, version: int) -> str:
    """Return how the state of a query of timers differs after batch ``version`` from the answer, "" if it is right.

    Rows of ``fired`` and ``registered`` are a name, a batch and the time of a timer; those of a state are a store, a
    key, a value and a time. The store ``fired`` has how many timers of a name have fired, ``_times`` those to come.
    """
    past = [(name, time_ms) for name, batch, time_ms in fired if batch <= version]
    timers = [(name, time_ms) for name, batch, time_ms in registered if batch <= version]
    wanted = Counter(timers) - Counter(past)
    waiting = Counter((json.loads(key), time_ms) for store, key, _, time_ms in state if store == "_times")
    if waiting != wanted:
        wrong = min((waiting - wanted) + (wanted - waiting))
        return f"after batch {version} {sum(waiting.values())} timers wait, not {sum(wanted.values())}, first {wrong}"
    counts = Counter(name for name, _ in past)
    numbers = Counter({key: int(value) for store, key, value, _ in state if store == "fired"})
    if numbers != counts:
        name = min(key for key in counts.keys() | numbers.keys() if counts[key] != numbers[key])
        return f"after batch {version} {numbers[name]} timers of {name} have fired, not {counts[name]}"
    return ""


def wrong_records(state: Rows, store: str, records: Mapping[bytes, bytes], partitions: int) -> str:
    """Return how a store of bytes differs from ``records``, which each partition must have; "" if it does not."""
    wanted = Counter({(key.hex(), value.hex()): partitions for key, value in records.items()})
    shown = Counter((key, value) for name, key, value, *_ in state if name == store)
    if shown == wanted:
        return ""
    return f"the store {store!r} lacks {(wanted - shown).total()} records, and has {(shown - wanted).total()} others"


def leading_stores(commits: Iterable[Mapping[str, Any]], appends: Iterable[Mapping[str, Any]]) -> str:
    """Return which store has led its log, "" if none has: it committed a version before its process had appended it."""
    appended: dict[tuple[int, str, int], int] = {}
    for each in appends:
        appended.setdefault((each["pid"], f"p{each['partition']:05d}", each["version"]), each["at"])
    for each in commits:
        partition = each["path"].split("/")[-2]
        at = appended.get((each["pid"], partition, each["version"]))
        if at is None or at > each["at"]:
            return f"a store in {partition} committed version {each['version']} before its log had it"
    return ""


def wrong_restores(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], survivor: str, newest: int, lost: str
) -> str:
    """Return which restore of the surviving machine was not of just the versions that its copies lacked, or "".

    ``before`` are the commits until the other machine was lost, ``after`` the first restore of each partition after
    that. Paths below ``survivor`` and ``lost`` are of these machines. Versions go up to ``newest``.
    """
    had: dict[str, int] = {}
    for each in before:
        had[each["path"]] = each["version"]
    for each in after:
        if lost in each["path"] or survivor not in each["path"]:
            return f"partition {each['partition']} was restored in {each['path']}, which is not the survivor's"
        lacked = newest - had.get(each["path"], -1)
        if each["versions"] != lacked:
            return f"partition {each['partition']} lacked {lacked} versions, and {each['versions']} were restored"
    return ""
