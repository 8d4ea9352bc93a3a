"""Window stores: a value for each key and window, kept for a time. Source: KIP-258; Kafka, ``WindowStore``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, cast

from stores.interface import IsolationLevel, KeyValueStore, KeyValueView, PositionBound
from stores.records.record_kind import Description, TypedStore, TypedView
from stores.records.segment_writes import SegmentWrites
from stores.records.segmented_kind import SegmentedKind, check_flag, check_segmented
from stores.records.serdes import Serde
from stores.records.staging import Staging
from stores.records.values import check_span_ms, check_time_ms
from stores.records.window_keys import WindowKeys
from stores.records.window_reads import WindowReads

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Window(SegmentedKind, Generic[K, V]):
    """The description of a store of ``key`` and window start to ``value``. Windows are ``size_ms`` long.

    The stream time is the highest window start ever put. A record is visible while its window start is above the stream
    time minus ``retention_ms``, which is at least the size. Records are dropped by segments of ``segment_ms``, by their
    window starts; the default is half of the retention, and at least a minute. With ``timestamped`` each value has a
    timestamp. With ``retain_duplicates`` a key and start can have several values.

    Raises: TypeError, ValueError for an invalid argument.
    """

    kind: ClassVar[str] = "window"

    key: Serde[K]
    value: Serde[V]
    size_ms: int
    retention_ms: int
    segment_ms: int | None = None
    timestamped: bool = False
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        check_segmented(self)
        check_span_ms("size_ms", self.size_ms)
        check_flag("retain_duplicates", self.retain_duplicates)
        if self.retention_ms < self.size_ms:
            raise ValueError(
                f"retention_ms {self.retention_ms} is below size_ms {self.size_ms}: keep windows at least for their "
                "size"
            )

    @property
    def keys(self) -> WindowKeys:
        return WindowKeys(self.retain_duplicates)

    @property
    def sequenced(self) -> bool:
        return self.retain_duplicates

    def description(self) -> Description:
        return {**super().description(), "size_ms": self.size_ms, "retain_duplicates": self.retain_duplicates}

    def over(self, store: KeyValueStore) -> WindowStore[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: Staging) -> WindowStore[K, V]:
        return WindowStore(self, staging)

    def view(self, view: KeyValueView) -> WindowView[K, V]:
        return WindowView(self, view)


class WindowView(WindowReads[K, V], TypedView):
    """A read-only view of a window store, for any thread."""

    def __init__(self, kind: Window[K, V], view: KeyValueView) -> None:
        TypedView.__init__(self, view, kind.view)
        WindowReads.__init__(self, kind, kind.keys, kind.size_ms, view, kind.codec("of a view"))


class WindowStore(WindowReads[K, V], TypedStore):
    """A window store for its writing thread, which reads its own uncommitted writes.

    Raises, all writes: TypeError and ValueError for an invalid time, and for a key or value that a serde or the store
    refuses, before anything is staged; else as those of ``KeyValueStore``.
    """

    def __init__(self, kind: Window[K, V], staging: Staging) -> None:
        TypedStore.__init__(self, kind, staging)
        WindowReads.__init__(self, kind, kind.keys, kind.size_ms, staging.store, kind.codec(staging.store.name))
        self._writes = SegmentWrites(staging, kind.retention, self._values)

    def put(self, key: K, value: V | None, window_start_ms: int, timestamp_ms: int | None = None) -> None:
        """Stage ``value`` for ``key`` in the window that starts at ``window_start_ms``.

        None deletes, and has no effect if duplicates are retained. The default time is that of the current record, or
        -1 outside of a task. A record older than the retention is dropped and counted (``late_total``); some of them
        are logged as warnings.
        """
        check_time_ms("a window start", window_start_ms)
        if timestamp_ms is not None:
            check_time_ms("a timestamp", timestamp_ms)
        encoded = self._codec.encode_key(key)
        data = None if value is None else self._codec.encode_value(key, value)
        if not self._keys.sequenced:
            self._writes.put(self._keys.logged(encoded, window_start_ms), window_start_ms, data, timestamp_ms)
        elif data is not None:
            sequence = self._writes.next_number()
            logged = self._keys.logged(encoded, window_start_ms, sequence)
            if self._writes.put(logged, window_start_ms, data, timestamp_ms):
                self._writes.took_number(sequence)

    @property
    def late_total(self) -> int:
        return self._writes.late_total

    def before_commit(self) -> None:
        self._writes.drop_expired()

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> WindowView[K, V]:
        return cast(WindowView[K, V], super().read_only(isolation_level, bound))
