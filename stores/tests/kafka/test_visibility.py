"""The delay after which readers of committed data see a record: the commit interval, by a clock that the test sets.

Source: KIP-892, "Transaction Isolation".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog import Record
from stores.changelog.kafka.testing.broker import Broker
from stores.interface import IsolationLevel
from stores.tasks import TaskContext
from stores.tests.kafka.counting import KEYS, changelog, prepared
from stores.tests.kafka.independent_reader import IndependentReader
from stores.tests.tasks.hand_clock import HandClock
from stores.tests.tasks.setup import OUTPUT, counting_task, expected_outputs, expected_state, feed

pytestmark = pytest.mark.kafka

RECORDS_PER_INTERVAL = 4
LATE = [7]


def forward_count(record: Record, context: TaskContext) -> None:
    """Forward the count of the record's key, and put it after that: a producer may hold what is sent last."""
    assert record.key is not None
    new = b"%d" % (int(context.store("left").get(record.key) or b"0") + 1)
    context.forward("output", record.key, new)
    for name in ("left", "right"):
        context.store(name).put(record.key, new)


@pytest.mark.parametrize(("given", "interval_ms"), [(None, 100), (7_000, 7_000)])
def test_readers_of_committed_data_see_a_record_after_one_commit_interval(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, given: int | None, interval_ms: int
) -> None:
    """They are a consumer of the outputs, and a view of the store. A consumer of uncommitted data sees it before."""
    # The client gets each record before the next one, and not only at the commit.
    monkeypatch.setattr("stores.changelog.kafka.producer._HELD_RECORDS", 1)
    prepared(tmp_path, broker)
    clock, step_ms = HandClock(), interval_ms * 3 // 10
    waiting_since_ms: list[int] = []
    delays_ms: list[int] = []
    with (
        changelog(tmp_path) as log,
        IndependentReader(broker, OUTPUT) as reader,
        IndependentReader(broker, OUTPUT, "read_uncommitted") as uncommitted,
        counting_task(tmp_path, log, process=forward_count, commit_interval_ms=given, clock=clock) as task,
    ):
        view = task.store("left", IsolationLevel.READ_COMMITTED)

        def check_visible(keys: list[int]) -> None:
            assert reader.pairs() == expected_outputs(keys)
            with view.all() as pairs:
                assert dict(pairs) == expected_state(keys)

        visible = 0
        for number in range(1, len(KEYS) + 1):
            clock.advance(step_ms)
            assert task.run(1) == 1
            waiting_since_ms.append(clock.now_ms)
            uncommitted.await_records(number)
            if number % RECORDS_PER_INTERVAL == 0:
                visible = number
                reader.await_records(visible)
                delays_ms += [clock.now_ms - since_ms for since_ms in waiting_since_ms]
                waiting_since_ms.clear()
            check_visible(KEYS[:visible])
            assert task.metrics.commit_total == number // RECORDS_PER_INTERVAL
        assert delays_ms == [3 * step_ms, 2 * step_ms, step_ms, 0] * (len(KEYS) // RECORDS_PER_INTERVAL)
        assert max(delays_ms) <= interval_ms
        # Without further input the delay is the whole interval, and no more.
        feed(log, LATE)
        assert task.run() == 1
        clock.advance(interval_ms - 1)
        assert task.run() == 0
        uncommitted.await_records(len(KEYS + LATE))
        check_visible(KEYS)
        clock.advance(1)
        assert task.run() == 0
        reader.await_records(len(KEYS + LATE))
        check_visible(KEYS + LATE)
