"""Mutants that no declared seam serves, each with the reason, and the settings that experiments change for a trial.

This is the one place of the harness that replaces inner names of the library.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from harness.mutants.mutant import BrokerTrial, IoFault, LibraryTest, Mutant, QueryTrial, ReaderTrial, only
from harness.mutants.patches import Patches
from stores.batch.buffer import IndexedBatch, Layer
from stores.changelog import checksum, sqlite
from stores.changelog.files import reading
from stores.files import store_directory
from stores.spark import task as query_task
from stores.strategies.batch_staging import BatchStaging
from stores.strategies.native import NativeStaging
from stores.tasks.stores import store_format


def _shared_layer(patches: Patches, subject: str) -> None:
    """Give readers the layer of the batch that is written to.

    No seam: the batch is a part of a store. Its engine and its readers do not see where a layer is frozen.
    """

    def freeze(self: IndexedBatch, pins: int = 1) -> tuple[Layer, ...]:
        # A copy with its own order: if a reader and the writer change one order at once, the writer may loop for ever.
        shared = []
        for layer in (*self._frozen, self._active):
            shared.append(Layer(layer.staged.writes))
            shared[-1].ranges.update(layer.ranges)
        return tuple(shared)

    patches.replace_inner(IndexedBatch, "freeze", freeze)
    patches.replace_inner(IndexedBatch, "release", lambda self, layers: None)


def _parts_in_sight(patches: Patches, subject: str) -> None:
    """Show readers a copy in parts while it runs.

    No seam: readers of the regular store and of the staging store make the same calls, with and without the mutant.
    """
    patches.replace_inner(BatchStaging, "shown_as_committed", lambda self: nullcontext())


def _nothing_noted(patches: Patches, subject: str) -> None:
    """Write without an entry in the undo log.

    No seam: the undo log is a part of a store. The engine sees a lookup before the write, which also serves metrics.
    """
    patches.replace_inner(NativeStaging, "_note", lambda self, transaction, key: None)


def _tombstone_unchecked(patches: Patches, subject: str) -> None:
    """Accept any checksum of a tombstone in the changelog.

    No seam: a changelog verifies a record between its own query and ``read``.
    """

    def mutated(given: Any, offset: Any, key: Any, value: Any, *rest: Any) -> bool:
        return value is None or checksum.is_sound(given, offset, key, value, *rest)

    patches.replace_inner(sqlite, "is_sound", mutated)


def _version_from_clock(patches: Patches, subject: str) -> None:
    """Give each attempt at a batch the next version, as a clock does.

    No seam: the version follows from the batch inside one function, and the log sees only the result.
    """

    def mutated(plan: Any, batch: Any, newest: Any, location: str) -> tuple[int, int]:
        return (0 if newest is None else newest.version + 1), 0

    patches.replace_inner(query_task, "version_of", mutated)


def _unchecked_version(patches: Patches, subject: str) -> None:
    """Read a file of the changelog of files without a look at its checksum.

    No seam: the log checks and reads a file between two calls of its folder.
    """
    patches.replace_inner(reading, "check", lambda file, what: None)


def _aborted_restored(patches: Patches, subject: str) -> None:
    """Read the records of aborted transactions from Kafka as well.

    No seam: the isolation level is a setting of the client, and the changelog takes no other one.
    """
    # It needs the extra kafka.
    from stores.changelog.kafka import cluster, reader

    patches.replace_inner(reader, "READER", {**cluster.READER, "isolation.level": "read_uncommitted"})


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

MUTANTS = (
    Mutant("shared-layer", "a scan reads the layer that is written to", _shared_layer, (ReaderTrial("indexed-batch"),)),
    Mutant(
        "parts-in-sight",
        "a commit is visible while it is copied in parts",
        _parts_in_sight,
        (ReaderTrial("dual-store"),),
    ),
    Mutant(
        "nothing-noted",
        "a write does not save the old value for an open scan",
        _nothing_noted,
        (ReaderTrial("native"),),
    ),
    Mutant(
        "tombstone-unchecked",
        "the checksum of a tombstone in the changelog is not verified",
        _tombstone_unchecked,
        (LibraryTest("few flipped bits hit a tombstone, and fewer make it delete another key"),),
    ),
    Mutant(
        "version-from-clock",
        "a batch that is tried again gets another version",
        _version_from_clock,
        (QueryTrial("worker killed"),),
    ),
    Mutant(
        "unchecked-version",
        "the checksum of a version's file is not verified",
        _unchecked_version,
        (IoFault("damage", only("changelog-of-files"), "flipped"),),
    ),
    Mutant(
        "aborted-restored",
        "a restore from Kafka writes the records of aborted transactions",
        _aborted_restored,
        (BrokerTrial("task killed", "changelog.before_commit", "wrong"),),
    ),
)
