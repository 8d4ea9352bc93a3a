"""After any fault the rows and the state of a query equal the answer that Spark SQL gives of the same events.

Rows of an answer and a sink are a name, a batch, and the count of the name after that batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Rows = Sequence[Sequence[Any]]


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
