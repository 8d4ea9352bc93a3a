"""As ``machine``, for a store in another process, which SIGKILL ends as one of the rules.

What was acknowledged and must survive, survives; else the store is at one earlier commit, whole, and the model
follows it there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from stores import Durability, TopicPartition
from stores.tests.conformance.cases import Case
from stores.tests.conformance.machine import BOUNDS, KEYS, VALUES
from stores.tests.model import Model
from stores.tests.quick_folder import QUICK_FOLDER
from stores.tests.store_process import StoreProcess

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
            # Nothing is promised after a kill; what is there is what there is.
            assert pairs == self.model.scan() or not survives
            self.model.current = dict(pairs)
            return
        if survives:
            assert offset == self.model.offsets.get(LOG)
        assert dict(pairs) == self.history[offset]
        self.model.committed, self.model.current = dict(pairs), dict(pairs)
        self.model.offsets = {} if offset is None else {LOG: offset}
        self.commits = offset or 0
