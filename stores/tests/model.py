"""A model of a store in plain dicts: the oracle of the tests. It shares no code with ``stores``."""

from __future__ import annotations

from collections.abc import Mapping

from stores.interface import TopicPartition


class Model:
    """A store that sorts a dict at every scan and copies it at every commit."""

    def __init__(self, *, transactional: bool = True, manages_offsets: bool = True) -> None:
        self._transactional, self._manages_offsets = transactional, manages_offsets
        self.committed: dict[bytes, bytes] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.position: dict[TopicPartition, int] = {}
        self.current: dict[bytes, bytes] = {}
        self.staged: dict[bytes, bytes | None] = {}
        self.staged_position: dict[TopicPartition, int] = {}
        self.bounds_bytes = 0

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage one write."""
        if value is None:
            self.current.pop(key, None)
        else:
            self.current[key] = value
        self.staged[key] = value

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Stage a write unless there is a value, which is returned."""
        existing = self.current.get(key)
        if existing is None:
            self.put(key, value)
        return existing

    def delete(self, key: bytes) -> bytes | None:
        """Stage a removal; returns what is removed."""
        existing = self.current.get(key)
        if existing is not None:
            self.put(key, None)
        return existing

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of ``start <= key <= end``."""
        for writes in (self.current, self.staged):
            for key in [key for key in writes if within(key, start, end)]:
                del writes[key]
        self.bounds_bytes += len(start or b"") + len(end or b"")

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The pairs of a range."""
        return sorted(((k, v) for k, v in self.current.items() if within(k, start, end)), reverse=reverse)

    def prefix(self, prefix: bytes, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """The pairs of a prefix."""
        return sorted(((k, v) for k, v in self.current.items() if k.startswith(prefix)), reverse=reverse)

    def committed_pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the committed pairs."""
        return sorted((self.committed if self._transactional else self.current).items())

    def advance_position(self, partition: TopicPartition, offset: int) -> None:
        """Stage a position."""
        self.staged_position[partition] = max(offset, self.staged_position.get(partition, offset))

    def current_position(self) -> dict[TopicPartition, int]:
        """The position with what is staged."""
        position = dict(self.position)
        for partition, offset in self.staged_position.items():
            position[partition] = max(offset, position.get(partition, offset))
        return position

    def commit(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Commit."""
        self.committed = dict(self.current)
        self.position = self.current_position()
        if self._manages_offsets:
            for partition, offset in offsets.items():
                if offset is None:
                    self.offsets.pop(partition, None)
                else:
                    self.offsets[partition] = offset
        self._begin()

    def rollback(self) -> None:
        """Forget what is staged; where nothing is kept apart, what is written stays."""
        if self._transactional:
            self.current = dict(self.committed)
        self._begin()

    def uncommitted_bytes(self) -> tuple[int, int]:
        """The least and the most that a store may report: writes count exactly, bounds of range deletes may count."""
        if not self._transactional:
            return 0, 0
        exact = sum(len(key) + len(value or b"") for key, value in self.staged.items())
        return exact, exact + self.bounds_bytes

    def _begin(self) -> None:
        self.staged, self.staged_position, self.bounds_bytes = {}, {}, 0


def within(key: bytes, start: bytes | None, end: bytes | None) -> bool:
    """Return True if ``start <= key <= end``, where None is open."""
    return (start is None or start <= key) and (end is None or key <= end)
