"""Refusals of windows and sessions that are reported when they close: descriptions, merges, reports without end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores import ConfigError, StoreError
from stores.changelog import Changelog, Record
from stores.records import INT64, STR, RecordKind, Session, Window, Windowed
from stores.registry import open_store
from stores.spark.arguments import configs_of
from stores.tasks import StoreConfig, TaskContext
from stores.testing import AppDriver
from stores.tests.tasks.setup import AT_LEAST_ONCE
from stores.tests.tasks.stores.reports import feed, outputs
from stores.tests.tasks.stores.test_closing import GAP_MS, KINDS, RETENTION_MS, SHARED, SIZE_MS, closing_task, emit
from stores.worker import Processor

ROUNDS = 6


@pytest.mark.parametrize("kind", ["window", "session"])
@pytest.mark.parametrize("calls", [ROUNDS, ROUNDS + 1])
def test_writes_of_on_close_that_close_windows_again_and_again_are_an_error(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, kind: str, calls: int
) -> None:
    monkeypatch.setattr("stores.tasks.context.REPORT_ROUNDS_MAX", ROUNDS)
    seen: list[int] = []

    def go_on(window: Windowed[bytes], value: Any, context: TaskContext) -> None:
        seen.append(window.start_ms)
        emit(window, value, context)
        later_ms = 100 * (1 + len(seen))
        if len(seen) < calls and kind == "window":
            context.store("s").put(window.key, 1, later_ms)
        elif len(seen) < calls:
            context.store("s").put(Windowed(window.key, later_ms, later_ms), 1)

    described: Any = KINDS[kind]
    feed(log, [(b"a", 0), (b"a", 50)])
    with closing_task(tmp_path, log, replace(described, retention_ms=1_000_000, on_close=go_on)) as task:
        if calls > ROUNDS:
            with pytest.raises(StoreError, match="store 's'"):
                task.run(commit=True)
        else:
            task.run(commit=True)
    assert seen == [0, 50, 200, 300, 400, 500][:ROUNDS]
    assert len(outputs(log)) == (ROUNDS if calls == ROUNDS else 0)


def test_a_merge_by_another_gap_than_the_one_that_closes_is_refused() -> None:
    def ignore(window: Windowed[str], value: int, context: TaskContext) -> None:
        """Nothing closes here."""

    kind = Session(key=STR, value=INT64, retention_ms=100, gap_ms=GAP_MS, on_close=ignore, name="s")

    def merge(record: Record, context: TaskContext) -> None:
        context.store(kind).merge("a", record.timestamp_ms, int(record.value or b""), lambda values: sum(values) + 1)

    with AppDriver(Processor(["in"], merge, [kind], on_error="skip")) as driver:
        for gap_ms in (b"5", b"4", b"6", b"5"):
            driver.pipe("in", b"", gap_ms, 1)
        assert list(driver.store(kind).fetch("a")) == [(Windowed("a", 1, 1), 2)]
    with AppDriver(Processor(["in"], merge, [kind])) as driver, pytest.raises(ValueError, match=r"of 5,.* gap_ms 7:"):
        driver.pipe("in", b"", b"7", 1)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_outside_of_a_task_under_exactly_once_on_close_is_refused(
    tmp_path: Path, log: Changelog, kind: RecordKind
) -> None:
    with open_store("memory", "unused") as store, pytest.raises(ConfigError):
        kind.over(store)
    with pytest.raises(ConfigError):
        closing_task(tmp_path, log, kind, guarantee=AT_LEAST_ONCE)
    with pytest.raises(ConfigError):
        configs_of({"s": StoreConfig("lmdb", records=kind)}, times=False)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"on_close": 1}, TypeError),
        ({"on_close": lambda window, value: None}, TypeError),
        ({"on_close": emit, "grace_ms": -1}, ValueError),
        ({"on_close": emit, "grace_ms": "1"}, TypeError),
        ({"on_close": emit, "grace_ms": RETENTION_MS}, ValueError),
        ({"grace_ms": 1}, ValueError),
    ],
)
def test_a_description_that_can_t_close_is_refused(arguments: Mapping[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Window(size_ms=SIZE_MS, **SHARED, **arguments)
    with pytest.raises(error):
        Session(gap_ms=GAP_MS, **SHARED, **arguments)


def test_what_has_no_final_value_or_no_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="retain_duplicates"):
        Window(size_ms=SIZE_MS, retain_duplicates=True, on_close=emit, **SHARED)
    for arguments in ({"on_close": emit}, {"gap_ms": 1}):
        with pytest.raises(ValueError, match="gap_ms"):
            Session(**SHARED, **arguments)
