"""The undo of one record, or of a batch of them.

A store may not be able to undo a part of a transaction: a native one has it in the engine, a large one on disk. So the
old value of each key is read before the record's first write of it, and written again to undo the record. Outputs and
changelog records can't be taken back from a producer. They are held until the function has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.interface import KeyValueStore
from stores.records.values import Undoable
from stores.tasks.memory_budget import WrittenBytes


class RecordUndo:
    """The old values and the held outputs of the current record, from ``begin`` to ``keep``, ``undo`` or ``drop``."""

    def __init__(self) -> None:
        self.active = False
        """True while the function of a record runs."""
        self._changed: list[Undoable] = []
        self._sends: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin a record."""
        self.active = True

    def changed(self, part: Undoable) -> None:
        """Note the first change of ``part`` by the record."""
        self._changed.append(part)

    def hold(self, send: Callable[[], None]) -> None:
        """Call ``send`` once the function has returned."""
        self._sends.append(send)

    def keep(self) -> None:
        """Send what was held. Raises: as ``Producer.send``."""
        sends, self._sends = self._sends, []
        self.drop()
        for send in sends:
            send()

    def undo(self) -> None:
        """Put back all that has changed, and drop what was held. Raises: as ``KeyValueStore.put_all``."""
        try:
            for part in self._changed:
                part.put_back()
        finally:
            self.drop()

    def drop(self) -> None:
        """Forget the record: its changes stay, or the whole transaction is rolled back."""
        self.active = False
        self._sends.clear()
        for part in self._changed:
            part.forget()
        self._changed.clear()


class StoreUndo:
    """The writes of a store, which save old values from ``inner`` first while the function of a record runs."""

    def __init__(self, inner: KeyValueStore, undo: RecordUndo, written: WrittenBytes) -> None:
        self.inner = inner
        """The store below. Its owner may replace it when it opens it again."""
        self._undo, self._written = undo, written
        self._old: dict[bytes, bytes | None] = {}
        self._old_marks: dict[str, bytes | None] = {}

    def put_back(self) -> None:
        """Write the old values again; nothing is logged, because none of the record's writes was."""
        old = self._old
        if self._old_marks:
            self.inner.put_with_marks(old.items(), self._old_marks)
        else:
            self.inner.put_all(old.items())
        self._written.num_bytes += sum(PAIR_MEMORY_BYTES + len(key) + len(value or b"") for key, value in old.items())

    def forget(self) -> None:
        """Drop the old values."""
        self._old, self._old_marks = {}, {}

    def _save(self, key: object) -> None:
        if not self._undo.active or type(key) is not bytes or key in self._old:
            return
        # The store refuses other keys.
        if 0 < len(key) <= self.inner.max_key_bytes:
            self._note_change()
            self._old[key] = self.inner.get(key)

    def _save_all(self, pairs: Iterable[object]) -> None:
        for pair in pairs:
            # The store refuses what is no pair.
            if isinstance(pair, Sequence) and len(pair) == 2:
                self._save(pair[0])

    def _save_mark(self, name: str) -> None:
        if self._undo.active and type(name) is str and name not in self._old_marks:
            self._note_change()
            self._old_marks[name] = self.inner.mark(name)

    def _note_change(self) -> None:
        if not self._old and not self._old_marks:
            self._undo.changed(self)

    def put(self, key: bytes, value: bytes | None) -> None:
        self._save(key)
        self.inner.put(key, value)

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._save_all(pairs)
        self.inner.put_all(pairs)

    def put_many(self, pairs: dict[bytes, bytes | None]) -> None:
        self._save_all(pairs.items())
        self.inner.put_many(pairs)

    def put_with_marks(self, pairs: Iterable[tuple[bytes, bytes | None]], marks: Mapping[str, bytes | None]) -> None:
        self._save_all(pairs)
        for name in marks:
            self._save_mark(name)
        self.inner.put_with_marks(pairs, marks)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        self._save(key)
        return self.inner.put_if_absent(key, value)

    def delete(self, key: bytes) -> bytes | None:
        self._save(key)
        return self.inner.delete(key)

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        if self._undo.active:
            self._note_change()
            with self.inner.range(start, end) as pairs:
                for key, value in pairs:
                    self._old.setdefault(key, value)
        self.inner.delete_range(start, end)

    def set_mark(self, name: str, value: bytes | None) -> None:
        self._save_mark(name)
        self.inner.set_mark(name, value)
