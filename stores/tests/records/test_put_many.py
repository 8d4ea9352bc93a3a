"""A ``put_many`` of windows or sessions leaves what a ``put`` of each leaves: records, marks, log, late records."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores import open_store
from stores.records import RecordKind, Windowed
from stores.tests.records.segmented import Logged, LoggingStaging, session, window

SEED = 28
KINDS = {
    "window": window(),
    "timestamped window": window(timestamped=True),
    "duplicates": window(retain_duplicates=True),
    "session": session(),
    "timestamped session": session(timestamped=True),
    "closing window": window(grace_ms=3, on_close=lambda closed, value, context: None),
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
    ]
    for form in ("one by one", "many"):
        log: list[Logged] = []
        with open_store("memory", tmp_path / form) as below:
            kind.prepare(below)
            store: Any = kind.staged(LoggingStaging(below, log))
            for at, batch in enumerate(batches):
                if kind.kind == "window":
                    pairs: Any = [((key, time), value) for key, time, value in batch]
                else:
                    pairs = [(Windowed(key, max(0, time - 3), time), value) for key, time, value in batch]
                stamps = None if at % 2 else list(range(len(pairs)))
                if form == "many":
                    store.put_many(pairs, stamps)
                for number, (place, value) in enumerate(pairs if form != "many" else ()):
                    arguments = (place[0], value, place[1]) if kind.kind == "window" else (place, value)
                    store.put(*arguments, None if stamps is None else stamps[number])
                store.delete_many([pairs[0][0]])
                store._before_commit()
                below.commit()
            marks = {name: below.mark(name) for name in kind.number_marks}
            left.append((list(below.all()), marks, log, store.late_total))
    assert left[0] == left[1]
    assert left[0][3] > 5
