"""Promises that a backend may declare not to keep, with the reason. Every backend keeps all others.

A gap is no skip: the tests hold a backend that has one to what it does instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stores import KeyValueStore
from stores.registry import Backend
from stores.strategies.sst_ingest import SstIngestStaging


@dataclass(frozen=True)
class Gap:
    """A promise, the exempt stores by what they or their backend declare, and the reason."""

    promise: str
    excused: Callable[[KeyValueStore | Backend], bool]
    reason: str
    instead: str


ISOLATED = "a reader of committed data sees nothing of the open transaction"
ROLLED_BACK = "a rollback takes back what was written"
POSITION_KEPT = "the committed position is there again after closing and opening"
SPILLED = "what a transaction stages beyond the store's bound is on disk, and not in memory"
BOUNDED = "nor is it in the engine's memory"
TWO_FORMATS = "records of an older format stay where they are when the store is opened with a newer one"
COMMITTED_ALIKE = "a commit takes the same steps while the records of a store have two formats"

GAPS = {
    gap.promise: gap
    for gap in (
        Gap(
            ISOLATED,
            lambda store: not store.transactional,
            "it keeps no uncommitted writes apart (KIP-892, `transactional()` false; how stores worked before it)",
            "readers of either level see every write at once, and tell the same position",
        ),
        Gap(
            ROLLED_BACK,
            lambda store: not store.transactional,
            "what is written is in the engine",
            "the writes stay, the position falls back: the task wipes and restores",
        ),
        Gap(
            POSITION_KEPT,
            lambda store: not (store.persistent and store.manages_offsets),
            "nothing of it survives its process, or its offsets are left to a checkpoint file, which has no position",
            "the position is empty, until a restore brings it back",
        ),
        Gap(
            SPILLED,
            lambda store: not store.persistent,
            "it has no disk: all that it keeps is in memory, committed or not",
            "the transaction stays in memory, and must fit there",
        ),
        Gap(
            BOUNDED,
            lambda backend: not (isinstance(backend, Backend) and backend.bounded_memory),
            "its engine has no disk, or keeps its own transaction in memory. "
            "LMDB keeps the pages that its own transaction has changed in memory, and writes out what goes beyond "
            "2**17 - 1 pieces: a constant of its build (``MDB_IDL_UM_MAX``). A piece is a page, which makes 512 MiB, "
            "or all the pages of one value that is larger than half a page",
            "the transaction takes up to about 512 MiB where values are small, and more where they are large",
        ),
        Gap(
            TWO_FORMATS,
            lambda store: not (isinstance(store, KeyValueStore) and store.timestamps.can_split),
            "its engine has one data family (``Engine.splits``)",
            "a store with records of the older format is refused with the newer one, and is left as it is",
        ),
        Gap(
            COMMITTED_ALIKE,
            lambda backend: isinstance(backend, Backend) and issubclass(backend.load_strategy(), SstIngestStaging),
            "two data families can't be ingested in one step",
            "its commits are those of the indexed batch until the upgrade has ended",
        ),
    )
}
"""The one table of them: no other test of the suite may look at a backend's name."""


class HeldInstead(Exception):
    """Ends a test that has held a backend with a gap to what it does instead: the test has passed then."""


def carries(store: KeyValueStore | Backend, promise: str) -> bool:
    """Return whether the store is held to a promise that has a gap. BOUNDED and COMMITTED_ALIKE ask for its backend."""
    return not GAPS[promise].excused(store)
