"""Views of a task's store for other threads. They stay valid when the task reopens or replaces the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stores.contract.reading import ForwardingView, close_answer
from stores.errors import StoreClosedError, StoreError, StoreRestoringError
from stores.interface import (
    Closeable,
    IsolationLevel,
    KeyValueSnapshot,
    KeyValueView,
    Position,
    PositionBound,
    ShownTimestamps,
)
from stores.tasks.stores.shown_store import StoreProxy
from stores.tasks.stores.task_store import TaskStore

Answer = TypeVar("Answer")


def viewed(store: TaskStore, level: IsolationLevel | None, bound: PositionBound | None) -> Any:
    """Return a view of ``store``, typed and proxied by its format. The view follows a later change of the format."""
    if not store.format.may_swap:
        return _viewed(store, level, bound)
    present_view: tuple[int, Any] = store.format.swaps, _viewed(store, level, bound)

    def present() -> Any:
        nonlocal present_view
        if present_view[0] != store.format.swaps:
            present_view = store.format.swaps, _viewed(store, level, bound)
        return present_view[1]

    return StoreProxy(present)


def snapshot_of(store: TaskStore) -> Any:
    """Return a snapshot of the store of a standby copy, typed by its format. Raises: as ``KeyValueView.snapshot``."""
    snapshot: Any = store.store.read_only(IsolationLevel.READ_COMMITTED).snapshot()
    if store.format.records is not None:
        snapshot = store.format.records.view(snapshot)
    shown = store.format.shown(snapshot)
    return snapshot if shown is snapshot else _ProxiedSnapshot(snapshot, shown)


class _ProxiedSnapshot(Closeable):
    """A snapshot as the proxy of an online upgrade shows it. The proxy may have nothing but reads."""

    def __init__(self, snapshot: Any, shown: Any) -> None:
        self._snapshot, self._shown = snapshot, shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)

    def position(self) -> Position:
        """Return the position of the snapshot."""
        position: Position = self._snapshot.position()
        return position

    def close(self) -> None:
        self._snapshot.close()


def _viewed(store: TaskStore, level: IsolationLevel | None, bound: PositionBound | None) -> Any:
    view = TaskView(store, level, bound)
    records = store.format.records
    return store.format.shown(view if records is None else records.view(view))


class TaskView(ForwardingView):
    """A view of the store that the task has open at the moment. It raises during a restore, between two commits."""

    def __init__(self, store: TaskStore, level: IsolationLevel | None, bound: PositionBound | None) -> None:
        self._swaps = store.format.swaps
        self._store, self._bound = store, bound
        self._level = store.store.read_only(level, bound).isolation_level

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._store.name!r}, {self._level}>"

    @property
    def isolation_level(self) -> IsolationLevel:
        return self._level

    @property
    def timestamps(self) -> ShownTimestamps:
        timestamps = self._store.store.timestamps
        return ShownTimestamps(timestamps.are_kept, timestamps.is_split)

    def position(self) -> Position:
        return self._answered(lambda view: view.position())

    def mark(self, name: str) -> bytes | None:
        return self._answered(lambda view: view.mark(name))

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        return self._answered(lambda view: view.with_mark(name, read))

    def at_one_moment(self, name: str, read: Callable[[bytes | None, KeyValueView], Answer]) -> Answer:
        return self._answered(lambda view: view.at_one_moment(name, read))

    def snapshot(self) -> KeyValueSnapshot:
        return self._answered(lambda view: view.snapshot())

    def _answered(self, query: Callable[[KeyValueView], Answer]) -> Answer:
        restores = self._store.restores
        if restores % 2 or self._swaps != self._store.format.swaps:
            raise self._restoring()
        try:
            answer = query(self._store.store.read_only(self._level, self._bound))
        except StoreClosedError:
            # The task may have closed the store to open it again.
            if self._store.restores != restores:
                raise self._restoring() from None
            raise
        if self._store.restores != restores:
            close_answer(answer)
            raise self._restoring()
        return answer

    def _restoring(self) -> StoreError:
        if not self._store.store.is_open:
            return StoreClosedError(f"the task of store {self._store.name!r} is closed: open the task again")
        return StoreRestoringError(f"store {self._store.name!r} is being restored from its changelog: ask again later")
