"""The observations of a trial: the histories and ends of its processes, and the log after each of them.

The history of a process is one JSON object per line, in the order of the events. Each process writes its own file. A
line is one ``write`` to a file opened for appending. So a kill leaves complete lines, and at worst a torn last one,
which the reader drops. The log is read from its file with plain SQL, without the code that wrote it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Self

from harness.checkers.evidence import (
    Acknowledged,
    Evidence,
    FellBack,
    FoundStore,
    LaterProcess,
    Log,
    LogRecord,
    RestoredStore,
    State,
)
from harness.experiments.crash.operations import STORES, expected, inputs
from harness.experiments.crash.trial import APPLICATION, INPUT_TOPIC, OUTPUT_TOPIC, CrashTrial, changelog_topic
from harness.faults import NOTHING
from harness.processes.child import Ending
from harness.typed_maps import PLAIN, logged_key

Event = dict[str, Any]
SIGKILLED = -9
_WIDTHS = (0, 1, 2, 4, 1, 2, 4, 8)
"""The bytes of a number in a column, by the lower three bits of the column's shape."""


class History:
    """An open history. Events are never buffered: a noted event survives the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, event: str, **details: Any) -> None:
        """Append one event; ``details`` are JSON values."""
        line = json.dumps({"event": event, **details}, separators=(",", ":")).encode() + b"\n"
        length = os.write(self._descriptor, line)
        if length != len(line):
            raise OSError(f"only {length} of {len(line)} bytes of an event were written")

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_history(path: Path) -> list[Event]:
    """Return the events of ``path`` in order; none if the file does not exist. A torn last line is dropped.

    Raises: ValueError if a line before the last one is not a JSON object.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    events = []
    for line in lines[:-1]:
        event = json.loads(line)
        if not isinstance(event, dict):
            raise ValueError(f"{path.name}: a line is no object")
        events.append(event)
    return events


def read_log(path: Path, records: str = PLAIN) -> Log:
    """Return the committed records of a trial's topics, and the next input; an empty log if there is no file.

    With ``records``, a kind of typed store, keys are those of the store's records; without it, keys are as stored.

    Opening the file changes it, because SQLite checkpoints its WAL, so give a copy.
    """
    if not path.exists():
        return Log(dict.fromkeys(STORES, ()))
    with closing(sqlite3.connect(path)) as connection:
        next_input = connection.execute(
            "select next_offset from consumer_groups where consumer_group = ? and topic = ? and partition = 0",
            (APPLICATION, INPUT_TOPIC),
        ).fetchone()
        return Log(
            stores={store: _committed(connection, changelog_topic(store), records) for store in STORES},
            outputs=_committed(connection, OUTPUT_TOPIC),
            next_input=next_input[0] if next_input else 0,
        )


def _committed(connection: sqlite3.Connection, topic: str, records: str = PLAIN) -> tuple[LogRecord, ...]:
    return tuple(
        LogRecord(offset, logged_key(records, key), value)
        for offset, key, value in _committed_records(connection, topic)
    )


