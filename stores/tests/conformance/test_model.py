"""Every backend against a model of it, by Hypothesis: in this process, and in one that is killed.

More examples with ``--hypothesis-profile=long``; the seed stands at the end of a run that
fails. Shrinking what failed may take minutes.

Scans are compared at once, and held open across whatever comes next, to be drained and compared later. A killed store
keeps what was acknowledged and must survive; else it is at one earlier commit, whole, and the model follows it there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stores import Durability, IsolationLevel, KeyValueStore, StoreClosedError, TopicPartition
from stores.tests.conformance.cases import Case
from stores.tests.model import Model
from stores.tests.quick_folder import QUICK_FOLDER
from stores.tests.store_process import StoreProcess


@pytest.mark.timeout(1800)
def test_a_store_never_differs_from_its_model(case: Case) -> None:
    machine = type("Machine", (StoreMachine,), {"case": case})
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=40))


@pytest.mark.kills
@pytest.mark.timeout(1800)
def test_a_store_that_is_killed_goes_on_from_a_commit(case: Case) -> None:
    machine = type("Machine", (KillMachine,), {"case": case})
    # A process takes a fraction of a second to start: one try where the other machine has ten.
    examples = max(1, settings().max_examples // 10)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=12))


# Few bytes, so that keys meet; at the ends of their range, where order and prefixes are hardest.
KEYS = st.binary(min_size=1, max_size=3).map(lambda raw: bytes(b"\x00a\xfe\xff"[byte % 4] for byte in raw))
BOUNDS = st.none() | KEYS | st.just(b"")
VALUES = st.binary(max_size=3) | st.binary(min_size=40, max_size=60)
PARTITIONS = st.sampled_from([TopicPartition("changelog", 0), TopicPartition("changelog", 1), TopicPartition("b", 0)])
HELD_AT_MOST = 4


class StoreMachine(RuleBasedStateMachine):
    """Rules of one store in this process. A subclass names the case."""

    case: ClassVar[Case]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(dir=QUICK_FOLDER))
        self.path = self.folder / "store"
        self.store: KeyValueStore = self.case.open(self.path)
        self.model = self.new_model()
        self.held: list[tuple[Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = []
        self.next_offset = 0

    def new_model(self) -> Model:
        """An empty model of what the backend says it is."""
        return Model(transactional=self.store.transactional, manages_offsets=self.store.manages_offsets)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize(pairs=st.lists(st.tuples(KEYS, VALUES), max_size=8))
    def begin_with(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self.put_all(pairs)
        self.commit(None, {})

    @rule(key=KEYS, value=st.none() | VALUES)
    def put(self, key: bytes, value: bytes | None) -> None:
        self.store.put(key, value)
        self.model.put(key, value)

    @rule(pairs=st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=5))
    def put_all(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        self.store.put_all(pairs)
        for key, value in pairs:
            self.model.put(key, value)

    @rule(key=KEYS, value=VALUES)
    def put_if_absent(self, key: bytes, value: bytes) -> None:
        assert self.store.put_if_absent(key, value) == self.model.put_if_absent(key, value)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        assert self.store.delete(key) == self.model.delete(key)

    @rule(start=BOUNDS, end=BOUNDS)
    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self.store.delete_range(start, end)
        self.model.delete_range(start, end)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def get(self, keys: list[bytes]) -> None:
        expected = [self.model.current.get(key) for key in keys]
        assert self.store.get_many(keys) == expected
        assert self.store.get(keys[0]) == expected[0]
        assert self.store.read_only(IsolationLevel.READ_UNCOMMITTED).get(keys[0]) == expected[0]
        assert self.store.read_only().get(keys[0]) == dict(self.model.committed_pairs()).get(keys[0])

    @rule(start=BOUNDS, end=BOUNDS, reverse=st.booleans(), hold=st.booleans())
    def scan_range(self, start: bytes | None, end: bytes | None, reverse: bool, hold: bool) -> None:
        scan = self.store.reverse_range(start, end) if reverse else self.store.range(start, end)
        self.compare(scan, self.model.scan(start, end, reverse=reverse), hold=hold)

    @rule(prefix=KEYS | st.just(b""), reverse=st.booleans(), hold=st.booleans())
    def scan_prefix(self, prefix: bytes, reverse: bool, hold: bool) -> None:
        scan = self.store.reverse_prefix_scan(prefix) if reverse else self.store.prefix_scan(prefix)
        self.compare(scan, self.model.prefix(prefix, reverse=reverse), hold=hold)

    @rule(hold=st.booleans())
    def scan_committed(self, hold: bool) -> None:
        self.compare(self.store.read_only().all(), self.model.committed_pairs(), hold=hold)

    def compare(self, scan: Any, expected: list[tuple[bytes, bytes]], *, hold: bool) -> None:
        """Drain a scan now, or begin it and hold it."""
        if not hold:
            assert list(scan) == expected
        elif len(self.held) < HELD_AT_MOST:
            if expected and len(self.held) % 2:
                assert next(scan) == expected[0]
                expected = expected[1:]
            self.held.append((scan, expected))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drain_a_held_scan(self, data: st.DataObject) -> None:
        scan, expected = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        assert list(scan) == expected

    @rule(partition=PARTITIONS, offset=st.integers(0, 50))
    def advance_position(self, partition: TopicPartition, offset: int) -> None:
        self.store.advance_position(partition, offset)
        self.model.advance_position(partition, offset)

    @rule(partition=st.none() | PARTITIONS, clears=st.booleans())
    def commit_with_offset(self, partition: TopicPartition | None, clears: bool) -> None:
        offsets = {} if partition is None else {partition: None if clears else self.next_offset}
        self.next_offset += 1
        self.commit(None, offsets)

    def commit(self, _: None, offsets: dict[TopicPartition, int | None]) -> None:
        """Commit both."""
        self.store.commit(offsets)
        self.model.commit(offsets)

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.model.rollback()

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        for scan, _ in self.held:
            try:
                next(scan)
            except StoreClosedError:
                continue
            raise AssertionError("a scan outlived its store")
        self.held.clear()
        self.store = self.case.open(self.path)
        if self.store.persistent:
            self.model.rollback()
            if not self.store.manages_offsets:
                self.model.position = {}
        else:
            self.model = self.new_model()

    @invariant()
    def uncommitted_bytes_are_exact(self) -> None:
        least, most = self.model.uncommitted_bytes()
        assert least <= self.store.approximate_num_uncommitted_bytes() <= most

    @invariant()
    def offsets_and_position_are_those_of_the_model(self) -> None:
        assert self.store.recover().offsets == self.model.offsets
        assert self.store.position(IsolationLevel.READ_UNCOMMITTED) == self.model.current_position()
        if self.store.transactional:
            assert self.store.position(IsolationLevel.READ_COMMITTED) == self.model.position


LOG = TopicPartition("changelog", 0)


class KillMachine(RuleBasedStateMachine):
    """Rules of one store in another process. A subclass names the case."""

    case: ClassVar[Case]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(dir=QUICK_FOLDER))
        self.path = self.folder / "store"
        self.commits = 0
        self.process = StoreProcess()
        self.open()
        self.model = self.new_model()
        self.history: dict[int | None, dict[bytes, bytes]] = {None: {}}

    def open(self) -> None:
        """Open the store in the process."""
        self.process.call("open", self.case.backend.name, self.path, self.case.durability, self.case.options)

    def new_model(self) -> Model:
        """An empty model of what the backend says it is."""
        self.transactional = self.process.call("get_fact", "transactional")
        return Model(transactional=self.transactional, manages_offsets=self.process.call("get_fact", "manages_offsets"))

    def teardown(self) -> None:
        self.process.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    @rule(pairs=st.lists(st.tuples(KEYS, st.none() | VALUES), min_size=1, max_size=8))
    def put_all(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        self.process.call("put_all", pairs)
        for key, value in pairs:
            self.model.put(key, value)

    @rule(start=BOUNDS, end=BOUNDS)
    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self.process.call("delete_range", start, end)
        self.model.delete_range(start, end)

    @rule()
    def scan(self) -> None:
        assert self.process.call("scan") == self.model.scan()

    @rule()
    def commit(self) -> None:
        self.commits += 1
        self.process.call("commit", {LOG: self.commits})
        self.model.commit({LOG: self.commits})
        self.history[self.commits] = dict(self.model.committed)

    @rule()
    def rollback(self) -> None:
        self.process.call("rollback")
        self.model.rollback()

    @rule()
    def close_and_reopen(self) -> None:
        self.process.call("close")
        self.reopen(survives=True)

    @rule()
    def kill_and_reopen(self) -> None:
        self.process.__exit__(None, None, None)
        self.process = StoreProcess()
        self.reopen(survives=self.case.durability is not Durability.CHANGELOG)

    def reopen(self, *, survives: bool) -> None:
        """Open again and compare; what does not survive moves the model back."""
        self.open()
        if not self.case.backend.persistent:
            self.model, self.history = self.new_model(), {None: {}}
        pairs, offset = self.process.call("scan"), self.process.call("committed_offset", LOG)
        self.model.rollback()
        if not self.transactional:
            # Nothing is promised after a kill: the store may have any of its content.
            assert pairs == self.model.scan() or not survives
            self.model.current = dict(pairs)
            return
        if survives:
            assert offset == self.model.offsets.get(LOG)
        assert dict(pairs) == self.history[offset]
        self.model.committed, self.model.current = dict(pairs), dict(pairs)
        self.model.offsets = {} if offset is None else {LOG: offset}
        self.commits = offset or 0
