"""A model of window and session stores in plain dicts: the oracle of their tests, and the run of a store beside it.

The model shares no code with ``stores``, and sorts everything at every question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from stores import IsolationLevel
from stores.records import RecordKind, ValueAndTimestamp, ValueTimestampHeaders
from stores.tests.conformance.cases import Case
from stores.tests.quick_folder import QUICK_FOLDER

RETENTION, SEGMENT = 25, 10
KEYS = st.sampled_from(
    [b"", b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"a\0\xff", b"a\0\0", b"ab", b"\xff", b"\xff\xff"]
)
"""Keys that are prefixes of each other, with the bytes that a longer key is made of."""
QUERIES = st.tuples(KEYS, KEYS, st.integers(0, 80), st.integers(0, 80))
Found = list[tuple[tuple[bytes, int, int], Any]]
"""((key, start, end), value)."""


class SegmentedModel:
    """Records with a time, of which those live that are younger than a retention."""

    def __init__(self, retention: int) -> None:
        self.retention = retention
        self.stream_time = -1
        self.late = 0
        self.records: dict[tuple[bytes, int, int], list[Any]] = {}
        self.committed: tuple[int, dict[tuple[bytes, int, int], list[Any]]] = (-1, {})

    def take(self, time: int) -> bool:
        """Return True if a record of this time is taken, which may advance the stream time."""
        if time <= self.stream_time - self.retention:
            self.late += 1
            return False
        self.stream_time = max(self.stream_time, time)
        return True

    def commit(self) -> None:
        """Keep everything."""
        self.committed = self.stream_time, {record: list(values) for record, values in self.records.items()}

    def rollback(self) -> None:
        """Forget what was put since the last commit."""
        self.stream_time = self.committed[0]
        self.records = {record: list(values) for record, values in self.committed[1].items()}

    def is_live(self, time: int) -> bool:
        """Return True if records of this time are seen."""
        return time > self.stream_time - self.retention


def put_and_shown(how: str, value: bytes | None, number: int) -> tuple[tuple[Any, ...], Any]:
    """Return the last arguments of a put, and what a store that keeps them in this way then shows."""
    if how == "headers":
        headers = (("number", b"%d" % number), ("none", None))[: number % 3]
        return (number, headers), None if value is None else ValueTimestampHeaders(value, number, headers)
    is_timed = how == "timestamped" and value is not None
    return (number,), ValueAndTimestamp(value, number) if is_timed else value


class WindowModel(SegmentedModel):
    """Windows of one size."""

    def __init__(self, size: int, retention: int, *, duplicates: bool) -> None:
        super().__init__(retention)
        self.size, self.duplicates = size, duplicates

    def put(self, key: bytes, start: int, value: Any) -> None:
        """Put one value; None deletes."""
        if value is None and self.duplicates:
            return
        if self.take(start):
            window = (key, start, start + self.size)
            if value is None:
                self.records.pop(window, None)
            elif self.duplicates:
                self.records.setdefault(window, []).append(value)
            else:
                self.records[window] = [value]

    def one(self, key: bytes, start: int) -> Any:
        """The value that was written last, or None."""
        window = (key, start, start + self.size)
        return self.records[window][-1] if window in self.records and self.is_live(start) else None

    def by_key(self, wanted: Callable[[bytes, int], bool] = lambda key, start: True) -> Found:
        """Return the wanted visible records, by key, then by time."""
        return [
            (window, value)
            for window in sorted(self.records)
            if self.is_live(window[1]) and wanted(window[0], window[1])
            for value in self.records[window]
        ]

    def by_time(self, wanted: Callable[[bytes, int], bool] = lambda key, start: True) -> Found:
        """Return the wanted visible records, by time, then by key."""
        # Sorting keeps the order of what is equal.
        return sorted(self.by_key(wanted), key=lambda found: (found[0][1], found[0][0]))


class SessionModel(SegmentedModel):
    """Sessions."""

    def put(self, key: bytes, start: int, end: int, value: Any) -> None:
        """Put one aggregate; None deletes."""
        if self.take(end):
            if value is None:
                self.records.pop((key, start, end), None)
            else:
                self.records[(key, start, end)] = [value]

    def found(self, wanted: Callable[[bytes, int, int], bool] = lambda key, start, end: True) -> Found:
        """Return the wanted visible sessions, by key, then by end, then by start."""
        return [
            (session, self.records[session][0])
            for session in sorted(self.records, key=lambda session: (session[0], session[2], session[1]))
            if self.is_live(session[2]) and wanted(*session)
        ]


def steps_of(puts: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return lists of steps: three of four are of ``puts``, tuples that begin with "put"."""
    others = st.tuples(st.sampled_from(["commit", "rollback", "reopen", "hold"]))
    return st.lists(puts | puts | puts | others, min_size=5, max_size=40)


def run_beside_model(
    case: Case,
    kind: RecordKind,
    model: SegmentedModel,
    steps: list[Any],
    *,
    put: Callable[..., None],
    ask_all: Callable[[Any], Iterator[Any]],
    shown: Callable[[], Found],
    compare: Callable[[Any], None],
) -> None:
    """Do ``steps`` with a store and ``model``; they never differ. ``put`` gets the store, the step and its values.

    ``ask_all`` returns a scan of all records of a store, ``shown`` those of the model. At the end ``compare`` asks the
    store, and a view at each level, everything else.
    """
    iterators: list[tuple[Iterator[Any], list[Any]]] = []
    with TemporaryDirectory(dir=QUICK_FOLDER, ignore_cleanup_errors=True) as folder:
        store = kind.over(case.open(Path(folder) / "store"))
        try:
            for number, (step, *values) in enumerate(steps):
                if step == "put":
                    put(store, number, *values)
                elif step == "commit":
                    store.commit()
                    model.commit()
                elif step == "rollback" and store.store.transactional:
                    store.rollback()
                    model.rollback()
                elif step == "reopen" and store.store.persistent:
                    if not store.store.transactional:
                        store.commit()
                        model.commit()
                    model.rollback()
                    store.close()
                    iterators.clear()
                    store = kind.over(case.open(Path(folder) / "store"))
                elif step == "hold":
                    iterators.append((ask_all(store), shown()))
                assert list(ask_all(store)) == shown()
            compare(store)
            store.commit()
            model.commit()
            for level in IsolationLevel:
                compare(store.read_only(level))
            for scan, then in iterators:
                assert list(scan) == then
        finally:
            store.close()
