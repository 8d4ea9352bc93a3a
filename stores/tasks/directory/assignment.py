"""Local stores and their offsets by task, from paths and checkpoint files alone, to assign tasks to machines.

Source: KIP-816, "Alternative 1".
"""

from __future__ import annotations

from collections import defaultdict
from os import PathLike

from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import TopicPartition
from stores.tasks.directory.relocation_journal import offsets_of, owners
from stores.tasks.directory.state_directory import StateDirectory
from stores.tasks.directory.store_places import own_stores, places
from stores.tasks.identifier import Home, StorePartition, TaskId
from stores.tasks.topology import Topology


def stored_offsets(
    state_dir: str | PathLike[str], topology: Topology, *, application_id: str | None = None
) -> dict[TaskId, dict[str, dict[TopicPartition, int]]]:
    """Return the known changelog offset of each local store, by task of ``topology``, in order, and by store.

    It finds stores in either layout, and where an earlier topology has left them. Stores that ``topology`` does not
    name are left out. A store without a known offset has an empty entry. ``offset_sum`` of a task's offsets is the
    progress of its copy. Offsets are those of the tasks' last opening, or closing, if that was later. No store is
    opened. ``application_id`` is as for ``relocate``.

    Raises: TypeError; StoreUnavailableError.
    """
    if not isinstance(topology, Topology):
        raise TypeError(f"a topology is a Topology, not {type(topology).__name__}")
    state = StateDirectory(checked_path(state_dir))
    found: defaultdict[TaskId, dict[str, dict[TopicPartition, int]]] = defaultdict(dict)
    with translated_system_errors(state.path):
        if not state.path.is_dir():
            return {}
        homes: dict[Home, set[str]] = {
            task_id: {place.store for place in places(state.folder(task_id))} for task_id in state.tasks()
        }
        homes |= {home: {home.store} for home, _ in own_stores(state.path)}
        for home, stores in homes.items():
            offsets = offsets_of(state.path / str(home))
            for store in stores:
                number = topology.subtopology_of(store)
                if number is not None:
                    known = set(topology.stores | stores)
                    found[TaskId(number, home.partition)].setdefault(store, {}).update(
                        (partition, offset)
                        for partition, offset in offsets.items()
                        if partition.partition == home.partition
                        and (
                            isinstance(home, StorePartition)
                            or owners(partition.topic, known, application_id) == [store]
                        )
                    )
    return {task_id: dict(sorted(stores.items())) for task_id, stores in sorted(found.items())}
