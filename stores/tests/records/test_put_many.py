"""A ``put_many`` of windows or sessions leaves what a ``put`` of each leaves: records, marks, log, late records."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores import open_store
from stores.records import INT64, STR, RecordKind, TimestampedKeyValue, Versioned, VersionedWithHeaders, Windowed
from stores.records.expiry import STREAM_TIME
from stores.tests.records.segmented import Logged, LoggingStaging, session, window

SEED = 28
HEADERS = (("trace", b"\x00\xff"), ("none", None))
KINDS = {
    "window": window(),
    "timestamped window": window(timestamped=True),
    "window with headers": window(headers=True),
    "duplicates": window(retain_duplicates=True),
    "duplicates with headers": window(retain_duplicates=True, headers=True),
    "session": session(),
    "timestamped session": session(timestamped=True),
    "session with headers": session(headers=True),
    "closing window": window(grace_ms=3, on_close=lambda closed, value, context: None),
    "closing window with headers": window(grace_ms=3, headers=True, on_close=lambda closed, value, context: None),
    "closing session": session(gap_ms=4, on_close=lambda closed, value, context: None),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_many_records_leave_what_one_after_the_other_leaves(kind: RecordKind, tmp_path: Path) -> None:
    """Some come too late for the retention or a closed window, or delete what an earlier one of the list has put."""
    random = Random(SEED)
    left: list[Any] = []
    batches = []
    for at in range(8):
        times = [max(0, at * 12 + random.randint(-45, 14)) for _ in range(25)]
        batches.append([(random.choice("abc"), time, random.choice([None, 1, 2, 3])) for time in times])
    batches += [
        [("c", 200, 1), ("a", 200, 1)],
        [("c", 200, 1), ("a", 200, None), ("a", 200, 2), ("b", 200, 1), ("b", 200, None)],
        [("a", time, 1) for time in range(201, 204)],
    ]
    for form in ("one by one", "many"):
        log: list[Logged] = []
        with open_store("memory", tmp_path / form) as below:
            kind.prepare(below)
            store: Any = kind.staged(LoggingStaging(below, log))
            after_each: list[Any] = []
            for at, batch in enumerate(batches):
                if kind.kind == "window":
                    pairs: Any = [((key, time), value) for key, time, value in batch]
                else:
                    pairs = [(Windowed(key, max(0, time - 3), time), value) for key, time, value in batch]
                stamps = None if at % 2 else list(range(len(pairs)))
                # None to two headers.
                headers = [HEADERS[: number % 3] for number in range(len(pairs))] if kind.log_parts and at % 3 else None
                if form == "many":
                    store.put_many(pairs, stamps, headers)
                for number, (place, value) in enumerate(pairs if form != "many" else ()):
                    arguments = (place[0], value, place[1]) if kind.kind == "window" else (place, value)
                    more = () if headers is None else (headers[number],)
                    store.put(*arguments, None if stamps is None else stamps[number], *more)
                store.delete_many([pairs[0][0]])
                store._before_commit()
                below.commit()
                # In the end all segments but the last one are dropped.
                after_each.append(
                    (list(below.all()), {name: below.mark(name) for name in (STREAM_TIME, *kind.number_marks)})
                )
            left.append((after_each, log, store.late_total))
    assert left[0] == left[1]
    assert left[0][2] > 5
    assert left[0][0][-1][1][STREAM_TIME] == (203).to_bytes(8, "big")


@pytest.mark.parametrize("described", [Versioned(STR, INT64, 30), VersionedWithHeaders(STR, INT64, 30)])
def test_many_versions_leave_what_one_after_the_other_leaves(tmp_path: Path, described: Any) -> None:
    """Some come late or too late, or have the key of an earlier one of the list, or its time as well."""
    random = Random(SEED)
    kind, has_headers = described, described.log_parts is not None
    left: list[Any] = []
    batches = [
        [
            (random.choice("abc"), random.choice([None, 1, 2, 3]), max(0, at * 12 + random.randint(-45, 14)))
            for _ in range(25)
        ]
        for at in range(8)
    ]
    for form in ("one by one", "many", "all"):
        log: list[Logged] = []
        with open_store("memory", tmp_path / form) as below:
            kind.prepare(below)
            store = kind.staged(LoggingStaging(below, log))
            for batch in batches:
                keys, values, times = map(list, zip(*batch, strict=True))
                headers = [HEADERS[: number % 3] for number in range(len(batch))]
                if form == "many":
                    store.put_many(keys, values, times, *([headers] if has_headers else ()))
                    store.delete_many(keys[:2], times[:2])
                elif form == "all":
                    store.put_all(
                        [(*put, each) for put, each in zip(batch, headers, strict=True)] if has_headers else batch
                    )
                    store.put_all([(key, None, time) for key, time in zip(keys[:2], times[:2], strict=True)])
                else:
                    for put, each in zip(batch, headers, strict=True):
                        store.put(*put, *([each] if has_headers else ()))
                    for key, time in zip(keys[:2], times[:2], strict=True):
                        store.delete(key, time)
                store._before_commit()
                below.commit()
            left.append((list(below.all()), below.mark(STREAM_TIME), log, store.late_total))
    assert left[0] == left[1] == left[2]
    assert left[0][3] > 5


@pytest.mark.parametrize("kind", [TimestampedKeyValue(STR, INT64), Versioned(STR, INT64, 10)])
@pytest.mark.parametrize("records", [5, {"k": 1}, {"abc": 1}, "k", [("k", 1)], [("k", 1, 2), ("k", 1, 2, 3)], [7]])
def test_what_are_no_records_with_times_is_refused_with_the_form_of_them(kind: Any, records: Any) -> None:
    with kind.over(open_store("memory", "unused")) as store:
        with pytest.raises(TypeError, match=r"\[\(key, value, timestamp_ms\)\]"):
            store.put_all(records)
        assert store.get("k") is None
        store.put_all(iter([("k", 1, 2)]))
        assert store.get("k") == (1, 2)
