"""SIGKILL at every failpoint of a backend, and again while it recovers: data and marks are whole, at some commit.

At PROCESS and DISK no acknowledged commit is lost. Source: KIP-844, KIP-892 ("atomic" in "Proposed Changes").

``Script`` is the work of the process that is killed, and says what a store may hold afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stores import Durability, KeyValueStore, RecoveryOutcome, TopicPartition
from stores.failpoints import Part, declared
from stores.tests.conformance.cases import AT_THE_END, Case
from stores.tests.model import Model
from stores.tests.store_process import ProcessDied, StoreProcess


def run(script: Script) -> bool:
    """Work through the script; whether the process was killed."""
    try:
        for step in script.steps():
            step()
    except ProcessDied as died:
        assert died.status == -9
        return True
    return False


def crash_at(case: Case, failpoint: str, path: Path) -> Script | None:
    """Run the script in a process that is killed at ``failpoint``; None if that was never reached."""
    if failpoint != AT_THE_END and (point := declared()[failpoint]).part is Part.RECOVERY and not point.always:
        # The script opens a new store, which has nothing to recover.
        return None
    with StoreProcess() as process:
        process.call("load_backend", case.backend.name)
        if failpoint != AT_THE_END:
            process.call("kill_at", failpoint)
        script = Script(process, case, path)
        return script if run(script) or failpoint == AT_THE_END else None


def crash_while_opening(case: Case, failpoint: str, path: Path) -> bool:
    """Open in a process that is killed at ``failpoint``; whether it was reached."""
    with StoreProcess() as process:
        process.call("load_backend", case.backend.name)
        process.call("kill_at", failpoint)
        try:
            Script(process, case, path).open()
            process.call("close")
        except ProcessDied as died:
            assert died.status == -9
            return True
    return False


def from_the_middle(failpoints: tuple[str, ...]) -> list[str]:
    """The failpoints, those first that lie in the middle: about there a protocol leaves most to recover."""
    return sorted(failpoints, key=lambda failpoint: abs(failpoints.index(failpoint) - len(failpoints) // 2))


def crash_somehow(case: Case, failpoint: str, path: Path) -> tuple[Script, Path] | None:
    """Kill at ``failpoint`` and return what was left where; None if neither work nor a recovery reaches it.

    A failpoint that work never reaches is one of recovery: the first kill is then at one leading there.
    """
    script = crash_at(case, failpoint, path)
    if script is not None:
        return script, path
    for number, other in enumerate(from_the_middle(case.backend.failpoints)):
        other_path = path.with_name(f"{path.name}{number}")
        script = crash_at(case, other, other_path)
        if script is not None and crash_while_opening(case, failpoint, other_path):
            crash_while_opening(case, failpoint, other_path)
            return script, other_path
    return None


def test_a_kill_at_a_failpoint_leaves_some_commit_whole(case: Case, failpoint: str, path: Path) -> None:
    left = crash_somehow(case, failpoint, path)
    if left is None and case.options:
        # With tiny limits everything is spilled: a protocol may have steps for a commit that fits into memory.
        case = replace(case, options={})
        left = crash_somehow(case, failpoint, path.with_name("as it is"))
    assert left is not None, f"nothing leads to {failpoint}"
    script, path = left
    survives_kills = case.durability is not Durability.CHANGELOG
    for _ in range(2):
        with case.open(path) as store:
            script.check(store, survives_kills=survives_kills)
            before = list(store.all())
            store.put(b"after", b"1")
            store.rollback()
            if store.transactional:
                assert list(store.all()) == before
            script.written[b"after"] = {b"1"}
    assert not path.with_name(path.name + ".new").exists()
    with case.open(path) as store:
        store.put(b"after", b"2")
        store.commit({TopicPartition("other", 0): 1})
    with case.open(path) as store:
        assert store.get(b"after") == (b"2" if store.persistent else None)


@pytest.mark.every_durability
@pytest.mark.as_is
def test_a_kill_between_commits_loses_what_was_staged_and_nothing_that_survives_kills(case: Case, path: Path) -> None:
    with StoreProcess() as process:
        script = Script(process, case, path)
        for step in list(script.steps())[:4]:
            step()
        process.call("put", b"key00", b"uncommitted")
        process.call("put", b"staged", b"uncommitted")
        process.call("delete_range", b"key10", None)
        script.written.update({b"staged": {b"uncommitted"}})
        script.written[b"key00"].add(b"uncommitted")
    with case.open(path) as store:
        if store.persistent:
            script.check(store, survives_kills=case.durability is not Durability.CHANGELOG)
        else:
            assert list(store.all()) == []


LOG = TopicPartition("changelog", 3)
MARK = "number"
LARGE = b"x" * (1 << 20)
LARGE_NUMBERS = range(20)


class Script:
    """Acknowledges each commit in ``acknowledged``; ``states`` has the contents by committed offset, the mark too."""

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
        self._process.call("restore", pairs, {LOG: 10}, None, {MARK: b"10"})
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
        self._process.call("set_mark", MARK, b"%d" % offset)
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
        assert store.mark(MARK) == (None if offset is None else b"%d" % offset)
        if survives_kills:
            assert (offset or -1) >= (self.acknowledged or -1), (
                f"{self.acknowledged} was acknowledged, kept is {offset}"
            )
