"""A model of versioned stores in plain dicts: the oracle of their tests. It shares no code with ``stores``."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

Versions = list[tuple[Any, int, int | None]]
"""Value, first time, and the time at which it ends."""


class VersionModel:
    """All versions that were ever put. It drops none, and leaves out those before the history in its answers."""

    def __init__(self, retention: int) -> None:
        self.retention = retention
        self.stream_time = -1
        self.late = 0
        self.keys: dict[Any, dict[int, Any]] = {}
        self.committed: tuple[int, dict[Any, dict[int, Any]]] = (-1, {})

    def put(self, key: Any, value: Any, time: int) -> bool:
        """Put a version, None for a deletion; return True if it is the latest one of its key."""
        if time < self.stream_time - self.retention:
            self.late += 1
            return False
        self.stream_time = max(self.stream_time, time)
        self.keys.setdefault(key, {})[time] = value
        return time == max(self.keys[key])

    def commit(self) -> None:
        """Keep everything."""
        self.committed = self.stream_time, deepcopy(self.keys)

    def rollback(self) -> None:
        """Forget what was put since the last commit."""
        self.stream_time, self.keys = self.committed[0], deepcopy(self.committed[1])

    def at(self, key: Any, time: int) -> tuple[Any, int] | None:
        """Return the value that is valid at a time, and its first time."""
        found = [(value, first) for value, first, end in self.all_of(key) if self._is_at(first, end, time)]
        assert len(found) < 2
        return found[0] if found else None

    def _is_at(self, first: int, end: int | None, time: int) -> bool:
        return first <= time and (end is None or (time < end and time >= self.stream_time - self.retention))

    def latest(self) -> list[tuple[Any, tuple[Any, int]]]:
        """Return the latest version of each key that has one, in their order."""
        pairs = ((key, [each for each in self.all_of(key) if each[2] is None]) for key in sorted(self.keys))
        return [(key, last[0][:2]) for key, last in pairs if last]

    def between(self, key: Any, low: int, high: int) -> Versions:
        """Return the versions of a key that are valid at some time from ``low`` to ``high``."""
        start = max(low, self.stream_time - self.retention)
        return [
            (value, first, end)
            for value, first, end in self.all_of(key)
            if low <= high and first <= high and (end is None or (end > start and start <= high))
        ]

    def all_of(self, key: Any) -> Versions:
        """Return the versions of a key, without deletions."""
        versions = self.keys.get(key, {})
        times = sorted(versions)
        ends = [*times[1:], None]
        return [
            (versions[time], time, end) for time, end in zip(times, ends, strict=False) if versions[time] is not None
        ]


def differences(reads: Any, model: VersionModel, keys: list[Any], random: Random) -> list[str]:
    """Ask a store or a view for everything, and return the answers that differ from the model's."""
    last = model.stream_time + 3
    found = []

    def check(asked: str, answer: Any, expected: Any) -> None:
        if answer != expected:
            found.append(f"{asked}: {answer}, not {expected}")

    check("all", list(reads.all()), model.latest())
    check("reverse_all", list(reads.reverse_all()), model.latest()[::-1])
    check("get_many", reads.get_many(keys), [dict(model.latest()).get(key) for key in keys])
    for key in keys:
        check(f"get {key}", reads.get(key), dict(model.latest()).get(key))
        for time in range(max(0, last - 2 * model.retention), last):
            check(f"get {key} at {time}", reads.get(key, time), model.at(key, time))
        check(f"versions of {key}", list(reads.get_versions(key)), model.between(key, 0, last))
        for _ in range(5):
            low, high = random.randint(-1, last), random.randint(-1, last)
            expected = model.between(key, low, high)
            check(f"versions of {key} from {low} to {high}", list(reads.get_versions(key, low, high)), expected)
            backward = list(reads.get_versions(key, low, high, reverse=True))
            check(f"versions of {key} down from {high} to {low}", backward, expected[::-1])
    return found
