"""Stream tasks: an embedded changelog, stores, a checkpoint file, and their folder. Each commit is one input record.

Some tasks have stores of two engines. The changelog has the case's durability level, or PROCESS at CHANGELOG, which it
does not support. The stores of the second engine have the case's level, those of the first CHANGELOG. Each engine has
one store of bytes. The first engine also has windows, the second sessions, and some of their records expire with each
commit. After any fault, opening the task must lead to the state of the changelog. The first store gets more records per
commit than the second, so that their changelogs' offsets differ.

Another task has such stores and punctuators, by stream time and by wall clock. Each writes to every store and to an
output. The calls by stream time follow from the committed records. The calls by wall clock do not: the clock's schedule
starts over when the task is opened. For both kinds, stores and outputs must agree.

The store of a third one is upgraded in the background twice: a new store is built beside it, and swapped. Up to the
fourth commit the task's function uses the old format. Then the task is opened with the new format, which swaps the
stores. From the eighth commit on the function uses the next format, through a proxy. The swap then happens at a commit
of the running task. Its changelog is durable at every level, because only the two stores are under test.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiments.iofaults.subjects.store_changes import BACKENDS, stamped, unstamped, upgrade_to
from harness.experiments.iofaults.subjects.subject import COMMITS, NAME, Subject, under_pressure
from harness.experiments.iofaults.workload import (
    NUMBER_KEY,
    PASSING_KINDS,
    IoChange,
    State,
    passing_changes,
    passing_place,
    with_passing,
)
from harness.mutants.inner_names import upgrade_in_steps
from harness.typed_maps import PLAIN, as_map, record_kind
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.errors import StoreError
from stores.files.plain_files import make_folder, translated_system_errors
from stores.interface import Durability, TopicPartition
from stores.settings import Upgrade, UpgradeMode
from stores.tasks import (
    NO_INTERVAL,
    PunctuationType,
    SharedResources,
    StreamTask,
    TaskContext,
    TaskId,
    TaskSettings,
)

PAIRS: Mapping[str, tuple[str, str]] = {
    "stream-task": ("rocksdb-direct", "sqlite-native"),
    "task-rocksdb-lmdb": ("rocksdb-indexed-batch", "lmdb-native"),
    "task-dual-sqlite": ("rocksdb-dual-store", "sqlite-indexed-batch"),
    "task-lmdb-sqlite": ("lmdb-indexed-batch", "sqlite-native"),
}
"""The backends of the stores, by the task's name: each engine and strategy beside another engine."""
PUNCTUATED = ("rocksdb-indexed-batch", "sqlite-native")
_APPLICATION = "writer"
_PASSING_KEY = b"passing"
_STREAM, _WALL = b"by stream time", b"by wall clock"
_OUTPUT = TopicPartition("punctuated", 0)
_RECORD_MS, _STREAM_MS = 10, 30
"""The time between the timestamps of two commits' records, and between two calls by stream time."""
_WALL_MS = 2_000
"""The time between two calls by wall clock; each commit advances the clock by a second."""
_SWAPPED_AT, _PROXIED_FROM = 4, 8
"""The commits at which the task is opened again: to swap, and to begin the second upgrade."""
_STEP_RECORDS = 8
"""The records of one upgrade step: so few that an upgrade takes several steps."""


class TaskSubject(Subject):
    """A task of one input partition."""

    log: SqliteChangelog
    task: StreamTask

    def __init__(self, root: Path, level: Durability, log_level: Durability) -> None:
        super().__init__(root, level)
        self._log_level = log_level
        self._made: Sequence[IoChange] = ()
        self._verifies = False

    @abstractmethod
    def stores(self) -> Mapping[str, StoreConfig]:
        """Return the task's stores; its changelog is open."""

    @abstractmethod
    def process(self, record: Record, context: TaskContext) -> None:
        """Make the changes of a commit."""

    def arguments(self) -> Mapping[str, Any]:
        """Return further arguments for the task."""
        return {}

    @property
    def number(self) -> int:
        """The number of the last commit."""
        return self.log.committed_offsets(_APPLICATION).get(COMMITS, 0)

    def open(self) -> int | None:
        with translated_system_errors(self.path):
            make_folder(self.path)
        self.log = SqliteChangelog(self.path / "log", self._log_level)
        self.closing.callback(self.log.close)
        self.log.create_topic(COMMITS.topic)
        self.task = StreamTask(
            _APPLICATION,
            TaskId(0, COMMITS.partition),
            state_dir=self.path / "state",
            changelog=self.log,
            stores=self.stores(),
            process=self.process,
            inputs=[COMMITS],
            settings=TaskSettings(commit_interval_ms=NO_INTERVAL, verify_stores=self._verifies),
            **self.arguments(),
        )
        self.closing.callback(self.task.close)
        self.task.open()
        return self.number

    def commit(self, number: int) -> None:
        self.task.commit()

    def verify(self) -> None:
        self.log.verify()
        # A task restores its corrupt stores itself.
        self._verifies = True
        self.close()
        self.open()

    def wipe(self) -> None:
        # A task wipes its stores itself, so this error means that the changelog is corrupt.
        shutil.rmtree(self.path, ignore_errors=True)

    def must_reopen(self, error: StoreError) -> bool:
        # The staged writes were rolled back.
        return True


