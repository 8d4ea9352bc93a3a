"""The base classes of all descriptions, typed stores, typed views and their iterators, and of what restores a store."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NoReturn, Protocol, Self, TypeVar, cast

from stores.contract.arguments import TIME_BOUND_MS, Headers, OnlyReads, check_type
from stores.errors import ConfigError, StoreClosedError, StoreCorruptedError, StoreIncompatibleError, damaged
from stores.files.plain_files import parsed_json
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
from stores.records.segments import RecordRetention
from stores.records.values import TIME_BYTES, RecordStaging, StoreStaging
from stores.strategies.access import note_refused

T = TypeVar("T")

RECORDS: Final = "records"
"""The mark that holds a store's description."""

REBUILDING: Final = (
    "In a task, StoreConfig(upgrade=Upgrade(1, convert), upgrade_mode='in_place') builds the store again from its "
    "changelog: see stores.tasks.Upgrade. Otherwise choose another path"
)
"""The advice for a store that can't be opened with another description."""

Description = Mapping[str, object]
"""The properties of a kind that determine its bytes in the store: text, numbers, bools or None, by name."""


@dataclass(frozen=True)
class RecordKind(ABC):
    """The description of a typed store: its kind, serdes and sizes. It works with and without a task.

    A typed store keeps everything in one store of bytes, with one commit and one offset. A description with a ``name``
    is also the handle of the store with that name, such as in ``TaskContext.store``. The name is not kept in the store.
    """

    name: str | None = field(default=None, kw_only=True, repr=False)
    """The name of the store; None if it is not used as a handle."""

    kind: ClassVar[str]
    """The kind's name, such as ``window``."""
    reads_plain: ClassVar[bool] = False
    """True if a store of plain keys and values can be read as this kind."""
    number_marks: ClassVar[Sequence[str]] = ()
    """The marks that are numbers of 8 bytes; their length is checked when the store is prepared."""

    def __post_init__(self) -> None:
        check_type(self.name, str | None, "the name of a description is a str or None")

    def __hash__(self) -> int:
        # Serdes may have no hash, and a function looks up its stores with each record. The hash of the name alone would
        # collide with the name, which is in the same table.
        return ~hash(self.name)

    @abstractmethod
    def description(self) -> Description:
        """Return the properties kept in the store, besides ``kind``, which must be the same when it is opened again."""

    @abstractmethod
    def staged(self, staging: RecordStaging) -> TypedStore:
        """Return the typed store over ``staging``, whose store is prepared. For tasks."""

    @abstractmethod
    def view(self, view: KeyValueView) -> TypedView:
        """Return a typed view with the isolation level and the bound of ``view``, for any thread."""

    @abstractmethod
    def converter(self, store: KeyValueStore) -> RecordConverter:
        """Return a converter for one restore of ``store``. It starts from the marks of the store."""

    @property
    def commits_stream_time(self) -> bool:
        """True if a task must commit the stream time with the changelog, because not every record contains it."""
        return False

    def marks_at(self, store: KeyValueStore, stream_time_ms: int) -> Mapping[str, bytes | None]:
        """Return the marks of ``store`` after a restore that ends at a committed stream time above its own."""
        return {}

    @property
    def needs_task(self) -> bool:
        """True if the store calls a function of its description, which gets the context of a task."""
        return False

    def expired_records(self, store: KeyValueStore) -> Callable[[bytes], bool] | None:
        """Return a function that returns True for a changelog key older than the present retention of ``store``.

        Return None for a store without retention.
        """
        return None

    @property
    def log_history_ms(self) -> int | None:
        """The time for which a restore needs changelog records that were followed by another one of their key.

        None if it needs the last record of each key only.
        """
        return None

    def needed_records(self, store: KeyValueStore) -> Callable[[bytes, int], bool] | None:
        """Return a function of the key and time of a changelog record that was followed by another one of its key.

        It returns True if a restore of ``store`` needs the record all the same. None with no ``log_history_ms``.
        """
        return None

    @property
    def log_parts(self) -> Callable[[bytes], tuple[bytes, Headers]] | None:
        """A function that returns the value and the headers of a changelog record by its ``StagedWrite.log_value``.

        None if that is the value, and the records have no headers.
        """
        return None

    @property
    def retention(self) -> RecordRetention | None:
        """The retention by stream time of all its records; None if some do not expire, or by a task's writes only."""
        return None

    def over(self, store: KeyValueStore) -> TypedStore:
        """Return the typed store over ``store``. Closing one of them closes both.

        Raises: as ``prepare``; ``store`` is then still open.
        """
        return self.staged(self.taken(store))

    def taken(self, store: KeyValueStore) -> StoreStaging:
        """Prepare ``store`` and return its staging, for use without a task.

        Raises: ConfigError if the description calls a function; as ``prepare``.
        """
        if not isinstance(store, KeyValueStore):
            raise TypeError(
                f"a typed store needs a store of bytes, such as one of open_store, not {type(store).__name__}"
            )
        if self.needs_task:
            raise ConfigError(
                f"the function of {self} gets the context of a task: give the description to a task, or leave the "
                "function out"
            )
        try:
            self.prepare(store)
        except BaseException:
            note_refused(store)
            raise
        return StoreStaging(store)

    def prepare(self, store: KeyValueStore) -> None:
        """Write the description into ``store`` if it is empty; else check that it has this description.

        Nothing may be staged in an empty store. A store that keeps no marks is not checked.
        Raises: StoreIncompatibleError for another kind or description, with the differences; else as
        ``StateStore.restore``; StoreCorruptedError for marks that can't be read.
        """
        if not store.keeps_marks:
            return
        own = self._whole_description()
        present = kept_description(store)
        if present is None:
            if is_empty(store):
                write_description(store, own)
            else:
                self._prepare_plain(store)
        elif present != own:
            self._prepare_other(store, present)
        for name in self.number_marks:
            mark = store.mark(name)
            if mark is not None and len(mark) != TIME_BYTES:
                raise damaged(f"the mark {name!r} of store {store.name!r} can't be read")

    def check_readable(self, name: str, mark: bytes | None) -> None:
        """Check that the store ``name`` with this mark of its description can be read as this kind.

        None is that of a store of plain bytes. Raises: StoreIncompatibleError; StoreCorruptedError.
        """
        if mark is not None:
            kept, own = described(mark, name), self._whole_description()
            if kept != own:
                raise StoreIncompatibleError(
                    f"store {name!r} was created with {_differences(kept, own)}: read it with the same values"
                )
        elif not self.reads_plain:
            raise StoreIncompatibleError(
                f"store {name!r} holds plain keys and values, and can't be read as a {self.kind} store: read it "
                "without a description, or as KeyValue"
            )

    def describes_same(self, other: RecordKind) -> bool:
        """Return whether both describe stores with the same bytes, retentions and sizes included."""
        return self is other or self._whole_description() == other._whole_description()

    def _whole_description(self) -> dict[str, object]:
        return {"kind": self.kind, **self.description()}

    def _prepare_plain(self, store: KeyValueStore) -> None:
        """Accept a store with data and without a description: one of plain bytes. Most kinds refuse it."""
        raise StoreIncompatibleError(
            f"store {store.name!r} holds plain keys and values, and can't be opened as a {self.kind} store: open it "
            "without a description, as KeyValue, or choose another path"
        )

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Accept a store with another description. Most kinds refuse it."""
        raise difference(store, kept, self._whole_description())


def kept_description(store: KeyValueStore) -> dict[str, object] | None:
    """Return the description in ``store``, None if it has none. Raises: StoreCorruptedError."""
    mark = store.mark(RECORDS)
    return None if mark is None else described(mark, store.name)


def described(mark: bytes, name: str) -> dict[str, object]:
    """Return the description in its mark, from the store ``name``. Raises: StoreCorruptedError."""
    with suppress(ValueError):
        description = parsed_json(mark)
        if isinstance(description, dict) and isinstance(description.get("kind"), str):
            return description
    raise unreadable(name)


def unreadable(name: str) -> StoreCorruptedError:
    """Return the error for a description that can't be read."""
    return damaged(f"the description of store {name!r} can't be read")


