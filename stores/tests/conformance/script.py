"""A fixed piece of work for a process that is going to be killed, and what a store may hold afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from stores import KeyValueStore, RecoveryOutcome, TopicPartition
from stores.tests.conformance.cases import Case
from stores.tests.model import Model
from stores.tests.store_process import StoreProcess

LOG = TopicPartition("changelog", 3)
LARGE = b"x" * (1 << 20)
LARGE_NUMBERS = range(20)


class Script:
    """Acknowledges each commit in ``acknowledged``; ``states`` has the contents by committed offset."""

    def __init__(self, process: StoreProcess, case: Case, path: Path) -> None:
        self._process, self._case, self._path = process, case, path
        self._model = Model()
        self.acknowledged: int | None = None
        self.states: dict[int | None, dict[bytes, bytes]] = {None: {}}
        self.written: dict[bytes, set[bytes]] = {}

    def steps(self) -> Iterator[Callable[[], None]]:
        """Opening, a restore, some small transactions with every kind of write, a large one."""
        yield self.open
        yield self._restore
        for number in range(3):
            yield lambda number=number: self._transaction(number)  # type: ignore[misc]
        yield self._large_transaction

    def open(self) -> None:
        """Open the store in the process."""
        self._process.call("open", self._case.backend.name, self._path, self._case.durability, self._case.options)

    def _restore(self) -> None:
        pairs = [(b"restored%d" % number, b"r") for number in range(10)]
        for key, value in pairs:
            self._put_in_model(key, value)
        self._about_to_commit(10)
        self._process.call("restore", pairs, {LOG: 10})
        self.acknowledged = 10

    def _transaction(self, number: int) -> None:
        for key in range(20):
            self._put(b"key%02d" % key, b"%d" % number * 20)
        self._process.call("delete_range", b"key05", b"key%02d" % (6 + number))
        self._model.delete_range(b"key05", b"key%02d" % (6 + number))
        self._put(b"key06", b"back%d" % number)
        self._put(b"restored%d" % number, None)
        self._commit(20 + number)

    def _large_transaction(self) -> None:
        self._process.call("put_many", LARGE_NUMBERS.start, LARGE_NUMBERS.stop, LARGE)
        for number in LARGE_NUMBERS:
            self._put_in_model(b"%08d" % number, LARGE)
        self._commit(30)

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._put_in_model(key, value)
        self._process.call("put", key, value)

    def _put_in_model(self, key: bytes, value: bytes | None) -> None:
        self._model.put(key, value)
        self.written.setdefault(key, set()).update(() if value is None else (value,))

    def _commit(self, offset: int) -> None:
        self._about_to_commit(offset)
        self._process.call("commit", {LOG: offset})
        self.acknowledged = offset

    def _about_to_commit(self, offset: int) -> None:
        self._model.commit({LOG: offset})
        self.states[offset] = dict(self._model.committed)

    def check(self, store: KeyValueStore, *, survives_kills: bool) -> None:
        """Assert that an opened store holds what it may."""
        pairs = dict(store.all())
        assert list(store.reverse_all()) == sorted(pairs.items(), reverse=True)
        assert isinstance(store.recover().outcome, RecoveryOutcome)
        if not store.transactional:
            # Nothing is promised but that no value was made up.
            assert all(value in self.written[key] for key, value in pairs.items())
            return
        offset = store.committed_offset(LOG)
        assert pairs == self.states[offset], f"the data are not those of offset {offset}"
        if survives_kills:
            assert (offset or -1) >= (self.acknowledged or -1), (
                f"{self.acknowledged} was acknowledged, kept is {offset}"
            )
