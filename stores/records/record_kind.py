"""The description of a typed store, and what every typed store and view has in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Final

from stores.errors import StoreCorruptedError, StoreIncompatibleError
from stores.interface import (
    Closeable,
    IsolationLevel,
    KeyValueStore,
    KeyValueView,
    Position,
    PositionBound,
    TopicPartition,
)
from stores.metrics import StoreMetrics
from stores.records.converters import RecordConverter
from stores.records.staging import Staging, StoreStaging
from stores.strategies.refusals import note_refused

RECORDS: Final = "records"
"""The mark that holds a store's description."""

Description = Mapping[str, object]
"""The properties of a kind that determine its bytes in the store: text, numbers, bools or None, by name."""


class RecordKind(ABC):
    """Describes a typed store: which kind, its serdes, its sizes. Used alike by itself and in a task.

    All of a typed store lies in one bytes store: it has one commit, and one offset.
    """

    kind: ClassVar[str]
    """The kind's name, such as ``window``."""

    @abstractmethod
    def description(self) -> Description:
        """Return the properties kept in the store, besides ``kind``, which must be the same when it is opened again."""

    @abstractmethod
    def staged(self, staging: Staging) -> TypedStore:
        """The typed store over a staging whose store is prepared, as a task uses it."""

    @abstractmethod
    def view(self, view: KeyValueView) -> TypedView:
        """A read-only view for other threads, at the level of ``view`` and with its bound."""

    @abstractmethod
    def converter(self, store: KeyValueStore) -> RecordConverter:
        """A new converter for one restore of ``store``, which begins at the marks that it has."""

    @property
    def commits_stream_time(self) -> bool:
        """True if a task has to commit the stream time with the changelog, whose records do not always have it."""
        return False

    def expired_records(self, store: KeyValueStore) -> Callable[[bytes], bool] | None:
        """A function that returns True for a changelog key that is older than the retention of ``store`` now; None for
        a store without a retention."""
        return None

    def over(self, store: KeyValueStore) -> TypedStore:
        """The typed store over ``store``, which it closes: closing either closes both.

        Raises: as ``prepare``; ``store`` then stays open until it is closed, or its folder is opened again in this
        process.
        """
        return self.staged(self.taken(store))

    def taken(self, store: KeyValueStore) -> StoreStaging:
        """The staging of a typed store by itself over ``store``, which is prepared. Raises: as ``prepare``."""
        if not isinstance(store, KeyValueStore):
            raise TypeError(f"a typed store lies over a store of bytes, as of open_store, not {type(store).__name__}")
        try:
            self.prepare(store)
        except BaseException:
            note_refused(store)
            raise
        return StoreStaging(store)

    def prepare(self, store: KeyValueStore) -> None:
        """Write the description into ``store`` if that is empty, else check that it is of this kind.

        Nothing may be staged in an empty store. A store that keeps no marks is taken as it is.
        Raises: StoreIncompatibleError for a store of another kind or with another description, which is named; else
        as ``StateStore.restore``.
        """
        if not store.keeps_marks:
            return
        own = self._whole_description()
        kept = kept_description(store)
        if kept is None:
            if is_empty(store):
                write_description(store, own)
            else:
                self._prepare_plain(store)
        elif kept != own:
            self._prepare_other(store, kept)

    def _whole_description(self) -> dict[str, object]:
        return {"kind": self.kind, **self.description()}

    def _prepare_plain(self, store: KeyValueStore) -> None:
        """Take up a store with data and no description, which is one of plain bytes; refused unless a kind can."""
        raise StoreIncompatibleError(
            f"store {store.name!r} holds plain keys and values, and can't be opened as a {self.kind} store: open it "
            "without a description, as KeyValue, or choose another path"
        )

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Take up a store with another description; refused unless a kind can."""
        raise difference(store, kept, self._whole_description())


def kept_description(store: KeyValueStore) -> dict[str, object] | None:
    """The description in ``store``, None where it has none. Raises: StoreCorruptedError."""
    mark = store.mark(RECORDS)
    if mark is None:
        return None
    try:
        kept = json.loads(mark)
        if isinstance(kept, dict) and isinstance(kept.get("kind"), str):
            return kept
    except ValueError:
        pass
    raise StoreCorruptedError(
        f"the description of store {store.name!r} can't be read: wipe the store and restore it from its changelog"
    )


def check_untyped(store: KeyValueStore) -> None:
    """Check that ``store`` has plain keys and values, as a task without a description reads and logs them.

    Raises: StoreIncompatibleError for a store of a kind that keeps more than those; StoreCorruptedError.
    """
    kept = kept_description(store) if store.keeps_marks else None
    if kept is not None and kept["kind"] != "key-value":
        told = ", ".join(f"{name} {value!r}" for name, value in kept.items() if name != "kind")
        raise StoreIncompatibleError(
            f"store {store.name!r} was made as a {kept['kind']} store with {told}, which plain keys and values would "
            "damage: describe it in its configuration as records, or wipe it and restore it from its changelog"
        )


def write_description(
    store: KeyValueStore, description: Description, marks: Mapping[str, bytes | None] | None = None
) -> None:
    """Keep ``description`` in ``store`` at once, and with it ``marks``. Nothing may be staged."""
    store.restore([], {}, marks={**(marks or {}), RECORDS: encoded(description)})


def encoded(description: Description) -> bytes:
    """A description as its mark holds it."""
    return json.dumps(description, sort_keys=True, separators=(",", ":")).encode()


def difference(store: KeyValueStore, kept: Description, given: Description) -> StoreIncompatibleError:
    """The error that names every value in which two descriptions differ."""
    names = sorted({*kept, *given}, key=lambda name: (name != "kind", name))
    different = [name for name in names if kept.get(name) != given.get(name)]
    told = ", ".join(f"{name} {kept.get(name)!r} (given: {given.get(name)!r})" for name in different)
    return StoreIncompatibleError(
        f"store {store.name!r} was made with {told}: open it with what it was made with, or choose another path"
    )


def is_empty(store: KeyValueStore) -> bool:
    """Return True if nothing is committed or staged in ``store``. Reads one pair at most."""
    with store.all() as pairs:
        return next(iter(pairs), None) is None


class TypedView:
    """A typed store as other threads see it; it has no way to write. Raises: as ``KeyValueView``."""

    def __init__(self, view: KeyValueView) -> None:
        self._view = view

    @property
    def isolation_level(self) -> IsolationLevel:
        """The isolation level of the view."""
        return self._view.isolation_level

    def position(self) -> Position:
        """As ``KeyValueView.position``."""
        return self._view.position()


class TypedStore(Closeable):
    """A typed store as its writer sees it. In a task commit, rollback and close raise StoreError: they are the
    task's."""

    def __init__(self, kind: RecordKind, staging: Staging) -> None:
        self.kind = kind
        """The description."""
        self.store = staging.store
        """The bytes store below. Writing to it passes by all that this one promises."""
        self._staging = staging

    @property
    def name(self) -> str:
        """The store's name."""
        return self.store.name

    @property
    def is_open(self) -> bool:
        """False from the first ``close`` on, of this store or the one below."""
        return self.store.is_open

    @property
    def late_total(self) -> int:
        """The number of records dropped since the store was opened because they were older than its retention."""
        return 0

    @property
    def metrics(self) -> StoreMetrics:
        """As ``StateStore.metrics``, with the records that were dropped."""
        return replace(self.store.metrics, late_total=self.late_total)

    def before_commit(self) -> None:
        """Stage what a commit carries beside the writes: called by ``commit``, and by a task before each commit."""

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        """As ``StateStore.commit``."""
        if not self._staging.logs:
            self.before_commit()
        self.store.commit(changelog_offsets)

    def rollback(self) -> None:
        """As ``StateStore.rollback``."""
        self.store.rollback()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """As ``StateStore.committed_offset``."""
        return self.store.committed_offset(partition)

    def position(self, isolation_level: IsolationLevel) -> Position:
        """As ``StateStore.position``."""
        return self.store.position(isolation_level)

    def read_only(self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None) -> TypedView:
        """A view for other threads, as of ``KeyValueStore.read_only``: closed with the store, it never writes."""
        return self.kind.view(self.store.read_only(isolation_level, bound))

    def close(self) -> None:
        """Close this store and the one below; never commits. May be called more than once."""
        self.store.close()
