"""Models of what differs by design, as each side is known to do it: windows, sessions and dead letters.

They share no code with the library. Source: Kafka Streams 4.1, ``KStreamWindowAggregate``,
``KStreamSessionWindowAggregate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from harness.tests.differential.trial import (
    GAP_MS,
    GRACE_MS,
    LETTERS,
    RAISING,
    SESSIONS,
    SIZE_MS,
    UNREADABLE,
    WINDOWS,
    Input,
)

FORGOTTEN = "Kafka Streams takes late records after a restart"
BY_STARTS = "a window of ours closes by the starts of windows"
WRITE_KEPT = "Kafka Streams keeps the writes before an error"
Entry = Mapping[str, Any]


class Plain(NamedTuple):
    """An output without its topic and partition."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Replay(NamedTuple):
    """The outputs of a key, its entries in the store at the end, and the number of late records that were taken."""

    outputs: list[Plain]
    entries: list[Entry]
    taken: int = 0


class Explanation(NamedTuple):
    """The number of records that differ, by the reason, and the replays for ours and theirs."""

    counts: Mapping[str, int]
    ours: Replay
    theirs: Replay


Explain = Callable[[bytes, Sequence[Plain], Sequence[Plain]], Explanation | None]


def explanations(topology: str, inputs: Iterable[Input], *, checked: bool = True) -> Explain:
    """Return a function that explains the outputs of a key, those of ours and of theirs; None where no reason fits.

    ``inputs`` are the committed records in the order of each partition. Without the check that the outputs fit, the
    explanation says what they would be.
    """
    by_partition: dict[int, list[Input]] = {}
    for each in inputs:
        if each.topic == "input" and each.key is not None:
            by_partition.setdefault(each.partition, []).append(each)
    of_key: dict[bytes, list[tuple[Input, int]]] = {}
    for records in by_partition.values():
        highest = accumulate((each.timestamp_ms for each in records), max)
        for each, stream_ms in zip(records, highest, strict=True):
            of_key.setdefault(each.key or b"", []).append((each, stream_ms))

    def explain(key: bytes, ours: Sequence[Plain], theirs: Sequence[Plain]) -> Explanation | None:
        if topology in _ACTS:
            found = _windowed(topology, key.decode(), of_key.get(key, []), theirs)
        elif topology == LETTERS:
            found = _numbered(key.decode(), [each for each, _ in of_key.get(key, [])])
        else:
            return None
        fits = found.ours.outputs == list(ours) and found.theirs.outputs == list(theirs)
        return found if not checked or (fits and any(found.counts.values())) else None

    return explain


def _windowed(topology: str, key: str, records: list[tuple[Input, int]], theirs: Sequence[Plain]) -> Explanation:
    by_times = [(each.timestamp_ms, stream_ms) for each, stream_ms in records]
    by_starts = [(time_ms, stream_ms // SIZE_MS * SIZE_MS) for time_ms, stream_ms in by_times]
    own = replay(topology, key, by_starts if topology == WINDOWS else by_times)
    strict, other = replay(topology, key, by_times), replay(topology, key, by_times, theirs)
    return Explanation({BY_STARTS: len(own.outputs) - len(strict.outputs), FORGOTTEN: other.taken}, own, other)


def replay(topology: str, key: str, times: Iterable[tuple[int, int]], seen: Sequence[Plain] | None = None) -> Replay:
    """Apply the records of a key: each has its time, and the stream time then, its own time included.

    A late one is dropped, unless its outputs are the next ones of ``seen``.
    """
    act, entry = _ACTS[topology]
    outputs: list[Plain] = []
    state: dict[Any, Any] = {}
    taken = 0
    for time_ms, stream_ms in times:
        late_at_ms, new, after = act(key, state, time_ms)
        if late_at_ms <= stream_ms:
            if seen is None or list(seen[len(outputs) : len(outputs) + len(new)]) != new:
                continue
            taken += 1
        outputs += new
        state = after
    return Replay(outputs, [entry(key, *pair) for pair in state.items()], taken)


Act = tuple[int, list[Plain], dict[Any, Any]]
"""The effect of a record: the stream time from which on it is late, its outputs, and the state after it."""


def _in_window(key: str, state: dict[int, tuple[int, int]], time_ms: int) -> Act:
    start_ms = time_ms // SIZE_MS * SIZE_MS
    count, last_ms = state.get(start_ms, (0, time_ms))
    after = count + 1, max(last_ms, time_ms)
    output = Plain(f"{key}@{start_ms}".encode(), b"%d" % after[0], after[1])
    return start_ms + SIZE_MS + GRACE_MS, [output], {**state, start_ms: after}


def _window_entry(key: str, start_ms: int, value: tuple[int, int]) -> Entry:
    return {"key": key, "value": value[0], "window_start_ms": start_ms, "timestamp_ms": value[1]}


def _in_session(key: str, state: dict[tuple[int, int], int], time_ms: int) -> Act:
    parts = [each for each in state if each[1] >= time_ms - GAP_MS and each[0] <= time_ms + GAP_MS]
    merged = min([time_ms, *(part[0] for part in parts)]), max([time_ms, *(part[1] for part in parts)])
    removed = [] if merged == (time_ms, time_ms) else sorted(parts, key=lambda part: (part[1], part[0]))
    count = sum(state[part] for part in parts) + 1
    outputs = [*(_session(key, part, None) for part in removed), _session(key, merged, b"%d" % count)]
    rest = {part: value for part, value in state.items() if part not in parts}
    return merged[1] + GAP_MS + GRACE_MS + 1, outputs, {**rest, merged: count}


def _session(key: str, session: tuple[int, int], value: bytes | None) -> Plain:
    return Plain(f"{key}@{session[0]}-{session[1]}".encode(), value, session[1])


def _session_entry(key: str, session: tuple[int, int], count: int) -> Entry:
    return {"key": key, "value": count, "session_start_ms": session[0], "session_end_ms": session[1]}


_ACTS: Mapping[str, tuple[Callable[..., Act], Callable[..., Entry]]] = {
    WINDOWS: (_in_window, _window_entry),
    SESSIONS: (_in_session, _session_entry),
}


def _numbered(key: str, records: Sequence[Input]) -> Explanation:
    raising = [each.value for each in records].count(RAISING)
    return Explanation({WRITE_KEPT: raising}, _numbers(key, records, keeps=False), _numbers(key, records, keeps=True))


def _numbers(key: str, records: Iterable[Input], *, keeps: bool) -> Replay:
    """Number the amounts of a key. ``keeps`` says whether the number stays that a record took before it raised."""
    number, outputs = 0, []
    for _, _, _, value, time_ms, headers in records:
        if value is None:
            number = 0
            outputs.append(Plain(key.encode(), None, time_ms, headers))
        elif value != UNREADABLE:
            number += keeps or value != RAISING
            if value != RAISING:
                outputs.append(Plain(key.encode(), b"%d:%s" % (number, value), time_ms, headers))
    return Replay(outputs, [{"key": key, "value": number}] if number else [])
