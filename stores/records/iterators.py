"""The iterator over the records of a typed store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, TypeVar

from stores.errors import StoreClosedError
from stores.interface import Closeable

T = TypeVar("T")


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
