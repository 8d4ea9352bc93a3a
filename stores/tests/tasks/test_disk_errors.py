"""A disk that fails in the middle of a task's commit: the task closes, opens again, reads the offset, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import lmdb
import pytest

from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.engines.lmdb import transaction as lmdb_transaction
from stores.errors import (
    CommitFailedError,
    CommitInDoubtError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.registry import backends
from stores.strategies.access import Access
from stores.strategies.batch_staging import BatchStaging
from stores.strategies.dual_store import DualStoreStaging
from stores.strategies.indexed_batch import IndexedBatchStaging
from stores.strategies.native import NativeStaging
from stores.strategies.staging import Staging
from stores.strategies.store import Store
from stores.tasks import ProcessingGuarantee, TaskContext
from stores.tests.changelog.failing import Failing
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    LEFT,
    begun,
    count,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    state,
)

KEYS = [1, 1, 2, 3, 1]
ERRORS: dict[str, Callable[[], StoreError]] = {
    "may be tried again": lambda: CommitFailedError("the disk is full"),
    "must be opened again": lambda: CommitFailedError("a sync failed", reopen=True),
    "is damaged": lambda: StoreCorruptedError("a page is not what was written"),
    "can't be read": lambda: StoreUnavailableError("the disk does not answer"),
}


class Faults:
    """The errors that calls of a store raise, by store and call: each one once, before or after the call is done."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, str, StoreError, bool]] = []

    def plan(self, store: str, call: str, error: StoreError, *, done: bool = False) -> None:
        self.planned.append((store, call, error, done))

    def wrap(self, call: str) -> Callable[..., object]:
        original = getattr(Store, call)

        def wrapped(store: Store, *given: object, **named: object) -> object:
            plan = next((plan for plan in self.planned if plan[:2] == (store.name, call)), None)
            if plan is None:
                return original(store, *given, **named)
            self.planned.remove(plan)
            if plan[3]:
                original(store, *given, **named)
            raise plan[2]

        return wrapped


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    faults = Faults()
    for call in ("commit", "restore", "close"):
        monkeypatch.setattr(Store, call, faults.wrap(call))
    yield faults
    assert faults.planned == []


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("what", ERRORS)
@pytest.mark.parametrize("backend", backends())
def test_whatever_a_store_says_in_its_commit_the_task_has_it_afterwards_and_goes_on(
    tmp_path: Path, log: MemoryChangelog, faults: Faults, backend: str, what: str, done: bool
) -> None:
    """Also where the commit was made all the same, and where closing the store fails as well."""
    feed(log, KEYS)
    task = begun(counting_task(tmp_path, log, backend))
    faults.plan("left", "commit", ERRORS[what](), done=done)
    if what != "may be tried again":
        faults.plan("left", "close", ERRORS["must be opened again"](), done=True)
    task.run(2)
    task.commit()
    assert faults.planned == []
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:3])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)
    assert [report.wiped for report in task.open()] == [False, False]
    assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    task.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_store_that_fails_twice_in_a_row_is_aborted_and_the_others_are_not(
    tmp_path: Path, log: MemoryChangelog, faults: Faults, guarantee: ProcessingGuarantee
) -> None:
    """The error of the first store is raised, the other store has caught up, and the changelog has the commit."""
    feed(log, KEYS)
    task = counting_task(tmp_path, log, "sqlite-indexed-batch", guarantee=guarantee)
    task.open()
    task.run(3)
    first, second = ERRORS["must be opened again"](), ERRORS["must be opened again"]()
    faults.plan("left", "commit", first)
    faults.plan("left", "restore", second)
    faults.plan("right", "commit", ERRORS["must be opened again"]())
    with pytest.raises(CommitFailedError) as error:
        task.commit()
    assert error.value is second
    with pytest.raises(StoreError):
        task.run()
    task.close()
    left, right = task.open()
    assert (left.records, right.records) == (3, 0)
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:3])
    assert task.input_offsets() == {INPUT: 3 if guarantee is EXACTLY_ONCE else 0}
    task.close()


