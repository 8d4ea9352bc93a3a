"""The settings of snapshots, and the limits on the bytes and the processor time that all of a process use."""

from __future__ import annotations

import threading
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from stores.changelog import Changelog
from stores.errors import ConfigError
from stores.snapshots import settings as settings_module
from stores.snapshots.settings import Pace, Snapshots
from stores.tests.snapshots.snapshotting import RECORDS, lose, pairs_of, reopened, send, settings, snap, snapping
from stores.tests.tasks.setup import INDEXED, logged


class Clock(Event):
    """A clock that stands still, but for the waits for this event."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if not self.is_set():
            self.now_s += max(timeout, 0.0)
        return self.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(settings_module, "monotonic", clock)
    return clock


def test_what_is_taken_has_its_time_before_more_is_taken(clock: Clock) -> None:
    pace = Pace(10.0)
    waits = []
    for amount in (5.0, 20.0, 0.0):
        before = clock.now_s
        pace.take(amount, clock)
        waits.append(clock.now_s - before)
    assert waits == [0.0, 0.5, 2.0]
    clock.now_s += 100.0
    pace.take(1.0, clock)
    assert clock.now_s == pytest.approx(1_102.5)


def test_without_a_limit_nothing_waits(clock: Clock) -> None:
    pace = Pace(None)
    for _ in range(3):
        pace.take(1e9, clock)
    assert clock.now_s == 1_000.0


def test_an_end_is_not_waited_for(clock: Clock) -> None:
    pace = Pace(1.0)
    pace.take(1e9, clock)
    clock.set()
    pace.take(1.0, clock)
    assert clock.now_s == 1_000.0


def test_work_takes_the_processor_s_time_of_its_thread(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    used_s = 3.0
    monkeypatch.setattr(settings_module, "thread_time", lambda: used_s)
    pace = Pace(0.1)
    with pace.work(clock):
        used_s += 0.5
        clock.now_s += 30.0  # waits for a disk do not count
    with pace.work(clock):
        used_s += 0.5
    assert clock.now_s == pytest.approx(1_035.0)


def test_a_share_of_a_processor_is_one_of_time(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    used_s = 0.0
    monkeypatch.setattr(settings_module, "thread_time", lambda: used_s)
    snapshots = Snapshots(tmp_path, cpu_share=0.25, max_bytes_per_s=1_000)
    for _ in range(2):
        with snapshots.pace.work(clock):
            used_s += 1.0
    assert clock.now_s == pytest.approx(1_004.0)
    for _ in range(2):
        snapshots.bandwidth.take(2_000, clock)
    assert clock.now_s == pytest.approx(1_006.0)


@pytest.mark.parametrize("backend", [INDEXED, "lmdb", "sqlite"])
def test_each_part_is_sent_at_the_pace_of_the_process(
    tmp_path: Path, log: Changelog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, float]] = []

    def take(pace: Pace, amount: float, ended: Event) -> None:
        if pace is snapshots.pace:
            taken.append((threading.current_thread().name, amount))

    monkeypatch.setattr(Pace, "take", take)
    snapshots = settings(tmp_path)
    task = snapping(tmp_path, log, backend, snapshots)
    task.open()
    send(log, pairs_of(range(RECORDS)))
    snap(task, log)
    num_parts: Any = task.metrics.stores["s"].snapshot_sent_objects_total
    assert len(taken) >= num_parts > 0
    assert all(name.startswith("snapshot") and amount > 0 for name, amount in taken)
    task.close()
    lose(tmp_path)
    assert reopened(tmp_path, log, backend, snapshots)[0] == logged(log, "s")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"interval_ms": -1}, ConfigError),
        ({"interval_ms": 0.5}, TypeError),
        ({"keep": 0}, ConfigError),
        ({"grace_ms": -1}, ConfigError),
        ({"threads": 0}, ConfigError),
        ({"max_bytes_per_s": 0}, ConfigError),
        ({"cpu_share": 0.0}, ConfigError),
        ({"cpu_share": float("inf")}, ConfigError),
        ({"cpu_share": "0.5"}, TypeError),
        ({"put_if_absent": "put"}, TypeError),
        ({"location": ""}, ConfigError),
        ({"location": 5}, TypeError),
        ({"location": "s3://bucket/path?region=eu-west-1"}, ConfigError),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Snapshots(**{"location": "x", **given})
