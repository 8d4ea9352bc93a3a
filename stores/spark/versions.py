"""The version that a batch job makes."""

from __future__ import annotations

from stores.changelog.files import VersionLog
from stores.errors import ConfigError, StoreError, StoreIncompatibleError


def next_version(log: VersionLog, wanted: int | None) -> tuple[int, bool]:
    """Return ``wanted``, or the version after the newest; and True if the log has it already, so that it is repeated.

    Each partition must have the one before.

    Without ``wanted``, the newest must not be that of a streaming query, which could not continue after the job.

    Raises: StoreError if an earlier job has left a version in some partitions only, unless ``wanted`` is that one;
    StoreIncompatibleError for the state of a streaming query; ConfigError if ``wanted`` is neither the newest version
    nor the next.
    """
    newest = [log.partition(number).listing().newest for number in range(log.partitions)]
    reached = [-1 if version is None else version for version in newest]
    last = max(reached)
    done = sum(version == last for version in reached)
    if min(reached) < last - 1:
        raise StoreError(
            f"the partitions in {log.location} are at versions {min(reached)} to {last}: bring the folder back from a "
            "copy"
        )
    if done < len(reached):
        if wanted == last:
            return last, True
        raise StoreError(
            f"only {done} of {len(reached)} partitions in {log.location} have version {last}, because the batch did "
            f"not finish: repeat it with version={last} over the same rows, or let its streaming query go on"
        )
    if wanted is None:
        query = None if last < 0 else log.partition(0).header(last).query
        if query is not None:
            raise StoreIncompatibleError(
                f"the state in {log.location} belongs to the streaming query {query}, which can't continue after a "
                f"batch job: give another folder, or version={last + 1} if that query has ended for good"
            )
        return last + 1, False
    if wanted not in (last, last + 1):
        raise ConfigError(
            f"version {wanted} can't be made in {log.location}, whose newest is {last}: give {last} to repeat it, "
            f"{last + 1} for the next, or none"
        )
    return wanted, wanted == last