def check_untyped(store: KeyValueStore) -> None:
    """Check that ``store`` has plain keys and values. A task without a description reads and logs them as they are.

    Raises: StoreIncompatibleError for a kind of store that adds to keys or values; StoreCorruptedError.
    """
    description = kept_description(store) if store.keeps_marks else None
    if description is not None and description["kind"] != "key-value":
        properties = ", ".join(f"{name} {value!r}" for name, value in description.items() if name != "kind")
        raise StoreIncompatibleError(
            f"store {store.name!r} was created as a {description['kind']} store with {properties}, which plain "
            "keys and values would damage: give that kind in its configuration as records, or wipe it and restore it "
            "from its changelog"
        )


def write_description(
    store: KeyValueStore, description: Description, marks: Mapping[str, bytes | None] | None = None
) -> None:
    """Write ``description`` and ``marks`` into ``store`` immediately. Nothing may be staged."""
    store.restore([], {}, marks={**(marks or {}), RECORDS: encoded(description)})


def encoded(description: Description) -> bytes:
    """Return the bytes of a description's mark."""
    return json.dumps(description, sort_keys=True, separators=(",", ":")).encode()


def difference(store: KeyValueStore, kept: Description, given: Description) -> StoreIncompatibleError:
    """Return the error that names all differences of two descriptions."""
    return StoreIncompatibleError(
        f"store {store.name!r} was created with {_differences(kept, given)}: open it with the same values. {REBUILDING}"
    )


