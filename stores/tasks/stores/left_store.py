"""The interface of a store that Kafka Streams has left, as a takeover reads it.

Its implementations are in ``streams_records``, which needs rocksdict.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import NamedTuple

from stores.changelog.interface import Record
from stores.errors import StoreError
from stores.interface import Closeable, KeyValueStore, TopicPartition
from stores.records.pieces import Pairs


class NotTakenOverError(StoreError):
    """A store that can't be taken over, with the reason. ``fits_another`` is True if another configuration could."""

    def __init__(self, reason: str, *, fits_another: bool) -> None:
        super().__init__(reason)
        self.fits_another = fits_another


class End(NamedTuple):
    """The last offset of each partition that a store has, and its position."""

    offsets: Mapping[TopicPartition, int]
    position: Mapping[TopicPartition, int]


class LeftStore(Closeable):
    """A store that Kafka Streams has left and no process has open, for a store of one configuration. For one thread.

    Its methods are called in the order in which they stand here. Raises, all methods: NotTakenOverError;
    StoreCorruptedError for damage; StoreUnavailableError; OSError.
    """

    @abstractmethod
    def check_families(self) -> None:
        """Check that its column families are known."""

    @abstractmethod
    def end(self) -> End | None:
        """Return the offsets and the position that it keeps, None if Kafka Streams keeps them in files.

        Both are empty if it was not closed cleanly.
        """

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether it has no record."""

    @abstractmethod
    def check(self) -> None:
        """Check that it is of the configured kind."""

    @abstractmethod
    def lacks(self, record: Record) -> bool:
        """Return True if it can't be at a changelog record with a key: it lacks that, or has another value for it."""

    @abstractmethod
    def steps(self, store: KeyValueStore) -> Generator[Pairs, None, None]:
        """Yield what the new ``store``, which is prepared and empty, is to have, in pieces of any size."""

    def marks(self) -> Mapping[str, bytes | None]:
        """Return the marks of the new store, after all steps."""
        return {}