def _committed_records(connection: sqlite3.Connection, topic: str) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield offset, key and value of each committed record of ``topic``, in order, by the layout in docs/format.md."""
    for first, count, content in connection.execute(
        "select base_offset, count, content from batches where topic = ? and state = 'COMMITTED' order by batch_id",
        (topic,),
    ):
        shapes, at, columns = int.from_bytes(content[4:6], "little"), 6, []
        for shape in (shapes & 15, shapes >> 4 & 15, shapes >> 8 & 15, shapes >> 12):
            width, has_each = _WIDTHS[shape & 7], shape & 7 > 3
            end = at + width * (count if has_each else 1)
            packed = [int.from_bytes(content[place : place + width], "little") for place in range(at, end, width or 1)]
            numbers = packed if has_each else (packed or [0]) * count
            columns.append([number - 1 for number in numbers] if shape & 8 else numbers)
            at = end
        key_lengths, value_lengths, _, gaps = columns
        offsets = [first + gap for gap in gaps] if shapes >> 12 else range(first, first + count)
        ends = accumulate([max(length, 0) for length in (*key_lengths, *value_lengths)], initial=at)
        parts = [
            content[begin:end] if length >= 0 else None
            for (begin, end), length in zip(pairwise(ends), (*key_lengths, *value_lengths), strict=True)
        ]
        yield from zip(offsets, parts[:count], parts[count:], strict=True)


@dataclass(frozen=True, slots=True)
class Observation:
    """One entry for each process that ran, in order; ``logs`` has the log after each of them."""

    histories: Sequence[Sequence[Event]]
    endings: Sequence[Ending]
    logs: Sequence[Log]


def mishap(trial: CrashTrial, number: int, ending: Ending, events: Sequence[Event]) -> str:
    """Return the reason why process ``number`` of the trial did not end as planned, or "".

    The words are the same in every run. The complaint of the process is in its ending.
    """
    noted = {event["event"] for event in events}
    if ending.status is None:
        return f"process {number} did not end before its deadline"
    if ending.status == SIGKILLED and "killed" in noted:
        return ""
    if ending.status < 0:
        return f"process {number} was killed by signal {-ending.status}, not by the trial"
    if ending.status:
        return f"process {number} failed: {_kind(ending.complaint)}"
    steps = trial.fault.steps
    step = steps[number] if number < len(steps) else NOTHING
    if unstruck := step.unstruck(noted):
        return f"process {number} {unstruck}"
    return "" if "closed" in noted else f"process {number} ended without closing its task"


def missing(trial: CrashTrial, observation: Observation) -> str:
    """Return the first mishap of the trial, which is the reason why the fault did not strike as planned, or ""."""
    mishaps = [
        mishap(trial, number, ending, events)
        for number, (ending, events) in enumerate(zip(observation.endings, observation.histories, strict=True))
    ]
    return next(filter(None, mishaps), "")


def evidence(trial: CrashTrial, observation: Observation) -> Evidence:
    """Return the observation in the form for checkers, with the expected result that follows from the seed."""
    lives = []
    acknowledged: list[Acknowledged] = []
    fallen_back: list[FellBack] = []
    for number, events in enumerate(observation.histories):
        if number:
            life = _life(events, observation.logs[number - 1], tuple(acknowledged))
            lives.append(replace(life, truncated=trial.fault.steps[number - 1].truncates))
        for event in events:
            if event["event"] == "acknowledged":
                acknowledged.append(Acknowledged(event["next_input"], event["log_ends"]))
            elif event["event"] == "fell_back":
                fallen_back.append(_fell_back(event, acknowledged[-1].next_input if acknowledged else 0))
    final = [event["states"] for event in observation.histories[-1] if event["event"] == "final"]
    return Evidence(
        exactly_once=trial.exactly_once,
        durability=trial.durability,
        expected=expected(inputs(trial.mix, trial.seed)),
        lives=lives,
        final={store: state(pairs) for store, pairs in final[-1].items()} if final else {},
        final_log=observation.logs[-1],
        missing=missing(trial, observation),
        fallen_back=fallen_back,
    )


def state(pairs: Mapping[str, str]) -> State:
    """Return a state of a history as bytes."""
    return {key.encode("latin-1"): value.encode("latin-1") for key, value in pairs.items()}


def _life(events: Sequence[Event], log: Log, acknowledged: Sequence[Acknowledged]) -> LaterProcess:
    stores: dict[str, FoundStore] = {}
    restored: dict[str, RestoredStore] = {}
    for event in events:
        if event["event"] == "found":
            stores = {store: _found(reported) for store, reported in event["stores"].items()}
        elif event["event"] == "restored":
            restored = _restored(event)
    return LaterProcess(log, acknowledged, stores, restored)


def _restored(event: Event) -> dict[str, RestoredStore]:
    return {
        store: RestoredStore(state(reported["state"]), reported["records"], reported["wiped"], reported["reason"] or "")
        for store, reported in event["stores"].items()
    }


def _fell_back(event: Event, acknowledged: int) -> FellBack:
    return FellBack(event["next_input"], acknowledged, _restored(event), frozenset(event["transactional"]))


def _found(reported: Mapping[str, Any]) -> FoundStore:
    return FoundStore(
        state(reported["state"]),
        reported["committed_offset"],
        reported["transactional"],
        reported["manages_offsets"],
        reported["persistent"],
        reported["position"],
    )


def _kind(complaint: str) -> str:
    return complaint.split(":", 1)[0].rsplit(".", 1)[-1] if complaint else "no word of why"
