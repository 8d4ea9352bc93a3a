"""Marks of a window or session store over a store without marks: pairs in its data, after all segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast, overload

from stores.contract.reading import Answer, of_one_moment
from stores.interface import KeyValueIterator, KeyValueStore, KeyValueView, Position, TopicPartition
from stores.records.record_kind import RECORDS
from stores.records.staging import RecordStaging

_BEHIND_ALL = b"\xff" * 8
"""No segment has this number."""


class SegmentMarks(Protocol):
    """A reader of marks."""

    def mark(self, name: str, /) -> bytes | None:
        """Return the value of the mark, None if it is not set."""

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer], /) -> Answer:
        """Return what ``KeyValueView.with_mark`` returns."""


class DataMarks:
    """A reader of marks that are pairs of a store."""

    def __init__(self, store: KeyValueStore) -> None:
        self._get = store.get

    def mark(self, name: str) -> bytes | None:
        """Return the value of the mark, None if it is not set."""
        return self._get(pair_key(name))

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        """Return what ``StateStore.with_mark`` returns."""
        return read(self.mark(name))


class ViewMarks:
    """A reader of the marks of a view, wherever its store has them: a store that keeps marks has a description there.

    Nothing is read in advance: the view may have a position bound that its store has not reached yet.
    """

    def __init__(self, view: KeyValueView) -> None:
        self._view = view
        self._in_data: bool | None = None

    def mark(self, name: str) -> bytes | None:
        """Return the value of the mark, None if it is not set."""
        if self._in_data is None:
            self._in_data = self._view.mark(RECORDS) is None
        return self._view.get(pair_key(name)) if self._in_data else self._view.mark(name)

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        """Return what ``KeyValueView.with_mark`` returns."""
        if self._in_data is None:
            self.mark(name)
        return of_one_moment(lambda: self.mark(name), read) if self._in_data else self._view.with_mark(name, read)

    def at_one_moment(self, name: str, read: Callable[[bytes | None, KeyValueView], Answer]) -> Answer:
        """Return what ``KeyValueView.at_one_moment`` returns."""
        if self._in_data is None:
            self.mark(name)
        if self._in_data:
            return of_one_moment(lambda: self.mark(name), lambda mark: read(mark, self._view))
        return self._view.at_one_moment(name, read)


class MarkedStore:
    """The part of a store that ``RecordKind.prepare`` uses, with marks that are pairs."""

    keeps_marks = True

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.name, self.mark = store.name, DataMarks(store).mark

    def all(self) -> KeyValueIterator:
        return self._store.all()

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._store.range(start, end)

    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        self._store.restore([*pairs, *pairs_of(marks or {})], changelog_offsets, position)


def pair_key(name: str) -> bytes:
    """Return the key of the pair for the mark ``name``."""
    return _BEHIND_ALL + name.encode("ascii")


def pairs_of(marks: Mapping[str, bytes | None]) -> list[tuple[bytes, bytes | None]]:
    """Return the pairs for ``marks``."""
    return [(pair_key(name), value) for name, value in marks.items()]


def preparable(store: KeyValueStore) -> KeyValueStore:
    """Return ``store`` if it keeps marks, else an adapter that keeps them as pairs."""
    return store if store.keeps_marks else cast(Any, MarkedStore(store))


@overload
def marks_of(source: KeyValueView) -> ViewMarks: ...


@overload
def marks_of(source: KeyValueStore | KeyValueView) -> SegmentMarks: ...


def marks_of(source: KeyValueStore | KeyValueView) -> SegmentMarks:
    """Return the reader of the marks of a prepared store, or of a view of one."""
    if isinstance(source, KeyValueStore):
        return source if source.keeps_marks else DataMarks(source)
    return ViewMarks(source)


def mark_setter(staging: RecordStaging) -> Callable[[str, bytes | None], None]:
    """Return the function that stages a mark."""
    if staging.store.keeps_marks:
        return staging.store.set_mark
    return lambda name, value: staging.put_unlogged(pair_key(name), value)
