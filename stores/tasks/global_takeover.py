"""The takeover of a global store that Kafka Streams has left, with the offsets of all partitions of its topic.

The checkpoint file in the folder ``global`` has the offset of the next record of each partition. A partition without
one is read from its start.

Source: KIP-99; Kafka Streams 4.1, ``GlobalStateManagerImpl``, ``GlobalStateUpdateTask``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stores.errors import StoreCorruptedError, TaskCorruptedError
from stores.files.plain_files import remove_durably, translated_system_errors
from stores.interface import TopicPartition
from stores.registry import backend_named
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.state_directory import CHECKPOINT_FILE
from stores.tasks.directory.store_places import ENGINE_FOLDER
from stores.tasks.directory.task_files import FollowingStore
from stores.tasks.stores.left_store import End
from stores.tasks.stores.takeover import Takeover

_log = logging.getLogger(__name__)


class GlobalTakeover(Takeover):
    """The takeover of a global store by the one of ``plan``, which is at ``FOLDER/ENGINE/NAME``."""

    def __init__(self, plan: FollowingStore) -> None:
        self._folder_path = folder = plan.path.parents[1]
        super().__init__(plan, folder / ENGINE_FOLDER / plan.name)
        self._checkpoint = CheckpointFile(folder / CHECKPOINT_FILE)
        self._starts: Mapping[TopicPartition, int] = {}

    def run(self, starts: Mapping[TopicPartition, int]) -> str | None:
        """Take the store over if Kafka Streams has left one. ``starts`` has the first offset of each partition.

        Return the reason if it was removed instead, to be read whole. Raises: StoreIncompatibleError if only another
        configuration can take it over; StoreLockedError if Kafka Streams has it open; StoreUnavailableError;
        ChangelogError. Kafka's folder is then as it was.
        """
        if not backend_named(self._config.backend).persistent:
            return None
        self._starts, reason = starts, None
        try:
            self._take()
        except (StoreCorruptedError, TaskCorruptedError) as error:
            reason = str(error)
            _log.warning("global store %r is to be read whole: %s", self._name, reason)
            self.discard()
        # What they say is in the store now, or is gone with that of Kafka Streams.
        for partition in starts:
            self._checkpoint.forget(partition)
        position = self._folder_path / f"{self._name}.position"
        with translated_system_errors(position):
            remove_durably(position)
        return reason

    def _end(self, kept: End | None) -> End:
        known = self._checkpoint.known() if kept is None else kept.offsets
        following = {partition: at for partition, at in known.items() if partition in self._starts}
        if not following:
            where = "the checkpoint file" if kept is None else "its database"
            raise self._refused(f"{where} has no offset of its topic")
        for partition, at in following.items():
            end = self._changelog.end_offset(partition)
            if not self._starts[partition] <= at <= end:
                raise self._refused(
                    f"it goes on at offset {at} of {partition.topic}-{partition.partition}, which can be read from "
                    f"{self._starts[partition]} to {end}"
                )
        offsets = {partition: at - 1 for partition, at in following.items() if at}
        return End(offsets, offsets)

    def _log_lost(self) -> None:
        return None