def _differences(kept: Description, given: Description) -> str:
    names = sorted({*kept, *given}, key=lambda name: (name != "kind", name))
    different = [name for name in names if kept.get(name) != given.get(name)]
    return ", ".join(f"{name} {kept.get(name)!r} (given: {given.get(name)!r})" for name in different)


def is_empty(store: KeyValueStore) -> bool:
    """Return True if nothing is committed or staged in ``store``. Reads at most one pair."""
    with store.all() as pairs:
        return next(iter(pairs), None) is None


class TypedView(OnlyReads, Closeable):
    """A read-only view of a typed store, for any thread. Raises: as ``KeyValueView``."""

    def __init__(self, view: KeyValueView, remake: Callable[[KeyValueView], TypedView]) -> None:
        """Make it. ``remake`` makes the same view of other data."""
        self._view, self._remake = view, remake

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._view!r}>"

    def snapshot(self) -> Self:
        """Return this view of the last commit, for several queries that fit each other. Close it.

        Use it in a ``with`` block: see ``KeyValueView.snapshot``.
        """
        return cast(Self, self._remake(self._view.snapshot()))

    def close(self) -> None:
        """Close a snapshot. No effect on any other view, which is closed with its store."""
        if isinstance(self._view, Closeable):
            self._view.close()

    @property
    def isolation_level(self) -> IsolationLevel:
        """The isolation level of the view."""
        return self._view.isolation_level

    def position(self) -> Position:
        """Return what ``KeyValueView.position`` returns."""
        return self._view.position()


