"""A state store for stream processors that stays exactly in step with its changelog through any crash."""

import logging

from stores.errors import (
    ChangelogError,
    ChangelogLostError,
    ChangelogTimeoutError,
    CommitFailedError,
    CommitInDoubtError,
    ConfigError,
    DeserializationError,
    NotUpToBoundError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    ReadOnlyViewError,
    SerdeMismatchError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreRestoringError,
    StoreTooNewError,
    StoreUnavailableError,
    TaskCorruptedError,
    WrongThreadError,
)
from stores.interface import (
    Durability,
    IsolationLevel,
    KeyValueIterator,
    KeyValueSnapshot,
    KeyValueStore,
    KeyValueView,
    PositionBound,
    ReadOnlyKeyValueStore,
    Recovery,
    RecoveryOutcome,
    StateStore,
    TopicPartition,
)
from stores.read_only import ReadOnlyStore, open_read_only
from stores.registry import open_store
from stores.version import __version__

# The application decides where messages go. Without this, Python would print warnings to its standard error.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "ChangelogError",
    "ChangelogLostError",
    "ChangelogTimeoutError",
    "CommitFailedError",
    "CommitInDoubtError",
    "ConfigError",
    "DeserializationError",
    "Durability",
    "IsolationLevel",
    "KeyValueIterator",
    "KeyValueSnapshot",
    "KeyValueStore",
    "KeyValueView",
    "NotUpToBoundError",
    "OffsetOutOfRangeError",
    "PositionBound",
    "ProducerFencedError",
    "ReadOnlyKeyValueStore",
    "ReadOnlyStore",
    "ReadOnlyViewError",
    "Recovery",
    "RecoveryOutcome",
    "SerdeMismatchError",
    "StateStore",
    "StoreClosedError",
    "StoreCorruptedError",
    "StoreError",
    "StoreIncompatibleError",
    "StoreLockedError",
    "StoreRestoringError",
    "StoreTooNewError",
    "StoreUnavailableError",
    "TaskCorruptedError",
    "TopicPartition",
    "WrongThreadError",
    "__version__",
    "open_read_only",
    "open_store",
]
