"""The removal of old snapshots of one store, and of objects that no index names.

An upload relies on the objects of the index that was the newest when it began, and has put others that no index names
yet. A restore reads those of the index that it has chosen. So nothing is removed that became useless only within a time
of grace: neither an index that was among those to keep within it, nor an object that was put within it.

All times are those of the folder's file system, and the present is when the newest index was put. So no clock of a
machine matters, and nothing is removed from a store of which no snapshots are taken any more.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from stores.errors import StoreCorruptedError
from stores.failpoints import Part, declare, reach
from stores.snapshots.index import IndexName
from stores.snapshots.objects import FILES, INDEX, StoreObjects

INDEX_REMOVED = declare(
    "snapshot.index_removed", "an index of an old snapshot is removed, its objects are there", part=Part.CHANGE
)
_log = logging.getLogger(__name__)


class Pruned(NamedTuple):
    """The result of a removal. ``num_bytes`` are those of the objects."""

    num_indexes: int
    num_objects: int
    num_bytes: int


def prune(objects: StoreObjects, keep: int, grace_s: float) -> Pruned:
    """Keep the ``keep`` newest snapshots of a store, and what was in use less than ``grace_s`` ago; remove the rest.

    Raises: StoreUnavailableError.
    """
    put_at_s = objects.times(INDEX)
    before_s = max((put_at_s[name] for name in put_at_s if IndexName.parse(name)), default=0.0) - grace_s
    outdated = outdated_names(put_at_s, keep, before_s)
    for name in outdated:
        objects.remove(INDEX, name)
        reach(INDEX_REMOVED)
    sizes = _unnamed(objects, before_s)
    for name in sizes:
        objects.remove(FILES, name)
    return Pruned(len(outdated), len(sizes), sum(sizes.values()))


def outdated_names(put_at_s: dict[str, float], keep: int, before_s: float) -> list[str]:
    """Return the files among the indexes that are to be removed: those superseded before ``before_s``, and others.

    An index is superseded once ``keep`` others were put after it. That of the highest offset stays: another owner may
    have put snapshots of earlier commits after it.
    """
    by_time = sorted(put_at_s, key=lambda name: (put_at_s[name], name), reverse=True)
    names = [name for name in by_time if IndexName.parse(name)]
    old = [name for newer, name in zip(names, names[keep:], strict=False) if put_at_s[newer] <= before_s]
    # Files that were written aside by a process that was killed.
    strange = [name for name in by_time if not IndexName.parse(name) and put_at_s[name] <= before_s]
    return [name for name in old if name != max(names)] + strange


def _unnamed(objects: StoreObjects, before_s: float) -> dict[str, int]:
    """Return the sizes of objects that no index names and that were put until ``before_s``, by name."""
    put_at_s, sizes = objects.times(FILES), objects.sizes()
    old = {name for name, time_s in put_at_s.items() if time_s <= before_s}
    # After the objects: an index that is put meanwhile names objects of its own, or of an index that is read here.
    for name in objects.indexes() if old else []:
        try:
            old.difference_update(map(str, objects.index(name).parts()))
        except StoreCorruptedError as error:
            # It may be of a newer release.
            _log.warning("no objects are removed, because it is unknown which are in use: %s", error)
            return {}
    return {name: sizes.get(name, 0) for name in sorted(old)}
