"""Marks of a window or session store over a store that keeps none: pairs among its data, behind all segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from stores.contract.reading import Answer, of_one_moment
from stores.interface import KeyValueIterator, KeyValueStore, KeyValueView, Position, TopicPartition
from stores.records.record_kind import RECORDS
from stores.records.staging import Staging

_BEHIND_ALL = b"\xff" * 8
"""No segment has this number."""


class SegmentMarks(Protocol):
    """Marks that are read."""

    def mark(self, name: str, /) -> bytes | None:
        """The value of the mark, None where it is not set."""

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer], /) -> Answer:
        """As ``KeyValueView.with_mark``."""


class DataMarks:
    """Marks that are pairs of a store."""

    def __init__(self, store: KeyValueStore) -> None:
        self._get = store.get

    def mark(self, name: str) -> bytes | None:
        """The value of the mark, None where it is not set."""
        return self._get(pair_key(name))

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        """As ``StateStore.with_mark``."""
        return read(self.mark(name))


class ViewMarks:
    """Marks of a view, which does not say whether its store keeps marks: each that does has a description among them.

    Nothing is read before it is asked for: the view may have to be brought up to a bound first.
    """

    def __init__(self, view: KeyValueView) -> None:
        self._view = view
        self._in_data: bool | None = None

    def mark(self, name: str) -> bytes | None:
        """The value of the mark, None where it is not set."""
        if self._in_data is None:
            self._in_data = self._view.mark(RECORDS) is None
        return self._view.get(pair_key(name)) if self._in_data else self._view.mark(name)

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        """As ``KeyValueView.with_mark``."""
        if self._in_data is None:
            self.mark(name)
        return of_one_moment(lambda: self.mark(name), read) if self._in_data else self._view.with_mark(name, read)


class MarkedStore:
    """As much of a store as ``RecordKind.prepare`` asks for, with marks among its pairs."""

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
    """The key of the pair that is the mark ``name``."""
    return _BEHIND_ALL + name.encode("ascii")


def pairs_of(marks: Mapping[str, bytes | None]) -> list[tuple[bytes, bytes | None]]:
    """The pairs that are ``marks``."""
    return [(pair_key(name), value) for name, value in marks.items()]


def preparable(store: KeyValueStore) -> KeyValueStore:
    """``store``, or where it keeps no marks a stand-in that does."""
    return store if store.keeps_marks else cast(Any, MarkedStore(store))


def marks_of(source: KeyValueStore | KeyValueView) -> SegmentMarks:
    """The marks of a prepared store, or of a view of one."""
    if isinstance(source, KeyValueStore):
        return source if source.keeps_marks else DataMarks(source)
    return ViewMarks(source)


def mark_setter(staging: Staging) -> Callable[[str, bytes | None], None]:
    """The function that stages a mark."""
    if staging.store.keeps_marks:
        return staging.store.set_mark
    return lambda name, value: staging.put_unlogged(pair_key(name), value)
