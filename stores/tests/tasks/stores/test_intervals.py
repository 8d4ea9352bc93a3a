"""Bounds of time in the reads of window and session stores: below 0 they are cut, and an empty interval has nothing.

One table for every way to ask: the store itself, its views and snapshots, a task's function, a proxy of a store that an
upgrade may replace, and queries over HTTP. Source: Kafka Streams, ``WindowStore.fetch``, ``SessionStore.findSessions``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, open_store
from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.records import INT64, STR, Session, Window, Windowed
from stores.settings import Upgrade, UpgradeMode
from stores.tasks import TaskContext
from stores.tests.tasks.setup import INDEXED, feed, single
from stores.tests.worker.queries.stage import Stage

STARTS = (0, 4, 9)
SESSIONS = ((0, 2), (4, 6), (20, 30))
NOTHING: list[int] = []
FAR = -(1 << 63)
INTERVALS = [
    ((-5, 4), [0, 4]),
    ((FAR, 100), [0, 4, 9]),
    ((-3, 0), [0]),
    ((5, 4), NOTHING),
    ((4, -1), NOTHING),
    ((-9, -5), NOTHING),
    ((-5, -9), NOTHING),
    ((10, FAR), NOTHING),
]
"""The first and the last start, and the windows in between."""
FOUND = [
    ((-5, 5), [0, 4]),
    ((FAR, 100), [0, 4, 20]),
    ((3, 100), [4, 20]),
    ((3 - 10, 3 + 10), [0, 4]),
    ((6, 4), [4]),
    ((100, 0), NOTHING),
    ((0, -1), NOTHING),
    ((FAR, FAR), NOTHING),
]
"""The earliest end and the latest start, and the starts of the sessions found."""


def put_windows(store: Any) -> None:
    for start in STARTS:
        store.put("k", start, start)


def put_sessions(store: Any) -> None:
    for start, end in SESSIONS:
        store.put(Windowed("k", start, end), start)


def check_windows(reads: Any) -> None:
    for bounds, starts in INTERVALS:
        for reverse, prefix in ((False, ""), (True, "backward_")):
            expected = starts[::-1] if reverse else starts
            assert [start for start, _ in getattr(reads, f"{prefix}fetch")("k", *bounds)] == expected, bounds
            ranged = getattr(reads, f"{prefix}fetch_range")("a", None, *bounds)
            assert [window.start_ms for window, _ in ranged] == expected, bounds
            every = getattr(reads, f"{prefix}fetch_all")(*bounds)
            assert [window.start_ms for window, _ in every] == expected, bounds
    assert [reads.fetch_one("k", start) for start in (-1, FAR, 4)] == [None, None, 4]


def check_sessions(reads: Any) -> None:
    for bounds, starts in FOUND:
        for reverse, prefix in ((False, ""), (True, "backward_")):
            expected = starts[::-1] if reverse else starts
            one = getattr(reads, f"{prefix}find_sessions")("k", *bounds)
            assert [session.start_ms for session, _ in one] == expected, bounds
            ranged = getattr(reads, f"{prefix}find_sessions_range")("a", None, *bounds)
            assert [session.start_ms for session, _ in ranged] == expected, bounds
    for absent in ((-1, 2), (FAR, 2), (6, 4), (2, -1), (-3, -1)):
        assert reads.fetch_session("k", *absent) is None
    assert reads.fetch_session("k", 4, 6) == 4


Case = tuple[Any, Callable[[Any], None], Callable[[Any], None]]
KINDS = pytest.mark.parametrize(
    "case",
    [
        (Window(STR, INT64, size_ms=5, retention_ms=1_000), put_windows, check_windows),
        (Session(STR, INT64, retention_ms=1_000), put_sessions, check_sessions),
    ],
    ids=["window", "session"],
)


@KINDS
def test_a_store_and_its_views_cut_bounds_below_0_and_find_nothing_in_an_empty_interval(path: Path, case: Case) -> None:
    kind, put, check = case
    with kind.over(open_store(INDEXED, path)) as store:
        # Nothing has a time yet: the stream time is below 0.
        assert list((store.find_sessions if put is put_sessions else store.fetch)("k", -5, -3)) == []
        put(store)
        check(store)
        check(store.read_only(IsolationLevel.READ_UNCOMMITTED))
        store.commit()
        view = store.read_only(IsolationLevel.READ_COMMITTED)
        check(view)
        with view.snapshot() as snapshot:
            check(snapshot)


@KINDS
@pytest.mark.parametrize("proxied", [False, True])
def test_a_task_and_its_proxies_do_so_too(tmp_path: Path, case: Case, proxied: bool) -> None:
    kind, put, check = case
    checked: list[int] = []

    def process(record: Record, context: TaskContext) -> None:
        put(context.store("s"))
        check(context.store("s"))
        checked.append(record.offset)

    upgrade = Upgrade(1, no_records, online=True, records=kind, proxy=lambda store: store, swap_running=True)
    mode = UpgradeMode.IN_PLACE if proxied else None
    config = StoreConfig(INDEXED, records=kind, upgrade=upgrade if proxied else None, upgrade_mode=mode)
    with (
        MemoryChangelog() as log,
        closing(single(tmp_path, log, process, stores={"s": config})) as task,
    ):
        feed(log, [1])
        task.open()
        task.run(commit=True)
        assert checked == [0]
        for level in IsolationLevel:
            check(task.store("s", level))


def no_records(record: Record, version: int) -> list[tuple[bytes, bytes | None]]:
    return [(record.key or b"", record.value)]


def test_queries_over_http_do_so_too(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.process(lambda context: put_windows(context.store("clicks")))
        stage.process(lambda context: put_sessions(context.store("trips")))
        stage.task.commit()
        for level in IsolationLevel:
            for (first, last), starts in INTERVALS:
                asked = stage.ask("clicks/range", start_ms=first, end_ms=last, isolation_level=level)
                assert [record["window_start_ms"] for record in asked.body["records"]] == starts
            for (end, start), starts in FOUND:
                asked = stage.ask("trips/range", earliest_end_ms=end, latest_start_ms=start, isolation_level=level)
                assert [record["session_start_ms"] for record in asked.body["records"]] == starts
        for query in ({"window_start_ms": -1}, {"window_start_ms": -(1 << 63)}):
            assert stage.ask("clicks/get", key="k", **query).body["value"] is None
        for start, end in ((-1, 2), (6, 4), (2, -1)):
            assert stage.ask("trips/get", key="k", start_ms=start, end_ms=end).body["value"] is None