class TypedStore(Closeable):
    """A typed store for its writing thread.

    In a task, ``commit``, ``rollback`` and ``close`` raise StoreError: the task calls them.
    """

    def __init__(self, kind: RecordKind, staging: RecordStaging) -> None:
        self.kind = kind
        """The description."""
        self.store = staging.store
        """The bytes store below. Writing to it bypasses this store's checks."""
        self._staging = staging

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.store!r}>"

    @property
    def name(self) -> str:
        """The store's name."""
        return self.store.name

    @property
    def is_open(self) -> bool:
        """False after the first ``close`` of this store or of the one below."""
        return self.store.is_open

    @property
    def late_total(self) -> int:
        """The number of records dropped since the store was opened because they were older than its retention."""
        return 0

    @property
    def _late_kept_total(self) -> int:
        """As ``late_total``, without the current record, which may be undone. It never falls. For any thread."""
        return self.late_total

    @property
    def metrics(self) -> StoreMetrics:
        """The metrics of ``StateStore.metrics``, with the number of dropped records."""
        return replace(self.store.metrics, late_total=self.late_total)

    def _before_commit(self) -> None:
        """Stage the expiry and the marks of the commit. Called by ``commit``, and by a task before each commit."""

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        """Commit, as ``StateStore.commit`` does."""
        if not self._staging.logs:
            self._before_commit()
        self.store.commit(changelog_offsets)

    def rollback(self) -> None:
        """Roll back, as ``StateStore.rollback`` does."""
        self.store.rollback()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return what ``StateStore.committed_offset`` returns."""
        return self.store.committed_offset(partition)

    def position(self, isolation_level: IsolationLevel) -> Position:
        """Return what ``StateStore.position`` returns."""
        return self.store.position(isolation_level)

    def read_only(self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None) -> TypedView:
        """Return a read-only view for any thread: see ``KeyValueStore.read_only``. It is closed with the store."""
        return self.kind.view(self.store.read_only(isolation_level, bound))

    def close(self) -> None:
        """Close this store and the one below, without a commit. May be called more than once."""
        self.store.close()


class LoggedRecord(Protocol):
    """The part of a changelog record that a converter reads (``stores.changelog.interface.Record``)."""

    @property
    def key(self) -> bytes | None:
        """Never None in a store's changelog."""

    @property
    def value(self) -> bytes | None:
        """None for a tombstone."""

    @property
    def timestamp_ms(self) -> int:
        """The time since the Unix epoch; -1 if unknown."""

    @property
    def headers(self) -> Headers:
        """The headers, without those that the library adds."""


class UnfitRecordError(StoreIncompatibleError):
    """A record that is not of a store of the converter's kind."""


def check_time_beside_headers(record: LoggedRecord) -> None:
    """Check that the time of a record can be stored with headers. Raises: UnfitRecordError."""
    if record.timestamp_ms >= TIME_BOUND_MS:
        raise UnfitRecordError(f"its time {record.timestamp_ms} is not below 2**62")


class RecordConverter(ABC):
    """Converts the records of one store's changelog, in their order, during one restore."""

    @abstractmethod
    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        """Return the pairs that the store keeps for ``record``, zero or more; None deletes. Without a key: no pair.

        Raises: UnfitRecordError.
        """

    def marks(self) -> Mapping[str, bytes | None]:
        """Return the marks of the store after the records so far, which are stored with their pairs."""
        return {}

    def written(self) -> None:
        """Note that the store has the pairs and marks so far. Raises: as ``StateStore.restore``."""


class PlainConverter(RecordConverter):
    """A converter for a store that keeps the same pairs as its changelog."""

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        return () if record.key is None else ((record.key, record.value),)


class RecordIterator(Closeable, Iterator[T]):
    """An iterator over a snapshot of typed records, taken when the scan began.

    Use it in a ``with`` block, exhaust it or close it: until then the engine keeps the snapshot. After it or its store
    is closed, the next step raises StoreClosedError.
    """

    def __init__(self, records: Iterator[T], *scans: Closeable) -> None:
        """Iterate over ``records``, which are made from ``scans``. The iterator closes the scans."""
        self._records = records
        self._scans = scans
        self._closed = False

    def __iter__(self) -> Iterator[T]:
        # The generator itself: a loop over it costs half of one over __next__.
        return self if self._closed else self._records

    def __next__(self) -> T:
        if self._closed:
            self._refuse()
        try:
            return next(self._records)
        except StoreClosedError:
            # A generator that has raised would end silently on the next call.
            self._closed = True
            raise

    def close(self) -> None:
        self._closed = True
        for scan in self._scans:
            scan.close()

    def _refuse(self) -> NoReturn:
        raise StoreClosedError("the iterator or its store is closed: start another scan")