class TwoEnginesSubject(TaskSubject):
    """A task that makes the same changes in stores of two engines."""

    def __init__(self, root: Path, level: Durability, backends: tuple[str, str]) -> None:
        super().__init__(root, level, max(level, Durability.PROCESS, key=list(Durability).index))
        levels = dict(zip(backends, (Durability.CHANGELOG, level), strict=True))
        plain = {name: StoreConfig(name, levels[name], options=under_pressure(name)) for name in backends}
        self._kinds = {
            **dict.fromkeys(backends, PLAIN),
            **{f"{kind}s": kind for kind in PASSING_KINDS},
        }
        self._stores = {
            **plain,
            **{
                f"{kind}s": replace(plain[name], records=record_kind(kind))
                for kind, name in zip(PASSING_KINDS, backends, strict=True)
            },
        }
        self._passing: State = {}
        """The additional pairs for stores with a retention."""

    def stores(self) -> Mapping[str, StoreConfig]:
        return self._stores

    def _timestamp_ms(self, number: int) -> int:
        """Return the timestamp of the record at offset ``number``."""
        return -1

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        self._made, self._passing = made, passing_changes(int(after[NUMBER_KEY]))
        number = self.number
        self.task.process(COMMITS, Record(number, b"commit", b"number", self._timestamp_ms(number)))

    def process(self, record: Record, context: TaskContext) -> None:
        for number, (name, store) in enumerate(self._maps(context.store).items()):
            if not number:
                store.put(_PASSING_KEY, record.value)
                store.put(_PASSING_KEY, None)
            if self._kinds[name] in PASSING_KINDS:
                store.put_all(self._passing.items())
            for change in self._made:
                if change.end is not None:
                    store.delete_range(change.key, change.end)
                else:
                    store.put(change.key, change.value)

    def _maps(self, store: Callable[[str], Any]) -> dict[str, Any]:
        """Return each store as a map, by its name; ``store`` returns the store of a name."""
        return {name: as_map(kind, store(name), passing_place) for name, kind in self._kinds.items()}

    def add(self, pairs: State, number: int) -> None:
        self._add(pairs, {}, number)

    def _add(self, pairs: State, passing: State, number: int) -> None:
        self._made, self._passing = [IoChange(key, value) for key, value in pairs.items()], passing
        self.task.process(COMMITS, Record(number - 1, b"commit", b"number"))
        self.commit(number)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        states: list[dict[bytes, bytes]] = []
        passing: list[dict[bytes, bytes]] = []
        for name, store in self._maps(self.task.store).items():
            with store.all() as pairs:
                (passing if self._kinds[name] in PASSING_KINDS else states).append(dict(pairs))
        state = dict(states[0])
        expected = with_passing(state)
        for key in {key for other in passing for key in {**other, **expected} if other.get(key) != expected.get(key)}:
            state[key] = b"a typed store differs"
        for key in {key for other in states for key in other if other.get(key) != state.get(key)}:
            # If the stores differ, make a state that equals no model.
            state[key] = b"two stores differ"
        return state, self.number, self.number

    def restore(self, state: State, number: int) -> None:
        self._add(state, {key: value for key, value in with_passing(state).items() if key not in state}, number)


class _Clock:
    """A clock that changes only in ``advance`` and ``sleep``."""

    def __init__(self) -> None:
        self._now_ms = 0

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds

    def monotonic_ns(self) -> int:
        return self._now_ms * 1_000_000

    def epoch_ms(self) -> int:
        return self._now_ms

    def sleep(self, seconds: float) -> None:
        self.advance(round(1_000 * seconds))


