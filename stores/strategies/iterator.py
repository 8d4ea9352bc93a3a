"""The iterator that a scan returns: pairs in order. After it is closed, it raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from time import time
from weakref import WeakSet

from stores.batch.merge import Pair
from stores.errors import StoreClosedError, StoreCorruptedError, StoreUnavailableError
from stores.interface import KeyValueIterator
from stores.process import never_free


class Pin:
    """The resources of an iterator. They are released once: at its end, by ``close`` or by garbage collection."""

    __slots__ = ("__weakref__", "_release", "closed", "since")

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release
        self.closed = False
        self.since = time()

    @property
    def held(self) -> bool:
        """True until the resources are released."""
        return self._release is not None

    def let_go(self) -> None:
        """Release the resources. A second call has no effect."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def close(self) -> None:
        """Release the resources and make the iterator raise from now on."""
        self.closed = True
        self.let_go()

    def abandon(self) -> None:
        """Make the iterator raise from now on, but release nothing: the resources belong to the parent process."""
        self.closed = True
        never_free(self._release)
        self._release = None

    def __del__(self) -> None:
        self.let_go()


class OpenIterators:
    """The iterators of a store that are in use: their pins."""

    def __init__(self, note_damage: Callable[[str], None] = lambda _: None) -> None:
        """``note_damage`` gets the damage that a reader of the store finds."""
        self._pins: WeakSet[Pin] = WeakSet()
        self._lock = Lock()
        self.note_damage = note_damage

    def add(self, pin: Pin) -> None:
        """Add the pin of a new iterator. May be called on any thread."""
        with self._lock:
            self._pins.add(pin)

    def open_since(self) -> list[float]:
        """Return the times since which the iterators are open."""
        with self._lock:
            pins = list(self._pins)
        return [pin.since for pin in pins if pin.held]

    def close(self) -> None:
        """Close all iterators."""
        with self._lock:
            pins = list(self._pins)
        for pin in pins:
            pin.close()

    def abandon(self) -> None:
        """Disable all iterators in the child of a fork. Takes no lock: a thread of the parent may have held it."""
        for pin in list(self._pins):
            pin.abandon()


class StoreIterator(KeyValueIterator):
    """The pairs of a scan, until its ``pin`` is closed. ``of_store`` has the iterators of its store."""

    def __init__(self, chunks: Iterator[list[Pair]], pin: Pin, of_store: OpenIterators) -> None:
        self._pin, self._of_store = pin, of_store
        # The generator refers to the pin, not to the iterator: a loop keeps a reference to the generator only.
        self._pairs = _guarded(chunks, pin, of_store)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {'closed' if self._pin.closed else 'open'}>"

    def __iter__(self) -> Iterator[Pair]:
        # Return the generator itself: a loop over it costs half of a loop over __next__.
        return _guarded(iter(()), self._pin, self._of_store) if self._pin.closed else self._pairs

    def __next__(self) -> Pair:
        return next(iter(self))

    def close(self) -> None:
        self._pin.close()


def _guarded(chunks: Iterator[list[Pair]], pin: Pin, of_store: OpenIterators) -> Iterator[Pair]:
    _check(pin)
    try:
        for chunk in chunks:
            for pair in chunk:
                yield pair
                if pin.closed:
                    _check(pin)
    except StoreUnavailableError:
        # Another thread may have closed the store meanwhile.
        _check(pin)
        raise
    except StoreCorruptedError as error:
        of_store.note_damage(str(error))
        raise
    _check(pin)
    pin.let_go()


def _check(pin: Pin) -> None:
    if pin.closed:
        raise StoreClosedError("the iterator or its store is closed: make a new scan")
