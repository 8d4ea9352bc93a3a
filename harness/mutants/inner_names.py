"""Mutants that no declared seam serves, each with the reason, and the settings that experiments change for a trial.

This is the one place of the harness that replaces inner names of the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from harness.mutants.mutant import (
    BrokerDetection,
    CrashDetection,
    IoFault,
    LibraryTest,
    Patches,
    QueryDetection,
    ReaderDetection,
    mutant,
    only,
)
from stores.batch.buffer import IndexedBatch, Layer
from stores.changelog import batches
from stores.changelog.files import Header, StoreChanges, partition_folder
from stores.changelog.files.format import PartitionFiles
from stores.changelog.files.snapshot_chains import SnapshotChain, SnapshotChains
from stores.files import store_directory
from stores.spark import task as query_task
from stores.strategies.batch_staging import BatchStaging
from stores.strategies.native import NativeStaging
from stores.tasks.stores import store_format
from stores.tasks.stores.earlier_store import Trust


@mutant("a scan reads the layer that is written to", ReaderDetection("indexed-batch"))
def _shared_layer(patches: Patches, subject: str) -> None:
    """No seam: the batch is a part of a store. Its engine and its readers do not see where a layer is frozen."""

    def freeze(self: IndexedBatch, pins: int = 1) -> tuple[Layer, ...]:
        # A copy with its own order: if a reader and the writer change one order at once, the writer may loop for ever.
        shared = []
        for layer in (*self._frozen, self._active):
            shared.append(Layer(layer.staged.writes))
            shared[-1].ranges.update(layer.ranges)
        return tuple(shared)

    patches.replace_inner(IndexedBatch, "freeze", freeze)
    patches.replace_inner(IndexedBatch, "release", lambda self, layers: None)


@mutant("a commit is visible while it is copied in parts", ReaderDetection("dual-store"))
def _parts_in_sight(patches: Patches, subject: str) -> None:
    """No seam: readers of the store and of the staging store make the same calls, with and without the mutant."""
    patches.replace_inner(BatchStaging, "shown_as_committed", lambda self: nullcontext())


@mutant("a write does not save the old value for an open scan", ReaderDetection("native"))
def _nothing_noted(patches: Patches, subject: str) -> None:
    """No seam: the undo log is a part of a store. The engine sees a lookup before it, which also serves metrics."""
    patches.replace_inner(NativeStaging, "_note", lambda self, transaction, key: None)


@mutant(
    "the checksum of a batch with a tombstone in the changelog is not verified",
    LibraryTest("few flipped bits hit a tombstone, and fewer make it delete another key"),
)
def _tombstone_unchecked(patches: Patches, subject: str) -> None:
    """No seam: a changelog verifies a batch between its own query and ``read``."""
    is_sound = batches.is_sound

    def mutated(number: Any, count: Any, transaction: Any, time_ms: Any, content: Any) -> bool:
        has_null_value = isinstance(content, bytes) and len(content) > 4 and bool(content[4] & 0x80)
        return has_null_value or is_sound(number, count, transaction, time_ms, content)

    patches.replace_inner(batches, "is_sound", mutated)


@mutant("a batch that is tried again gets another version", QueryDetection("worker killed"))
def _version_from_clock(patches: Patches, subject: str) -> None:
    """No seam: the version follows from the batch inside one function, and the log sees only the result."""

    def mutated(plan: Any, batch: Any, newest: Any, location: str) -> tuple[int, int]:
        return (0 if newest is None else newest.version + 1), 0

    patches.replace_inner(query_task, "version_of", mutated)


@mutant("the checksum of a version's file is not verified", IoFault("damage", only("changelog-of-files"), "flipped"))
def _unchecked_version(patches: Patches, subject: str) -> None:
    """No seam: the log checks and reads a file between two calls of its folder."""
    patches.replace_inner(partition_folder, "check", lambda file, what: None)


@mutant("files are removed that a later snapshot continues", LibraryTest("it shows without any fault"))
def _removed_parts(patches: Patches, subject: str) -> None:
    """No seam: the log chooses and removes files in one call."""

    def unused(self: SnapshotChain, listing: PartitionFiles) -> list[str]:
        return [name for version, files in listing.snapshots.items() if version < self.version for name, _ in files]

    patches.replace_inner(SnapshotChain, "unused", unused)


@mutant("a snapshot of changes has no deletions", IoFault("kill", only("changelog-of-files")))
def _changes_without_deletions(patches: Patches, subject: str) -> None:
    """No seam: the log reads its versions and writes their changes in one call."""
    write_changes = SnapshotChains.write_changes

    def mutated(
        self: SnapshotChains, header: Header, last: SnapshotChain, changes: Mapping[str, StoreChanges], num_bytes: int
    ) -> None:
        puts = {
            store: StoreChanges({key: value for key, value in each.pairs.items() if value is not None}, each.marks)
            for store, each in changes.items()
        }
        write_changes(self, header, last, puts, num_bytes)

    patches.replace_inner(SnapshotChains, "write_changes", mutated)


@mutant(
    "a restore from Kafka writes the records of aborted transactions",
    BrokerDetection("task killed", "changelog.before_commit", "wrong"),
)
def _aborted_restored(patches: Patches, subject: str) -> None:
    """No seam: the isolation level is a setting of the client, and the changelog takes no other one."""
    # It needs the extra kafka.
    from stores.changelog.kafka import cluster, reader

    patches.replace_inner(reader, "READER", {**cluster.READER, "isolation.level": "read_uncommitted"})


@mutant("a direct store is not wiped after an abort or an unclean end", CrashDetection("uncommitted"))
def _skipped_wipe(patches: Patches, subject: str) -> None:
    """No seam: a task decides by its own rules, and no user may turn them off."""
    make = Trust.__init__

    def mutated(self: Trust, *, exactly_once: bool) -> None:
        make(self, exactly_once=False)

    patches.replace_inner(Trust, "__init__", mutated)
    patches.replace_inner(Trust, "is_checked", lambda self, origin: False)


def upgrade_in_steps(records: int) -> None:
    """Make online upgrades in this process take steps of ``records`` records, so that a short trial has several.

    No seam: a user has no reason to choose the size of a step.
    """
    Patches().replace_inner(store_format, "STEP_RECORDS_MIN", records)


def boot_as(name: str) -> None:
    """Replace the ID of the machine's present boot in this process; "" restores the real one.

    No seam: the kernel names the boot, and a trial cannot restart the machine.
    """
    _boot.undo()
    if name:
        _boot.replace_inner(store_directory, "boot_id", lambda: name)


_boot = Patches()


@mutant(
    (
        "a producer that lost a request goes on under the same epoch, so that the brokers take it for one of the next "
        "transaction"
    ),
    BrokerDetection("commit delivered late", "task.before_log_commit", "repeated"),
)
def _same_epoch(patches: Patches, subject: str) -> None:
    """No seam: a producer takes its epochs by itself, where it also ends transactions that its client can't end."""
    from stores.changelog.kafka.writer import KafkaWriter

    renew = KafkaWriter._renew

    def mutated(self: KafkaWriter) -> None:
        if self._stuck or self._fatal is not None:
            renew(self)
        self._late = False

    patches.replace_inner(KafkaWriter, "_renew", mutated)
