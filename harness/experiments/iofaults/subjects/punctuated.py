"""A stream task with punctuators, by stream time and by wall clock. Each writes to every store and to an output.

The calls by stream time follow from the committed records. The calls by wall clock do not: the clock's schedule starts
over when the task is opened. For both kinds, stores and outputs must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiments.iofaults.subjects.task import TaskSubject
from harness.experiments.iofaults.workload import NUMBER_KEY, Change, State
from stores.changelog.interface import Record
from stores.interface import Durability, TopicPartition
from stores.tasks import PunctuationType, TaskContext

BACKENDS = ("rocksdb-indexed-batch", "sqlite-native")
_STREAM, _WALL = b"by stream time", b"by wall clock"
_OUTPUT = TopicPartition("punctuated", 0)
_RECORD_MS, _STREAM_MS = 10, 30
"""The time between the timestamps of two commits' records, and between two calls by stream time."""
_WALL_MS = 2_000
"""The time between two calls by wall clock; each commit advances the clock by a second."""


class _Clock:
    """A clock that changes only in ``advance`` and ``sleep``."""

    def __init__(self) -> None:
        self._now_ms = 0

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds

    def monotonic_ns(self) -> int:
        return self._now_ms * 1_000_000

    def epoch_ms(self) -> int:
        return self._now_ms

    def sleep(self, seconds: float) -> None:
        self.advance(round(1_000 * seconds))


class PunctuatedTaskSubject(TaskSubject):
    """A stream task. Its state has the number of calls by stream time beside the workload's keys."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level, BACKENDS)
        self._clock = _Clock()
        self._restored_calls = 0

    def _settings(self) -> Mapping[str, Any]:
        assert self._log is not None
        self._log.create_topic(_OUTPUT.topic)
        return {"init": self._init, "clock": self._clock}

    def _init(self, context: TaskContext) -> None:
        for interval_ms, kind, key in (
            (_STREAM_MS, PunctuationType.STREAM_TIME, _STREAM),
            (_WALL_MS, PunctuationType.WALL_CLOCK_TIME, _WALL),
        ):
            context.schedule(interval_ms, kind, partial(self._punctuate, context, key))

    def _punctuate(self, context: TaskContext, key: bytes, timestamp_ms: int) -> None:
        for store in self._maps(context.store).values():
            calls = b"%d" % (int(store.get(key) or b"0") + 1)
            store.put(key, calls)
        context.forward(_OUTPUT.topic, key, calls)

    def stage(self, made: Sequence[Change], after: State) -> None:
        self._clock.advance(1_000)
        super().stage(made, after)

    def _timestamp_ms(self, number: int) -> int:
        return number * _RECORD_MS

    def _process(self, record: Record, context: TaskContext) -> None:
        super()._process(record, context)
        for calls in range(1, self._restored_calls + 1):
            context.forward(_OUTPUT.topic, _STREAM, b"%d" % calls)

    def restore(self, state: State, number: int) -> None:
        self._restored_calls = int(self.expected(state).get(_STREAM, b"0"))
        super().restore(self.expected(state), number)
        self._restored_calls = 0

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        state, offset, position = super().read()
        assert self._log is not None
        sent: dict[bytes | None, list[bytes | None]] = {_STREAM: [], _WALL: []}
        for record in self._log.read(_OUTPUT):
            sent[record.key].append(record.value)
        for key in (_STREAM, _WALL):
            if sent[key] != [b"%d" % calls for calls in range(1, int(state.get(key, b"0")) + 1)]:
                # Make a state that equals no model.
                state[key] = b"stores and outputs differ"
            elif key == _WALL:
                state.pop(key, None)
        return state, offset, position

    @staticmethod
    def expected(state: State) -> State:
        number = int(state.get(NUMBER_KEY, b"0"))
        if not number:
            return state
        return {**state, _STREAM: b"%d" % ((number - 1) * _RECORD_MS // _STREAM_MS + 1)}