class GivenUp:
    """A disk that fails under the store "left": until the store is opened again, that takes no write any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = False
        self._failed: list[Access] = []
        for kind in (BatchStaging, DualStoreStaging, IndexedBatchStaging, NativeStaging):
            for call in {"commit", "write_at_once"} & set(vars(kind)):
                monkeypatch.setattr(kind, call, self._wrapped(getattr(kind, call)))

    def fail(self, store: Store | Staging) -> StoreError:
        """Let the store raise, now and from now on."""
        self.fails = False
        self._failed.append(store.access)
        return ERRORS["must be opened again"]()

    def _wrapped(self, original: Callable[..., object]) -> Callable[..., object]:
        def wrapped(staging: Staging, *given: object, **named: object) -> object:
            access = staging.access
            if any(access is failed for failed in self._failed) or (self.fails and access.name == "left"):
                raise self.fail(staging)
            return original(staging, *given, **named)

        return wrapped


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("backend", [INDEXED, "rocksdb-dual-store", "sqlite-native"])
def test_a_store_whose_disk_failed_in_a_commit_is_opened_again_and_not_rolled_back(
    tmp_path: Path,
    log: MemoryChangelog,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    guarantee: ProcessingGuarantee,
) -> None:
    """Its engine refuses all writes until then: to replay the commit into the same store would fail as well."""
    feed(log, KEYS)
    disk = GivenUp(monkeypatch)
    task = begun(counting_task(tmp_path, log, backend, guarantee=guarantee))
    task.run(2)
    disk.fails = True
    task.commit()
    assert not disk.fails
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:3])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_a_store_whose_disk_failed_in_the_function_is_opened_again_and_not_rolled_back(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = GivenUp(monkeypatch)
    stores: list[Store] = []

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset == 2 and not stores:
            store = context.store("left").inner
            stores.append(store)
            raise disk.fail(store)

    feed(log, KEYS)
    task = begun(counting_task(tmp_path, log, process=process))
    with pytest.raises(StoreError):
        task.run()
    assert [store.is_open for store in stores] == [False]
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("what", ["must be opened again", "can't be read"])
def test_a_store_that_fails_in_the_function_is_opened_again(tmp_path: Path, log: MemoryChangelog, what: str) -> None:
    broken = [2]

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset in broken:
            raise ERRORS[what]()

    feed(log, KEYS)
    task = begun(counting_task(tmp_path, log, process=process))
    reader = task.store("left")
    with pytest.raises(StoreError):
        task.run()
    assert reader.get(b"%d" % KEYS[0]) == b"1"
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    broken.clear()
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_damage_that_shows_in_the_function_has_the_store_restored(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, KEYS)
    task = counting_task(tmp_path, log)
    task.open()
    task.run(3)
    task.close()
    for table in (tmp_path / "state" / "0_0" / "rocksdb" / "left" / "data").glob("*.sst"):
        content = table.read_bytes()
        if b"offsets" not in content:
            table.write_bytes(bytes(40) + content[40:])
    assert [report.wiped for report in task.open()] == [False, False]
    with pytest.raises(StoreCorruptedError):
        task.run()
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:3])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("error", ["SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_FULL"])
def test_a_commit_that_the_changelog_can_t_tell_of_is_there_once_or_made_again(
    tmp_path: Path, error: str, taken: bool
) -> None:
    """The task finds out by opening another producer of its id. Source: KIP-98."""
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, KEYS)
        task = begun(counting_task(tmp_path, log))
        task.run(2)
        with Failing(log, "commit", error, done=taken) as failing, pytest.raises(CommitInDoubtError):
            task.commit()
        assert failing.hits == 1
        committed = 3 if taken else 1
        assert task.input_offsets() == {INPUT: committed}
        assert state(task, "left") == state(task, "right") == expected_state(KEYS[:committed])
        task.run()
        task.close()
        assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("taken", [False, True])
def test_a_changelog_that_goes_on_failing_stops_the_task_until_both_are_opened_again(
    tmp_path: Path, taken: bool
) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, KEYS)
        task = counting_task(tmp_path, log)
        task.open()
        task.run(3)
        with Failing(log, "commit", "SQLITE_IOERR_FSYNC", done=taken, times=9):
            with pytest.raises(CommitInDoubtError):
                task.commit()
            with pytest.raises(StoreError):
                task.run()
            task.close()
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        task = counting_task(tmp_path, log)
        task.open()
        assert state(task, "left") == state(task, "right") == expected_state(KEYS[: 3 if taken else 0])
        task.run()
        task.close()
        assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("taken", [False, True])
def test_at_least_once_a_flush_that_the_changelog_can_t_tell_of_is_made_again(tmp_path: Path, taken: bool) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, KEYS)
        task = counting_task(tmp_path, log, INDEXED, guarantee=AT_LEAST_ONCE)
        task.open()
        task.run(2)
        with Failing(log, "commit", "SQLITE_IOERR_FSYNC", done=taken), pytest.raises(CommitInDoubtError):
            task.commit()
        assert task.input_offsets() == {INPUT: 0}
        task.run()
        task.close()
        assert len(outputs(log)) == len(KEYS) + (2 if taken else 0)
        for store in ("left", "right"):
            logged = {record.key: record.value for record in log.read(TopicPartition(f"app-{store}-changelog", 0))}
            assert {key: int(value or b"") for key, value in logged.items()}[b"1"] >= 3


def test_damage_over_which_an_engine_gives_its_transaction_up_has_the_store_restored(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = lmdb_transaction.LmdbTransaction
    put = transaction.put
    left = [3]

    def damaged(self: lmdb_transaction.LmdbTransaction, key: bytes, value: bytes | None) -> None:
        left[0] -= 1
        if not left[0]:
            raise self._aborted(lmdb.CorruptedError("a page is not what was written"))
        put(self, key, value)

    feed(log, KEYS)
    task = begun(counting_task(tmp_path, log, "lmdb-native"))
    monkeypatch.setattr(transaction, "put", damaged)
    with pytest.raises(StoreCorruptedError):
        task.run()
    assert sum(report.wiped for report in task.restore_reports()) == 1
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("call", ["put", "put_all", "put_if_absent", "delete"])
def test_a_write_that_is_staged_and_fails_is_never_committed_though_the_function_goes_on(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its changelog does not have it: the store would lead. Source: KIP-892, "Proposed Changes"."""
    arguments: dict[str, tuple[object, ...]] = {
        "put": (b"key", b"new"),
        "put_all": ([(b"key", b"new"), (b"other", b"new")],),
        "put_if_absent": (b"another", b"new"),
        "delete": (b"key",),
    }
    original = getattr(Store, call)

    def fails_at_the_end(store: Store, *arguments: object) -> None:
        original(store, *arguments)
        raise StoreUnavailableError("the disk does not answer")

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("left")
        if record.offset == 0:
            store.put(b"key", b"value")
        else:
            with suppress(StoreError):
                getattr(store, call)(*arguments[call])

    feed(log, KEYS)
    task = begun(counting_task(tmp_path, log, process=process))
    with monkeypatch.context() as patch:
        patch.setattr(Store, call, fails_at_the_end)
        with pytest.raises(StoreUnavailableError):
            task.run(1)
    assert task.input_offsets() == {INPUT: 1}
    assert state(task, "left") == {b"key": b"value"}
    task.close()
    assert [record.key for record in log.read(LEFT)] == [b"key"]


@pytest.mark.parametrize("taken", [False, True])
def test_records_of_a_commit_in_doubt_are_counted_as_what_became_of_them(tmp_path: Path, taken: bool) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, KEYS)
        task = begun(counting_task(tmp_path, log))
        task.run(2)
        with Failing(log, "commit", "SQLITE_IOERR_FSYNC", done=taken), pytest.raises(CommitInDoubtError):
            task.commit()
        metrics = task.metrics
        task.close()
    totals = (metrics.process_total, metrics.rollback_total, metrics.rollback_records_total)
    assert totals == ((3, 0, 0) if taken else (1, 1, 2))
