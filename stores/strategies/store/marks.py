"""The marks of a store: small named values that are committed with the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from stores.contract import marks as kept_marks
from stores.errors import StoreUnavailableError
from stores.interface import IsolationLevel
from stores.strategies.access import while_open
from stores.strategies.store.state import StoreState


class StoreMarks(StoreState):
    """Lookups of marks, and their changes on the writer's thread."""

    def mark(self, name: str) -> bytes | None:
        # The fast path, once per record of a window: a name that is staged or committed has been checked.
        if type(name) is str and self._writer:
            staged = self._staged_marks
            if name in staged:
                return staged[name]
            if name in self._marks:
                return self._marks[name]
        return self._mark_at(IsolationLevel.READ_UNCOMMITTED, name)

    def _mark_at(self, level: IsolationLevel, name: str) -> bytes | None:
        """Return the mark ``name`` at ``level``, from any thread."""
        self.access.check_open()
        kept_marks.check_name(name)
        if level is IsolationLevel.READ_UNCOMMITTED or self.staging.shows_staged():
            # In this order: a commit stores the marks before it clears the staged ones.
            staged = self._staged_marks
            if name in staged:
                return staged[name]
        elif self._marks_in_doubt:
            # Read the engine's marks, like its data: a mark that is the same before and after a scan belongs to it.
            try:
                return kept_marks.decode(self.staging.engine.meta()).get(name)
            except StoreUnavailableError:
                self.access.check_open()
                raise
        return self._marks.get(name)

    def set_mark(self, name: str, value: bytes | None) -> None:
        if self._marks_need_care:
            if self._marks_are_held:
                self._let_readers_end()
            if self._marks_at_once:
                self._set_mark_at_once(name, value)
                return
        # The fast path, up to once per record: a name that is staged has been checked.
        staged = self._staged_marks
        if (
            get_ident() == self._writer
            and type(value) is bytes
            and type(name) is str
            and name in staged
            and len(value) <= kept_marks.VALUE_BYTES_MAX
        ):
            staged[name] = value
            return
        self._stage_mark(name, value)

    def _stage_mark(self, name: str, value: bytes | None) -> None:
        self.access.check_writer()
        kept_marks.check_name(name)
        kept_marks.check_value(value)
        self._staged_marks[name] = value

    @while_open
    def _set_mark_at_once(self, name: str, value: bytes | None) -> None:
        # Write it before the data that it describes, which can't be undone: windows above the stream time are hidden.
        staged = self._staged_marks
        if name in staged and type(value) is bytes and len(value) <= kept_marks.VALUE_BYTES_MAX:
            staged[name] = value
        else:
            self._stage_mark(name, value)
        changed = kept_marks.changed(self._marks, self._staged_marks)
        if changed:
            self.staging.engine.write([], kept_marks.encode(self._marks, changed), durable=False)
            self._marks = kept_marks.merge(self._marks, changed)

    @contextmanager
    def _marks_held(self) -> Iterator[None]:
        """Block the writer's next change of a mark, commit or rollback. For use on another thread."""
        with self._marks_lock:
            self._marks_are_held = self._marks_need_care = True
            try:
                yield
            finally:
                self._marks_are_held, self._marks_need_care = False, self._marks_at_once

    def _let_readers_end(self) -> None:
        with self._marks_lock:
            pass
