"""What a backend may say that it cannot carry, with the reason. Everything else is promised by every backend.

A gap is no skip: the tests hold a backend that has one to what it does instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stores import KeyValueStore


@dataclass(frozen=True)
class Gap:
    """A promise, who is free of it by what it says of itself, and why."""

    promise: str
    excused: Callable[[KeyValueStore], bool]
    reason: str
    instead: str


ISOLATED = "a reader of committed data sees nothing of the open transaction"
ROLLED_BACK = "a rollback takes back what was written"
POSITION_KEPT = "the committed position is there again after closing and opening"
SPILLED = "what a transaction stages beyond the store's bound is on disk, and not in memory"
BOUNDED = "nor is it in the engine's memory"

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
            lambda store: not store.persistent or store.backend == "lmdb-native",
            "LMDB keeps the pages that its own transaction has changed in memory, and writes out what goes beyond "
            "2**17 - 1 pieces: a constant of its build (``MDB_IDL_UM_MAX``). A piece is a page, which makes 512 MiB, "
            "or all the pages of one value that is larger than half a page",
            "the transaction takes up to about 512 MiB where values are small, and more where they are large",
        ),
    )
}
"""The one table of them: no other test of the suite may look at a backend's name."""


def carries(store: KeyValueStore, promise: str) -> bool:
    """Whether the store is held to a promise that has a gap."""
    return not GAPS[promise].excused(store)