class PunctuatedTaskSubject(TwoEnginesSubject):
    """A stream task. Its state has the number of calls by stream time beside the workload's keys."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level, PUNCTUATED)
        self._clock = _Clock()
        self._restored_calls = 0

    def arguments(self) -> Mapping[str, Any]:
        self.log.create_topic(_OUTPUT.topic)
        return {"init": self._init, "shared": SharedResources(clock=self._clock)}

    def _init(self, context: TaskContext) -> None:
        for interval_ms, kind, key in (
            (_STREAM_MS, PunctuationType.STREAM_TIME, _STREAM),
            (_WALL_MS, PunctuationType.WALL_CLOCK_TIME, _WALL),
        ):
            context.schedule(interval_ms, kind, partial(self._punctuate, context, key))

    def _punctuate(self, context: TaskContext, key: bytes, timestamp_ms: int) -> None:
        for store in self._maps(context.store).values():
            calls = b"%d" % (int(store.get(key) or b"0") + 1)
            store.put(key, calls)
        context.forward(_OUTPUT.topic, key, calls)

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        self._clock.advance(1_000)
        super().stage(made, after)

    def _timestamp_ms(self, number: int) -> int:
        return number * _RECORD_MS

    def process(self, record: Record, context: TaskContext) -> None:
        super().process(record, context)
        for calls in range(1, self._restored_calls + 1):
            context.forward(_OUTPUT.topic, _STREAM, b"%d" % calls)

    def restore(self, state: State, number: int) -> None:
        self._restored_calls = int(self.expected(state).get(_STREAM, b"0"))
        super().restore(self.expected(state), number)
        self._restored_calls = 0

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        state, offset, position = super().read()
        outputs: dict[bytes | None, list[bytes | None]] = {_STREAM: [], _WALL: []}
        for record in self.log.read(_OUTPUT):
            outputs[record.key].append(record.value)
        for key in (_STREAM, _WALL):
            if outputs[key] != [b"%d" % calls for calls in range(1, int(state.get(key, b"0")) + 1)]:
                # Make a state that equals no model.
                state[key] = b"stores and outputs differ"
            elif key == _WALL:
                state.pop(key, None)
        return state, offset, position

    @staticmethod
    def expected(state: State) -> State:
        number = int(state.get(NUMBER_KEY, b"0"))
        if not number:
            return state
        return {**state, _STREAM: b"%d" % ((number - 1) * _RECORD_MS // _STREAM_MS + 1)}


class OnlineUpgradeSubject(TaskSubject):
    """Each commit is one input record. ``add`` swaps the stores first, so that the new store is read."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level, Durability.DISK)
        self._target = self._version = 0
        """The format that the store is being upgraded to, and the format of the task's function."""
        self._swaps_now = False

    def open(self) -> int | None:
        upgrade_in_steps(_STEP_RECORDS)
        return super().open()

    def stores(self) -> Mapping[str, StoreConfig]:
        backend, upgrade = BACKENDS[self.level], self._upgrade()
        options = under_pressure(backend)
        config = StoreConfig(backend, self.level, options=options, upgrade=upgrade, upgrade_mode=UpgradeMode.IN_PLACE)
        return {NAME: config}

    def _upgrade(self) -> Upgrade:
        """Return the upgrade that is due at the last commit, and set the format of the task's function."""
        number = self.number
        if not self._swaps_now:
            self._target = 1 + (number >= _PROXIED_FROM)
        upgrade, self._version = upgrade_to(self._target), self._target
        if self._swaps_now:
            return upgrade
        if number >= _PROXIED_FROM:
            proxy = partial(_Proxied, version=2)
            return Upgrade(2, upgrade.convert, online=True, before=upgrade_to(1), proxy=proxy, swap_running=True)
        if number < _SWAPPED_AT:
            self._version = 0
            return Upgrade(1, upgrade.convert, online=True)
        return upgrade

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        self._process_record(made, self.number)

    def _process_record(self, made: Sequence[IoChange], number: int) -> None:
        self._made = made
        self.task.process(COMMITS, Record(number, b"commit", b"number"))

    def process(self, record: Record, context: TaskContext) -> None:
        store = context.store(NAME)
        for change in stamped(self._made, self._version):
            if change.end is not None:
                store.delete_range(change.key, change.end)
            else:
                store.put(change.key, change.value)

    def commit(self, number: int) -> None:
        super().commit(number)
        if number in (_SWAPPED_AT, _PROXIED_FROM) and not self._swaps_now:
            self.close()
            self.open()

    def add(self, pairs: State, number: int) -> None:
        if not self._swaps_now:
            self._swaps_now = True
            self.close()
            self.open()
        self._process_record([IoChange(key, value) for key, value in pairs.items()], number - 1)
        self.task.commit()

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        with self.task.store(NAME).all() as pairs:
            return unstamped(dict(pairs), self._version), self.number, self.number

    def verify(self) -> None:
        """Do nothing: the changelog is not under test, and reading the stores checks them."""

    def restore(self, state: State, number: int) -> None:
        # The number is that of another changelog: it no longer selects the format.
        self.add(state, number)


class _Proxied:
    """A proxy that shows ``old``, a store or a view in the format before ``version``, in the format ``version``."""

    def __init__(self, old: Any, version: int) -> None:
        self._old, self._version = old, version

    def put(self, key: bytes, value: bytes | None) -> None:
        self._old.put(key, None if value is None else bytes([self._version - 1]) + value[1:])

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self._old.delete_range(start, end)

    def all(self) -> AbstractContextManager[list[tuple[bytes, bytes]]]:
        own, old = bytes([self._version]), bytes([self._version - 1])
        with self._old.all() as pairs:
            return nullcontext(
                [(key, own + value[1:] if value[:1] == old else b"not old: " + value) for key, value in pairs]
            )
