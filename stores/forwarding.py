"""A store over another one, which answers each call as that one does: the base of stores that change a part of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import ClassVar, NoReturn

from stores.contract.arguments import check_pairs
from stores.errors import StoreError
from stores.interface import (
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    KeyValueView,
    Position,
    PositionBound,
    Recovery,
    Timestamps,
    TopicPartition,
)


class ForwardedTimestamps(Timestamps):
    """Writes by the ``put`` of ``store``, and answers of the store below it. The split is for its owner to begin."""

    _store: ForwardingStore

    @property
    def are_kept(self) -> bool:
        return self._store.inner.timestamps.are_kept

    @property
    def is_split(self) -> bool:
        return self._store.inner.timestamps.is_split


class ForwardingStore(KeyValueStore):
    """A store that forwards reads, offsets and figures to ``inner``.

    Writes, and what ends or replaces the open transaction, are for the subclass: forwarded without thought, they would
    bypass what it is made for. Such are ``put``, ``set_mark``, ``commit``, ``restore`` and ``close``; the other writes
    are made of these by default.
    """

    def __init__(self, inner: KeyValueStore) -> None:
        self.inner = inner
        """The store below. Its owner may replace it when it opens it again."""

    def get(self, key: bytes) -> bytes | None:
        return self.inner.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.inner.get_many(keys)

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self.inner.range(start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self.inner.reverse_range(start, end)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self.inner.range_many(bounds, reverse=reverse)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self.inner.prefix_scan(prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self.inner.reverse_prefix_scan(prefix)

    def approximate_num_entries(self) -> int:
        return self.inner.approximate_num_entries()

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> KeyValueView:
        return self.inner.read_only(isolation_level, bound)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def timestamps(self) -> Timestamps:
        return ForwardedTimestamps(self)

    @property
    def is_open(self) -> bool:
        return self.inner.is_open

    def mark(self, name: str) -> bytes | None:
        return self.inner.mark(name)

    def committed_offset(self, partition: TopicPartition) -> int | None:
        return self.inner.committed_offset(partition)

    def approximate_num_uncommitted_bytes(self) -> int:
        return self.inner.approximate_num_uncommitted_bytes()

    def uncommitted_memory_bytes(self) -> int:
        return self.inner.uncommitted_memory_bytes()

    def position(self, isolation_level: IsolationLevel) -> Position:
        return self.inner.position(isolation_level)

    def engine_metrics(self) -> Mapping[str, int]:
        return self.inner.engine_metrics()

    def verify(self) -> None:
        self.inner.verify()

    def recover(self, changelog_offsets: Mapping[TopicPartition, int] | None = None) -> Recovery:
        return self.inner.recover(changelog_offsets)


FACTS = (
    *("backend", "durability", "persistent", "transactional", "manages_offsets", "keeps_marks"),
    *("deletes_ranges_whole", "max_key_bytes", "metrics"),
)
"""The properties of a forwarding store that are those of the store below."""
for fact in FACTS:
    setattr(ForwardingStore, fact, property(attrgetter(f"inner.{fact}")))


class LoggedStore(ForwardingStore):
    """A store that stages each write in ``inner``, and then logs it. Its owner commits, restores and closes it."""

    refusals: ClassVar[Mapping[str, str]]
    """By the name of a call that only the owner makes: what the error says of the store, and the advice."""
    _staging: AbstractContextManager[object] = nullcontext()
    """The context in which a write is staged."""

    def __init__(self, inner: KeyValueStore) -> None:
        super().__init__(inner)
        self._target = inner
        """The store that writes go to. It may do more than ``inner``."""

    @abstractmethod
    def _log_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Log writes that are staged."""

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        check_pairs(pairs)
        writes = list(pairs)
        with self._staging:
            self._target.put_all(writes)
        self._log_all(writes)

    def put_many(self, pairs: Mapping[bytes, bytes | None] | Iterable[tuple[bytes, bytes | None]]) -> None:
        if not isinstance(pairs, dict):
            super().put_many(pairs)
            return
        with self._staging:
            self._target.put_many(pairs)
        self._log_all(pairs.items())

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        with self._staging:
            existing = self._target.put_if_absent(key, value)
        if existing is None:
            self._log_all([(key, value)])
        return existing

    def delete(self, key: bytes) -> bytes | None:
        with self._staging:
            existing = self._target.delete(key)
        self._log_all([(key, None)])
        return existing

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        with self.inner.range(start, end) as doomed:  # a snapshot: it still has the pairs after their removal
            with self._staging:
                self._target.delete_range(start, end)
            self._log_all((key, None) for key, _ in doomed)

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> NoReturn:
        """Refuse the commit: a store that commits by itself would lead its log.

        Source: KIP-892, ``StateStore#commit``.
        """
        self._refuse("commit")

    def rollback(self) -> NoReturn:
        self._refuse("rollback")

    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> NoReturn:
        self._refuse("restore")

    def close(self) -> NoReturn:
        self._refuse("close")

    def _refuse(self, call: str) -> NoReturn:
        raise StoreError(f"store {self.name!r} {self.refusals[call]}")
