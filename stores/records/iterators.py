"""The iterator that a typed scan hands out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, TypeVar

from stores.errors import StoreClosedError
from stores.interface import Closeable

T = TypeVar("T")


class RecordIterator(Closeable, Iterator[T]):
    """Records of a typed scan: a snapshot of the moment the scan was made.

    Use it in a ``with`` block, or run it to its end, or close it: until then it pins the state that it shows. Once it
    or its store is closed, every further step raises StoreClosedError.
    """

    def __init__(self, records: Iterator[T], *scans: Closeable) -> None:
        """``records`` are made of ``scans``, which are this iterator's to close."""
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
        raise StoreClosedError("the iterator or its store is closed: make a new scan")
