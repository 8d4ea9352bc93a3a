"""The split of a store's data into two families, one for each record format, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stores.engines.families import BOTH, FAMILIES, SECOND, SplitEngine, split_or_whole
from stores.errors import CommitFailedError, StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.strategies.staging import Staging

SPLIT_BEFORE_WRITE = declare(
    "split.before_write", "a second data family exists, and no meta entry says that it is in use", part=Part.CHANGE
)
SPLIT_AFTER_WRITE = declare(
    "split.after_write", "the records are of an older format, new ones have their own family", part=Part.CHANGE
)
END_SPLIT_BEFORE_WRITE = declare(
    "split.end.before_write", "opening found the last record of an older format gone", part=Part.CHANGE
)
END_SPLIT_AFTER_WRITE = declare(
    "split.end.after_write", "the second data family has all data, and the first is unused", part=Part.CHANGE
)
SPLIT_FAILPOINTS = (SPLIT_BEFORE_WRITE, SPLIT_AFTER_WRITE, END_SPLIT_BEFORE_WRITE, END_SPLIT_AFTER_WRITE)
"""Failpoints that only an upgrade of a store's records reaches."""


def split(staging: Staging, meta: Mapping[bytes, bytes | None]) -> None:
    """Add a second data family for new records, and write ``meta`` with it. Nothing is staged.

    Raises: CommitFailedError.
    """
    engine = staging.engine
    engine.add_family()
    reach(SPLIT_BEFORE_WRITE)
    staging.write_at_once([], {**meta, FAMILIES: BOTH})
    reach(SPLIT_AFTER_WRITE)
    engine.select_families()
    staging.use(split_or_whole(engine))
    staging.access.max_key_bytes += 1


def end_split(staging: Staging, path: Path) -> bool:
    """Make the store whole if its last record of the older format is gone. Return whether it was.

    Raises: StoreUnavailableError.
    """
    engine = staging.engine
    if not isinstance(engine, SplitEngine) or engine.has_old():
        return False
    try:
        reach(END_SPLIT_BEFORE_WRITE)
        staging.write_at_once([], {FAMILIES: SECOND})
    except CommitFailedError as error:
        raise StoreUnavailableError(
            f"the upgrade of {path} could not be ended: {error}. Remove the cause and open the store again"
        ) from error
    reach(END_SPLIT_AFTER_WRITE)
    engine.engine.select_families()
    staging.use(engine.engine)
    staging.access.max_key_bytes -= 1
    return True
