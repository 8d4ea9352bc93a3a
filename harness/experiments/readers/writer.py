"""The writer of a trial: it makes random operations on a store, and adds each to the history before."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from harness.checkers.isolation import Versions
from stores.interface import KeyValueStore, TopicPartition

INPUT = TopicPartition("input", 0)
CHANGELOG = TopicPartition("changelog", 0)
KEYS = [bytes([first, second]) for first in b"\x00aA\xfe\xff" for second in b"\x00\x10a\x80\xff"] + [
    b"w%02d" % number for number in range(40)
]
"""Keys at the ends of the bytes' range, where order and prefixes are hardest, and enough for a commit in parts."""
_WEIGHTS = {"put": 55, "delete": 10, "delete_range": 6, "put_all": 8, "commit": 12, "rollback": 4, "pause": 5}


class ReadersWriter:
    """Writes to ``store`` in the thread that opened it; ``position`` counts its operations like input records.

    Keys and values are written to ``written``: ``store`` itself, or a typed store over it, as a map.
    """

    def __init__(
        self, store: KeyValueStore, written: Any, committed: Versions, uncommitted: Versions, random: Random
    ) -> None:
        self._written = written
        self._store, self._committed, self._uncommitted, self._random = store, committed, uncommitted, random
        self._state: dict[bytes, bytes] = {}
        self._kept: dict[bytes, bytes] = {}
        self._position = self._kept_position = -1
        self.operations = self.commits = 0

    def step(self) -> None:
        """Make one operation."""
        self.operations += 1
        kind = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        getattr(self, f"_{kind}")()

    def _put(self) -> None:
        key, value = self._random.choice(KEYS), b"%d" % self.operations
        self._state[key] = value
        self._begin()
        self._written.put(key, value)
        self._end()

    def _delete(self) -> None:
        key = self._random.choice(KEYS)
        self._state.pop(key, None)
        self._begin()
        self._written.delete(key)
        self._end()

    def _delete_range(self) -> None:
        start, end = sorted(self._random.choices(KEYS, k=2))
        low, high = self._random.choice([(start, end)] * 8 + [(None, end), (start, None), (None, None)])
        reached = self._position
        for key in sorted(self._state):
            if (low is None or low <= key) and (high is None or key <= high):
                del self._state[key]
                self._begin_removal(reached)
        self._begin()
        self._written.delete_range(low, high)
        self._end()

    def _begin_removal(self, position: int) -> None:
        """Do nothing: a plain store deletes a range in one step."""

    def _put_all(self) -> None:
        """Begin a version for each pair, because readers of uncommitted data may see each of them."""
        keys = self._random.choices(KEYS, k=self._random.choice([2, 10, 80]))
        pairs = [(key, b"%d-%d" % (self.operations, at)) for at, key in enumerate(keys)]
        reached = self._position
        for key, value in pairs[:-1]:
            self._state[key] = value
            self._uncommitted.begin(self._state, reached)
        self._state.update(pairs[-1:])
        self._begin()
        self._written.put_all(pairs)
        self._end()

    def _commit(self) -> None:
        self.commits += 1
        if self._committed is not self._uncommitted:
            self._committed.begin(self._state, self._position)
        self._store.commit({CHANGELOG: self.commits})
        self._committed.end()
        self._kept, self._kept_position = dict(self._state), self._position

    def _rollback(self) -> None:
        # A store without isolation keeps its writes; its position is reset all the same.
        if self._store.transactional:
            self._state = dict(self._kept)
        self._position = self._kept_position
        self._uncommitted.begin(self._state, self._position)
        self._store.rollback()
        self._uncommitted.end()

    def _pause(self) -> None:
        """Give the readers time to finish their queries."""
        time.sleep(self._random.choice([0.0, 1e-3]))

    def _begin(self) -> None:
        self._position = self.operations
        self._uncommitted.begin(self._state, self._position)

    def _end(self) -> None:
        self._store.advance_position(INPUT, self._position)
        self._uncommitted.end()


class TypedWriter(ReadersWriter):
    """Writes to a typed store, and commits the store below it. A range is deleted key by key."""

    def _begin_removal(self, position: int) -> None:
        self._uncommitted.begin(self._state, position)
