"""Mutants of a stateful query: its versions, its snapshots, and the order of log and stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from harness.mutants.mutant import QueryDetection, mutant
from harness.mutants.patches import Patches
from stores.changelog.files import Header, PartitionLog, StoreChanges
from stores.spark.local_state import LocalState


@mutant("a store commits a version before the log has it", QueryDetection("worker killed"))
def _state_before_log(patches: Patches, subject: str) -> None:
    take_changes = LocalState.take_changes

    def mutated(self: LocalState) -> dict[str, StoreChanges]:
        version = -1 if self.version is None else self.version
        taken = take_changes(self)
        self.commit(version + 1)
        return taken

    patches.replace(LocalState, "take_changes", mutated)


@mutant("a snapshot has changes of the version after it", QueryDetection("worker killed"))
def _snapshot_of_open_version(patches: Patches, subject: str) -> None:
    write_snapshot = PartitionLog.write_snapshot

    def mutated(self: PartitionLog, header: Header, records: Iterable[Any]) -> None:
        write_snapshot(self, replace(header, version=header.version - 1, id=str(header.previous_id)), records)

    patches.replace(PartitionLog, "write_snapshot", mutated)
