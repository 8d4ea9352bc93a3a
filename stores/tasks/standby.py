"""A standby copy of a task: its stores follow their changelogs while another instance owns the task.

A standby is a restore that does not end. It writes committed records only, with their offsets, and no more than that:
nothing to the changelog, and no producer that would fence the owner. Killed at any time it continues from its offsets.

Source: KIP-441; KIP-892, "Offsets for Consumer Rebalances".
"""

from __future__ import annotations

from contextlib import suppress

from stores.interface import TopicPartition
from stores.tasks.stores.store_group import StoreGroup
from stores.tasks.task_resources import EarlyCommits, TaskResources
from stores.tasks.task_state import Call, TaskLifecycle


class StandbyTask:
    """The standby copy of one task, in the task's folder, which is locked while the copy is open. For one thread.

    It has the persistent stores of the task: a store in memory would be lost when its owner opens it.
    """

    def __init__(
        self, lifecycle: TaskLifecycle, resources: TaskResources, stores: StoreGroup, owner: EarlyCommits
    ) -> None:
        self._lifecycle, self._resources, self._stores, self._owner = lifecycle, resources, stores, owner
        self._open = False

    def open(self) -> None:
        """Lock the folder and open the stores. A store that can't be trusted, or is damaged, is wiped.

        Raises: as ``StreamTask.open``, but for fencing; StoreLockedError if another instance has the folder.
        """
        self._lifecycle.check(Call.OPEN)
        self._lifecycle.rebuild()
        try:
            self._resources.open_stores(self._owner, processes=False)
        except BaseException:
            with suppress(Exception):
                self._close()
            raise
        self._open = True

    def follow(self, max_records: int) -> int:
        """Write up to ``max_records`` further committed records into each store; return the offsets that are left.

        0 is the end of the changelogs, as of this call. Raises: ChangelogTimeoutError, after which it can be called
        again; after other errors close the copy; ChangelogLostError if a changelog is empty and the store is not.
        """
        return self._stores.follow(max_records)

    def offsets(self) -> dict[TopicPartition, int | None]:
        """Return the changelog offset that each store has, None if unknown. No file is read. For any thread."""
        return self._stores.offsets()

    def close(self, *, clean: bool = True) -> None:
        """Close the stores: if ``clean``, with a checkpoint. May be called more than once.

        Raises the first error, after everything is closed.
        """
        if self._open:
            self._close(clean=clean)

    def _close(self, *, clean: bool = False) -> None:
        self._open = False
        self._lifecycle.close()
        self._resources.close(self._owner, clean=clean)
