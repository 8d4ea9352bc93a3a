"""The iterator that a scan returns: pairs in order. After it is closed, it raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import time

from stores.batch.merge import Pair
from stores.errors import StoreClosedError, StoreUnavailableError
from stores.interface import KeyValueIterator
from stores.process.forks import keep_for_good


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
        keep_for_good(self._release)
        self._release = None

    def __del__(self) -> None:
        self.let_go()


class StoreIterator(KeyValueIterator):
    """The pairs of a scan, until its ``pin`` is closed."""

    def __init__(self, chunks: Iterator[list[Pair]], pin: Pin) -> None:
        self._pin = pin
        # The generator refers to the pin, not to the iterator: a loop keeps a reference to the generator only.
        self._pairs = _guarded(chunks, pin)

    def __iter__(self) -> Iterator[Pair]:
        # Return the generator itself: a loop over it costs half of a loop over __next__.
        return _guarded(iter(()), self._pin) if self._pin.closed else self._pairs

    def __next__(self) -> Pair:
        return next(iter(self))

    def close(self) -> None:
        self._pin.close()


def _guarded(chunks: Iterator[list[Pair]], pin: Pin) -> Iterator[Pair]:
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
    _check(pin)
    pin.let_go()


def _check(pin: Pin) -> None:
    if pin.closed:
        raise StoreClosedError("the iterator or its store is closed: make a new scan")
