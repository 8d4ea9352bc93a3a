"""Updates of values, windows and sessions by a function, over every backend, alone and in a task."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stores import KeyValueStore, TopicPartition
from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.records import (
    INT64,
    STR,
    KeyValue,
    Session,
    TimestampedKeyValue,
    ValueAndTimestamp,
    Window,
    Windowed,
)
from stores.tasks import StreamTask, TaskContext, TaskId
from stores.tests.conformance.cases import Case

pytestmark = pytest.mark.typed

SIZE, GAP, RETENTION = 10, 5, 1_000
INPUT = TopicPartition("input", 0)
COUNTS = KeyValue(key=STR, value=INT64, name="counts")
LATEST = TimestampedKeyValue(key=STR, value=INT64, name="latest")
CLICKS = Window(key=STR, value=INT64, size_ms=SIZE, retention_ms=RETENTION, name="clicks")
TIMED_CLICKS = Window(key=STR, value=INT64, size_ms=SIZE, retention_ms=RETENTION, timestamped=True, name="timed-clicks")
VISITS = Session(key=STR, value=INT64, retention_ms=RETENTION, name="visits")
TIMED_VISITS = Session(key=STR, value=INT64, retention_ms=RETENTION, timestamped=True, name="timed-visits")


def increment(number: int) -> int:
    return number + 1


def count_in(number: int | None) -> int:
    return (number or 0) + 1


def sum_and_one(numbers: list[int]) -> int:
    return sum(numbers) + 1


def fail(_: object) -> int:
    raise ZeroDivisionError


def drawn_times(seed: int = 7, number: int = 60) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(RETENTION // 2) for _ in range(number)]


def sessions_of(times: Sequence[int]) -> list[tuple[int, int, int]]:
    """Start, end and number of records of each session, in order."""
    ordered = sorted(times)
    borders = [at for at, (before, after) in enumerate(pairwise(ordered), 1) if after - before > GAP]
    parts = [ordered[start:end] for start, end in pairwise([0, *borders, len(ordered)])]
    return [(part[0], part[-1], len(part)) for part in parts]


def test_a_value_is_updated_from_the_one_before_it(store: KeyValueStore) -> None:
    assert store.update(b"k", lambda value: value + b"+", b"0") == b"0+"
    assert store.update(b"k", lambda value: value + b"+", b"0") == b"0++" == store.get(b"k")


def test_a_typed_value_is_updated_from_the_one_before_it(store: KeyValueStore) -> None:
    counts = COUNTS.over(store)
    assert [counts.update("a", increment, 10) for _ in range(3)] == [11, 12, 13]
    counts.commit()
    assert counts.update("a", increment, 10) == counts.get("a") == 14


def test_an_update_keeps_the_later_one_of_two_times(store: KeyValueStore) -> None:
    latest = LATEST.over(store)
    assert latest.update("a", increment, 0, 50) == 1
    assert latest.update("a", increment, 0, 20) == 2
    assert latest.get("a") == ValueAndTimestamp(2, 50)
    assert latest.update("a", increment, 0, 70) == 3
    assert latest.get("a") == ValueAndTimestamp(3, 70)


def test_a_function_that_raises_stages_nothing(store: KeyValueStore) -> None:
    counts = COUNTS.over(store)
    counts.put("a", 1)
    with pytest.raises(ZeroDivisionError):
        counts.update("a", fail, 0)
    with pytest.raises(TypeError):
        counts.update("a", str, 0)  # type: ignore[arg-type]
    assert list(counts.all()) == [("a", 1)]


@pytest.mark.parametrize("kind", [CLICKS, TIMED_CLICKS], ids=["plain", "timestamped"])
def test_windows_count_the_records_of_their_time(store: KeyValueStore, kind: Window[str, Any]) -> None:
    clicks, times = kind.over(store), drawn_times()
    results = [clicks.update("k", time_ms, count_in) for time_ms in times]
    assert results[0] == 1
    counts = Counter(time_ms // SIZE * SIZE for time_ms in times)
    latest = {start: max(time for time in times if time // SIZE * SIZE == start) for start in counts}
    expected: dict[int, Any] = dict(counts)
    if kind.timestamped:
        expected = {start: ValueAndTimestamp(count, latest[start]) for start, count in counts.items()}
    assert dict(clicks.fetch("k", 0, RETENTION)) == expected


def test_a_window_takes_records_until_its_grace_is_over(store: KeyValueStore) -> None:
    clicks = CLICKS.over(store)
    assert clicks.update("k", 3, count_in, grace_ms=20) == 1
    clicks.update("k", 29, count_in)  # The stream time is 20, the window's end 10.
    assert clicks.update("k", 4, count_in, grace_ms=11) == 2
    assert clicks.update("k", 5, fail, grace_ms=10) is None
    assert clicks.update("k", 5, fail, grace_ms=0) is None
    assert clicks.late_total == 2
    assert clicks.fetch_one("k", 0) == 2
    assert clicks.update("k", 6, count_in) == 3
    clicks.update("k", RETENTION + SIZE, count_in)
    assert clicks.update("k", 9, fail) is None
    assert clicks.update("k", 9, fail, grace_ms=2 * RETENTION) is None
    assert clicks.late_total == 4


def test_a_window_store_with_duplicates_has_no_value_to_update(store: KeyValueStore) -> None:
    kind = Window(key=STR, value=INT64, size_ms=SIZE, retention_ms=RETENTION, retain_duplicates=True)
    with pytest.raises(ConfigError):
        kind.over(store).update("k", 1, count_in)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", [VISITS, TIMED_VISITS], ids=["plain", "timestamped"])
def test_sessions_have_the_records_between_two_gaps(store: KeyValueStore, kind: Session[str, Any], seed: int) -> None:
    visits, times = kind.over(store), drawn_times(seed)
    for number, time_ms in enumerate(times, 1):
        merged = visits.merge("k", time_ms, GAP, sum_and_one)
        assert merged is not None
        session, count = merged
        assert (session.start_ms, session.end_ms, count) in sessions_of(times[:number])
    found = [(session.start_ms, session.end_ms, value) for session, value in visits.fetch("k")]
    if kind.timestamped:
        # The latest record of a session is at its end.
        assert [value.timestamp_ms for _, _, value in found] == [end_ms for _, end_ms, _ in found]
        found = [(start_ms, end_ms, value.value) for start_ms, end_ms, value in found]
    assert found == sessions_of(times)


def test_a_session_takes_records_until_its_grace_is_over(store: KeyValueStore) -> None:
    visits = VISITS.over(store)
    assert visits.merge("k", 10, GAP, sum_and_one) == (("k", 10, 10), 1)
    visits.put(Windowed("other", 40, 40), 1)
    assert visits.merge("k", 10 + GAP, GAP, fail, grace_ms=40 - 10 - GAP - GAP - 1) is None
    assert visits.merge("k", 10 + GAP, GAP, sum_and_one, grace_ms=40 - 10 - GAP - GAP) == (("k", 10, 15), 2)
    assert visits.merge("k", 10 + GAP + GAP + 1, GAP, sum_and_one) == (("k", 21, 21), 1)
    visits.put(Windowed("other", 40 + RETENTION, 40 + RETENTION), 1)
    assert visits.merge("k", 40, GAP, fail) is None
    assert visits.late_total == 2
    assert [session for session, _ in visits.fetch_range(None, None)] == [("other", 1_040, 1_040)]


def test_a_session_that_a_merge_makes_too_old_is_not_counted_as_late(store: KeyValueStore) -> None:
    visits = VISITS.over(store)
    visits.merge("k", 0, 2 * RETENTION, sum_and_one)
    assert visits.merge("k", RETENTION + 1, 2 * RETENTION, sum_and_one) == (("k", 0, RETENTION + 1), 2)
    assert list(visits.fetch("k")) == [(("k", 0, RETENTION + 1), 2)]
    assert visits.late_total == 0


@pytest.mark.parametrize(("time_ms", "gap_ms", "grace_ms"), [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_times_below_zero_are_refused(store: KeyValueStore, time_ms: int, gap_ms: int, grace_ms: int) -> None:
    visits = VISITS.over(store)
    with pytest.raises(ValueError):
        visits.merge("k", time_ms, gap_ms, sum_and_one, grace_ms=grace_ms)
    assert list(visits.fetch("k")) == []


def updating_task(case: Case, folder: Path, log: MemoryChangelog) -> StreamTask:
    def process(record: Record, context: TaskContext) -> None:
        assert record.value is not None
        word = record.value.decode()
        context.store(COUNTS).update(word, increment, 0)
        context.store(LATEST).update(word, increment, 0, record.timestamp_ms)
        context.store(CLICKS).update(word, record.timestamp_ms, count_in)
        context.store(TIMED_VISITS).merge(word, record.timestamp_ms, GAP, sum_and_one)
        context.store("bytes").update(b"all", lambda value: value + record.value, b"")
        if word == "z":
            raise ZeroDivisionError

    kinds = [COUNTS, LATEST, CLICKS, TIMED_VISITS]
    options: dict[str, Any] = {"durability": case.durability, "options": case.options}
    stores = {str(kind.name): StoreConfig(case.backend.name, records=kind, **options) for kind in kinds}
    stores["bytes"] = StoreConfig(case.backend.name, **options)
    return StreamTask(
        "app", TaskId(0, 0), state_dir=folder, changelog=log, stores=stores, process=process, inputs=[INPUT]
    )


def test_a_task_logs_and_takes_back_what_it_updates(case: Case, tmp_path: Path) -> None:
    """The third record fails, and is taken back with all since the last commit. The stores are restored elsewhere."""
    with MemoryChangelog() as log:
        log.create_topic("input")
        with log.producer() as producer:
            for word, time_ms in ((b"a", 1), (b"a", 4), (b"z", 9)):
                producer.send(INPUT, None, word, time_ms)
            producer.flush()
        for folder, records in ((tmp_path / "one", 2), (tmp_path / "two", 0)):
            task = updating_task(case, folder, log)
            task.open()
            task.run(records, commit=True)
            if records:
                with pytest.raises(ZeroDivisionError):
                    task.run()
            assert dict(task.store(COUNTS).all()) == {"a": 2}
            assert dict(task.store(LATEST).all()) == {"a": ValueAndTimestamp(2, 4)}
            assert list(task.store(CLICKS).fetch("a", 0, SIZE)) == [(0, 2)]
            assert list(task.store(TIMED_VISITS).fetch("a")) == [(("a", 1, 4), ValueAndTimestamp(2, 4))]
            assert task.store("bytes").get(b"all") == b"aa"
            task.close()
