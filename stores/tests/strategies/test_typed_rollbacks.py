"""Dirty readers of typed stores beside a rollback: they see the data and the stream time of one state.

A rollback drops the data first, and then the marks. In between, the stream time of the dropped records hides others.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from stores import IsolationLevel, open_store
from stores.records import (
    BYTES,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
    Windowed,
)
from stores.registry import backends
from stores.strategies.store import Store

WAIT_S = 0.05
"""The seconds to wait for a reader in the middle of a rollback; one that is blocked answers afterwards."""
COMPARES_S = 0.5
"""The seconds in which a reader compares; one that sees the rollback waits for its end instead."""
LONG_S = 30
KINDS: dict[str, tuple[Any, Callable[[Any, int], None], Callable[[Any], list[int]]]] = {
    "ttl": (
        TimestampedKeyValue(BYTES, BYTES, ttl_ms=100),
        lambda store, time_ms: store.put(b"%d" % time_ms, b"v", time_ms),
        lambda view: [value.timestamp_ms for _, value in view.all()],
    ),
    "headers": (
        TimestampedKeyValueWithHeaders(BYTES, BYTES, ttl_ms=100),
        lambda store, time_ms: store.put(b"%d" % time_ms, b"v", time_ms, (("time", b"%d" % time_ms),)),
        lambda view: [int(value.headers[0][1]) for _, value in view.all()],
    ),
    "versioned": (
        Versioned(BYTES, BYTES, history_retention_ms=100),
        lambda store, time_ms: store.put(b"k", b"v", time_ms),
        lambda view: [record.timestamp_ms for record in view.get_versions(b"k", reverse=True)][:1],
    ),
    "window": (
        Window(BYTES, BYTES, size_ms=5, retention_ms=100, segment_ms=20),
        lambda store, time_ms: store.put(b"k", b"v", time_ms),
        lambda view: [start for start, _ in view.fetch(b"k", 0, 1_000)],
    ),
    "window with headers": (
        Window(BYTES, BYTES, size_ms=5, retention_ms=100, segment_ms=20, headers=True),
        lambda store, time_ms: store.put(b"k", b"v", time_ms, time_ms, (("time", b"%d" % time_ms),)),
        lambda view: [int(value.headers[0][1]) for _, value in view.fetch(b"k", 0, 1_000)],
    ),
    "session": (
        Session(BYTES, BYTES, retention_ms=100, segment_ms=20),
        lambda store, time_ms: store.put(Windowed(b"k", time_ms, time_ms), b"v"),
        lambda view: [session.end_ms for session, _ in view.fetch(b"k")],
    ),
}
COMMITTED, STAGED = [10], [200]
TRANSACTIONAL = [name for name, backend in backends().items() if backend.load_strategy().transactional]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", TRANSACTIONAL)
def test_a_reader_that_begins_within_a_rollback_sees_one_state(
    path: Path, backend: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, put, look = KINDS[kind]
    with described.over(open_store(backend, path)) as store, ThreadPoolExecutor(2) as pool:
        put(store, 10)
        store.commit()
        put(store, 200)
        view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        assert look(view) == STAGED
        rollback, seen = store.store.staging.rollback, []

        def looked_at() -> None:
            for step in (rollback, lambda: None):
                step()
                seen.append(pool.submit(look, view))
                wait(seen, WAIT_S)

        monkeypatch.setattr(store.store.staging, "rollback", looked_at)
        store.rollback()
        assert {tuple(future.result(LONG_S)) for future in seen} <= {tuple(COMMITTED), tuple(STAGED)}
        assert look(view) == COMMITTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_a_rollback_overtakes_sees_one_state(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the stream time of before, and its scan begins when the data is gone and the stream time is not."""
    described, put, look = KINDS[kind]
    reading, gone, compared = Event(), Event(), Event()
    with described.over(open_store("memory-indexed-batch", path)) as store, ThreadPoolExecutor(1) as pool:
        put(store, 10)
        store.commit()
        put(store, 200)
        view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        mark_at = Store._mark_at

        def marked(*given: Any) -> bytes | None:
            mark = mark_at(*given)
            if gone.is_set():
                # The reader has compared the stream time of before and after its scan.
                compared.set()
            return mark

        def held(scan: Callable[..., Any]) -> Callable[..., Any]:
            def wait_first(*given: Any, **named: Any) -> Any:
                reading.set()
                assert gone.wait(LONG_S)
                return scan(*given, **named)

            return wait_first

        monkeypatch.setattr(Store, "_mark_at", marked)
        for name in ("_scan", "_scan_many"):
            monkeypatch.setattr(Store, name, held(getattr(Store, name)))
        rollback = store.store.staging.rollback

        def slow() -> None:
            rollback()
            gone.set()
            compared.wait(COMPARES_S)

        monkeypatch.setattr(store.store.staging, "rollback", slow)
        answer = pool.submit(look, view)
        assert reading.wait(LONG_S)
        store.rollback()
        assert answer.result(LONG_S) == COMMITTED
