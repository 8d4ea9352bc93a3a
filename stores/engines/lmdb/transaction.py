"""LMDB's own write transaction, for use by a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

import lmdb

from stores.engines.checksum import ValueCodec
from stores.engines.engine import Transaction, take
from stores.engines.lmdb.errors import writing_error
from stores.engines.lmdb.scan import cut, delete_range, pairs_from
from stores.errors import CommitFailedError, StoreError, must_reopen
from stores.ordered.ranges import ScanRange


class LmdbTransaction(Transaction):
    """A write transaction. After any error LMDB refuses all further use of it.

    ``commit`` ends it with meta entries, for the engine, whose readers then see the data.
    """

    # LMDB's writer mutex belongs to that thread until the transaction ends.
    bound_to_thread = True

    def __init__(
        self,
        txn: Any,
        stored: Sequence[Any],
        codec: ValueCodec,
        commit: Callable[[Any, Mapping[bytes, bytes | None]], None],
    ) -> None:
        self._txn, self._stored, self._codec, self._commit = txn, stored, codec, commit
        self._thread = get_ident()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        try:
            # The first family is the transaction's default database: passing it would cost a tenth of the call.
            kept = self._txn.get(key, None, self._stored[family]) if family else self._txn.get(key)
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as error:
            raise self._aborted(error) from error
        return None if kept is None else self._codec.decode(key, kept)

    def fetch(self, bounds: ScanRange, most: int, *, reverse: bool) -> tuple[list[tuple[bytes, bytes]], bool]:
        try:
            with self._txn.cursor(self._stored[bounds.family]) as cursor:
                chunk, ended = take(pairs_from(cursor, bounds, reverse=reverse), most)
        except lmdb.Error as error:
            raise self._aborted(error) from error
        within, beyond = cut(chunk, bounds, reverse=reverse)
        return self._codec.decode_scanned(within), ended or beyond

    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        try:
            if value is None:
                self._txn.delete(key, b"", self._stored[family])
            elif not family:
                # As in ``get``.
                self._txn.put(key, self._codec.encode(key, value))
            else:
                # Arguments by position (dupdata, overwrite, append): keywords take 1.5 times as long.
                self._txn.put(key, self._codec.encode(key, value), True, True, False, self._stored[family])
        except lmdb.Error as error:
            raise self._aborted(error) from error

    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        try:
            delete_range(self._txn, self._stored[family], start, end)
        except lmdb.Error as error:
            raise self._aborted(error) from error

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        try:
            self._commit(self._txn, meta)
        except lmdb.Error as error:
            raise self._aborted(error) from error

    def abort(self) -> None:
        self._txn.abort()

    def _aborted(self, error: lmdb.Error) -> StoreError:
        if get_ident() == self._thread:
            # A reader on another thread leaves the abort to the writer, whose next use fails as well.
            self._txn.abort()
        translated = writing_error(error)
        if not isinstance(translated, CommitFailedError) or translated.reopen:
            return translated
        if isinstance(error, lmdb.MapFullError):
            return CommitFailedError(
                f"the transaction does not fit into LMDB's map: {error}. Close the store, open it again with a larger "
                "map_size_bytes, or commit less at once, and continue from its committed offset",
                reopen=True,
            )
        return must_reopen(f"LMDB has aborted the transaction: {error}. Correct the cause")
