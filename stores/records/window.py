"""Window stores: a value of each key and window, for a retention. Source: KIP-258; Kafka, ``WindowStore``."""

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
    """Describes a store of ``key`` and window start to ``value``. Windows are ``size_ms`` long.

    A record lives while its window's start is above the stream time, which is the highest start ever put, less
    ``retention_ms``; this is at least the size. Records lie in segments of ``segment_ms`` by their window's start, and
    are dropped by segments; by default it is half the retention, and a minute at least. With ``timestamped`` each value
    has a timestamp. With ``retain_duplicates`` several values of one key and start are kept.

    Raises: TypeError, ValueError for what is none of these.
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
                f"retention_ms {self.retention_ms} is below size_ms {self.size_ms}: a window has to live until it ends"
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
    """A window store as other threads see it."""

    def __init__(self, kind: Window[K, V], view: KeyValueView) -> None:
        TypedView.__init__(self, view)
        WindowReads.__init__(self, kind, view, kind.codec("of a view"))


class WindowStore(WindowReads[K, V], TypedStore):
    """A window store as its writer sees it, its own uncommitted writes included.

    Raises, all writes: TypeError and ValueError before anything is staged, for what a serde or the store refuses and
    for what is no time; else as those of ``KeyValueStore``.
    """

    def __init__(self, kind: Window[K, V], staging: Staging) -> None:
        TypedStore.__init__(self, kind, staging)
        WindowReads.__init__(self, kind, staging.store, kind.codec(staging.store.name))
        self._writes = SegmentWrites(staging, kind.retention, self._values)

    def put(self, key: K, value: V | None, window_start_ms: int, timestamp_ms: int | None = None) -> None:
        """Stage ``value`` for ``key`` in the window that starts at ``window_start_ms``.

        None deletes, and has no effect if duplicates are retained. The default time is that of the current record, and
        -1 outside of a task. A record that is older than the retention is dropped and counted, and a warning is logged
        for some of them.
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
