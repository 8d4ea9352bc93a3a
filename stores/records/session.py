"""Session stores: an aggregate of each key and session, for as long as a retention. Source: KIP-258; Kafka,
``SessionStore``. Kafka never shipped one with timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, cast

from stores.interface import IsolationLevel, KeyValueStore, KeyValueView, PositionBound
from stores.records.record_kind import TypedStore, TypedView
from stores.records.retention import check_span
from stores.records.segment_writes import SegmentWrites
from stores.records.segmented_kind import SegmentedKind, check_segmented
from stores.records.serdes import Serde
from stores.records.session_keys import SessionKeys
from stores.records.session_reads import SessionReads
from stores.records.staging import Staging
from stores.records.values import Windowed, check_time_ms

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Session(SegmentedKind, Generic[K, V]):
    """Describes a store of sessions, which are a ``key``, a start and an end, to ``value``.

    A session lives while its end is above the stream time, which is the highest end ever put, less ``retention_ms``.
    Sessions lie in segments of ``segment_ms`` by their end, and are dropped by segments; by default it is half the
    retention, and a minute at least. With ``timestamped`` each value has a timestamp.

    Raises: TypeError, ValueError for an invalid argument.
    """

    kind: ClassVar[str] = "session"

    key: Serde[K]
    value: Serde[V]
    retention_ms: int
    segment_ms: int | None = None
    timestamped: bool = False

    def __post_init__(self) -> None:
        check_segmented(self)

    @property
    def keys(self) -> SessionKeys:
        return SessionKeys()

    def over(self, store: KeyValueStore) -> SessionStore[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: Staging) -> SessionStore[K, V]:
        return SessionStore(self, staging)

    def view(self, view: KeyValueView) -> SessionView[K, V]:
        return SessionView(self, view)


class SessionView(SessionReads[K, V], TypedView):
    """A read-only view of a session store, for any thread."""

    def __init__(self, kind: Session[K, V], view: KeyValueView) -> None:
        TypedView.__init__(self, view, kind.view)
        SessionReads.__init__(self, kind, kind.keys, view, kind.codec("of a view"))


class SessionStore(SessionReads[K, V], TypedStore):
    """A session store for its writing thread, which reads its own uncommitted writes.

    Raises, all writes: TypeError and ValueError for an invalid session, and for a key or value that a serde or the
    store refuses, before anything is staged; else as those of ``KeyValueStore``.
    """

    def __init__(self, kind: Session[K, V], staging: Staging) -> None:
        TypedStore.__init__(self, kind, staging)
        SessionReads.__init__(self, kind, kind.keys, staging.store, kind.codec(staging.store.name))
        self._writes = SegmentWrites(staging, kind.retention, self._values)

    def put(self, session: Windowed[K], aggregate: V | None, timestamp_ms: int | None = None) -> None:
        """Stage ``aggregate`` for ``session``, whose end may be its start; None deletes.

        The default time is that of the current record, or -1 outside of a task. A session older than the retention is
        dropped and counted (``late_total``); some of them are logged as warnings.
        """
        if not isinstance(session, Windowed):
            raise TypeError(f"a session is a Windowed, not {type(session).__name__}")
        key, start_ms, end_ms = session
        check_span("a session", start_ms, end_ms)
        if timestamp_ms is not None:
            check_time_ms("a timestamp", timestamp_ms)
        encoded = self._codec.encode_key(key)
        data = None if aggregate is None else self._codec.encode_value(key, aggregate)
        self._writes.put(self._keys.logged(encoded, start_ms, end_ms), end_ms, data, timestamp_ms)

    def remove(self, session: Windowed[K]) -> None:
        """Stage the removal of ``session``."""
        self.put(session, None)

    @property
    def late_total(self) -> int:
        return self._writes.late_total

    def before_commit(self) -> None:
        self._writes.drop_expired()

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> SessionView[K, V]:
        return cast(SessionView[K, V], super().read_only(isolation_level, bound))
