"""Checks of a caller's arguments to a changelog, and errors that all changelogs raise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from stores.changelog.interface import Changelog, Headers
from stores.contract.arguments import check_type, checked_headers
from stores.errors import OffsetOutOfRangeError, ProducerFencedError
from stores.interface import TopicPartition
from stores.strategies.access import check_offset

TIMESTAMP_MS_MAX = 2**63 - 1


def check_topic(topic: object, partitions: object) -> None:
    """Check a topic's name and number of partitions. Raises: TypeError, ValueError."""
    check_name("topic's name", topic)
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise TypeError(f"a number of partitions is an int, not {type(partitions).__name__}")
    if partitions < 1:
        raise ValueError(f"a topic has 1 or more partitions, not {partitions}")


def check_name(what: str, name: object) -> None:
    """Check a name: it is not empty, and can be encoded. Raises: TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a {what} is a str, not {type(name).__name__}")
    if not name:
        raise ValueError(f"a {what} has at least one character")
    name.encode()


def checked_partition(partition: object) -> TopicPartition:
    """Return ``partition`` as a TopicPartition. Raises: TypeError."""
    if type(partition) is TopicPartition and type(partition[0]) is str:
        return partition
    if not isinstance(partition, tuple) or len(partition) != 2 or not isinstance(partition[0], str):
        raise TypeError(f"a record belongs to a TopicPartition, not to {partition!r}")
    return TopicPartition(*partition)


def check_record(key: object, value: object, timestamp_ms: object, headers: Headers) -> Headers:
    """Check a record that is about to be sent; return its headers as a tuple of pairs.

    Raises: TypeError, ValueError, also as ``checked_headers``.
    """
    for what, part in (("key", key), ("value", value)):
        if part is not None and not isinstance(part, bytes):
            raise TypeError(f"a {what} is bytes or None, not {type(part).__name__}")
    if not isinstance(timestamp_ms, int):
        raise TypeError(f"a timestamp is a whole number of milliseconds, not {type(timestamp_ms).__name__}")
    if not -1 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise ValueError(f"timestamp {timestamp_ms} is out of range: -1 or more milliseconds since 1970")
    return checked_headers(headers)


def check_columns(
    keys: Sequence[object], values: Sequence[object], timestamps_ms: Sequence[int], headers: Sequence[Headers] | None
) -> list[Headers] | None:
    """Check records that are about to be sent, by their columns; return the headers as ``check_record`` does.

    Raises: as ``check_record``; ValueError for columns of different lengths.
    """
    count = len(keys)
    if len(values) != count or len(timestamps_ms) != count or (headers is not None and len(headers) != count):
        raise ValueError(
            f"the columns of some records have one length: there are {count} keys, {len(values)} values, "
            f"{len(timestamps_ms)} timestamps_ms and {'no' if headers is None else len(headers)} headers"
        )
    if (
        headers is None
        and {*map(type, keys), *map(type, values)} <= _KEYS_AND_VALUES
        and set(map(type, timestamps_ms)) <= _TIMES
        and (not count or -1 <= min(timestamps_ms) <= max(timestamps_ms) <= TIMESTAMP_MS_MAX)
    ):
        return None
    each_headers = [()] * len(keys) if headers is None else headers
    checked = list(map(check_record, keys, values, timestamps_ms, each_headers))
    return None if headers is None else checked


_KEYS_AND_VALUES, _TIMES = {bytes, type(None)}, {int}


def checked_group_offsets(group: str, offsets: object) -> dict[tuple[str, TopicPartition], int]:
    """Return the offsets of a consumer group, by group and partition. Raises: TypeError, ValueError."""
    if type(offsets) is not dict and not isinstance(offsets, Mapping):
        raise TypeError(
            f"offsets of a group are a mapping of TopicPartition to offset, not {type(offsets).__name__}: write "
            "send_offsets('group', {TopicPartition('topic', 0): 41})"
        )
    checked = {}
    for partition, offset in offsets.items():
        check_offset(offset)
        checked[group, checked_partition(partition)] = offset
    return checked


def check_readable(
    partition: TopicPartition,
    from_offset: int,
    start: int,
    end: int,
    written_end: Callable[[TopicPartition], int],
) -> None:
    """Check that a log from ``start`` to ``end`` has ``from_offset``, or may have it once open transactions end.

    Raises: TypeError, OffsetOutOfRangeError.
    """
    if not isinstance(from_offset, int):
        raise TypeError(f"an offset is an int, not {type(from_offset).__name__}")
    if from_offset < start or (from_offset > end and from_offset > written_end(partition)):
        raise OffsetOutOfRangeError(f"{partition} can be read from {start} to {end}, not from {from_offset}")


def check_truncation(partition: TopicPartition, before_offset: int, start: int, end: int) -> None:
    """Check that a log from ``start`` to ``end`` can be truncated there. Raises: TypeError, ValueError."""
    if not isinstance(before_offset, int):
        raise TypeError(f"an offset is an int, not {type(before_offset).__name__}")
    if not start <= before_offset <= end:
        raise ValueError(f"{partition} can be truncated from {start} to {end}, not to {before_offset}")


def fenced(transactional_id: str) -> ProducerFencedError:
    """Return the error for a producer whose epoch is not the newest. Source: KIP-98, zombie fencing."""
    return ProducerFencedError(
        f"a newer producer has taken the transactional ID {transactional_id!r}: "
        "stop this instance, because another one owns the task now",
        transactional_id,
    )


def of_partitions(
    offsets: Mapping[TopicPartition, int], partitions: Collection[TopicPartition] | None
) -> dict[TopicPartition, int]:
    """Return the offsets of these partitions, or all if ``partitions`` is None. Raises: TypeError."""
    if partitions is None:
        return dict(offsets)
    checked = map(checked_partition, partitions)
    return {partition: offsets[partition] for partition in checked if partition in offsets}


def check_changelog(changelog: object) -> None:
    """Check the type of a changelog. Raises: TypeError."""
    check_type(changelog, Changelog, "changelog is a Changelog", ": open one first, for example SqliteChangelog(path)")
