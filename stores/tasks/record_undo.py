"""The undo of one input record: the old values of what its function writes, and its outputs until the function returns.

A store may not be able to undo a part of a transaction: a native one has it in the engine, a large one on disk. So the
old value of each key is read before the record's first write of it, and written again to undo the record. Outputs and
changelog records can't be taken back from a producer. They are held until the function has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Undoable(Protocol):
    """A store with the old values of what the current record has written."""

    def put_back(self) -> None:
        """Write the old values again. Raises: as ``KeyValueStore.put_all``."""

    def forget(self) -> None:
        """Drop the old values."""


class RecordUndo:
    """The changes of the record that a task processes, from ``begin`` to ``keep``, ``undo`` or ``drop``.

    It takes memory for the outputs and changelog records of one input record, and for the values that it replaced.
    """

    def __init__(self) -> None:
        self.active = False
        """True while the function of a record runs."""
        self._stores: list[Undoable] = []
        self._sends: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin a record."""
        self.active = True

    def changed(self, store: Undoable) -> None:
        """Note the first change of ``store`` by the record."""
        self._stores.append(store)

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
        """Put the old values back into all stores, and drop what was held. Raises: as ``KeyValueStore.put_all``."""
        try:
            for store in self._stores:
                store.put_back()
        finally:
            self.drop()

    def drop(self) -> None:
        """Forget the record: its changes stay, or the whole transaction is rolled back."""
        self.active = False
        self._sends.clear()
        for store in self._stores:
            store.forget()
        self._stores.clear()
