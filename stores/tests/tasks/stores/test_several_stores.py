"""The stores of a task commit together, and a failure of one of them leaves the others whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.changelog.producer import BufferedProducer
from stores.errors import CommitFailedError, ProducerFencedError, StoreClosedError, StoreError, StoreUnavailableError
from stores.interface import Durability, TopicPartition
from stores.registry import backends
from stores.strategies.store import Store
from stores.tasks import StateDirectory, StreamTask, TaskContext
from stores.tasks.stores.store_group import AFTER_LOG_COMMIT
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    LEFT,
    MEMORY,
    RIGHT,
    TASK,
    Crash,
    begun,
    changelog_of,
    counting_task,
    crashing_at,
    expected_outputs,
    expected_state,
    feed,
    keeping,
    logging_all,
    outputs,
    raising_at,
    run_until_killed,
    state,
)

KEYS = [1, 1, 2, 3, 1]
NAMES = ("left", "middle", "right")
TRANSACTIONAL = [name for name, backend in backends().items() if backend.strategy != "direct"]


class UnknownError(Exception):
    """An error that no store is supposed to raise."""


def count_in_all(record: Record, context: TaskContext) -> None:
    """Count the record's key in each of three stores."""
    assert record.key is not None
    new = b""
    for name in NAMES:
        new = b"%d" % (int(context.store(name).get(record.key) or b"0") + 1)
        context.store(name).put(record.key, new)
    context.forward("output", record.key, new)


def trio(folder: Path, log: MemoryChangelog, backend: str = "sqlite-indexed-batch", **settings: Any) -> StreamTask:
    """A task with three stores."""
    return counting_task(
        folder, log, **{"process": count_in_all, "stores": dict.fromkeys(NAMES, logging_all(backend)), **settings}
    )


def failing(monkeypatch: pytest.MonkeyPatch, call: str, errors: dict[str, Exception]) -> None:
    """Let ``call`` of the stores of these names raise, before it does anything, each once."""
    original = getattr(Store, call)

    def wrapped(store: Store, *given: object, **named: object) -> object:
        error = errors.pop(store.name, None)
        if error is not None:
            raise error
        return original(store, *given, **named)

    monkeypatch.setattr(Store, call, wrapped)


@pytest.mark.parametrize(("backend", "committed"), [*((name, 1) for name in TRANSACTIONAL), ("lmdb-indexed-batch", 2)])
def test_an_end_between_two_stores_commits_leaves_no_mixture(
    tmp_path: Path, log: MemoryChangelog, backend: str, committed: int
) -> None:
    """Those that lack the commit replay it, those that have it replay nothing. Source: KIP-892, "Motivation"."""
    feed(log, KEYS)
    task = begun(trio(tmp_path, log, backend))
    task.run(2)
    reached = 0

    def end() -> None:
        nonlocal reached
        reached += 1
        if reached == committed:
            raise Crash

    failpoints.arm("task.between_stores", end)
    with pytest.raises(Crash):
        task.commit()
    failpoints.disarm()
    task.close()
    is_persistent = backends()[backend].persistent
    replayed = [2 if is_persistent else 3] * (3 - committed)
    assert [report.records for report in task.open()] == [0 if is_persistent else 3] * committed + replayed
    for name in NAMES:
        assert state(task, name) == expected_state(KEYS[:3])
    assert task.input_offsets() == {INPUT: 3}
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("backend", [INDEXED, "rocksdb-dual-store", "sqlite-native", DIRECT])
def test_each_store_is_at_the_offset_of_its_own_changelog_however_much_others_log(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: Any
) -> None:
    """The left store logs three records for each of the input, the right one a record for every other of these."""

    def process(record: Record, context: TaskContext) -> None:
        for number in range(3):
            context.store("left").put(b"%d-%d" % (record.offset, number), b"x")
        if record.offset % 2:
            context.store("right").put(b"%d" % record.offset, b"x")

    feed(log, range(5))
    task = counting_task(tmp_path, log, backend, process=process, guarantee=guarantee)
    task.open()
    task.run(2, commit=True)
    assert task.changelog_offsets() == {LEFT: 5, RIGHT: 0}
    task.run(1, commit=True)
    assert task.changelog_offsets() == {LEFT: 8, RIGHT: 0}
    with crashing_at(AFTER_LOG_COMMIT):
        task.run(commit=True)
    task.close(clean=False)
    task.open()
    assert task.changelog_offsets() == {LEFT: 14, RIGHT: 1}
    assert set(state(task, "right")) == {b"1", b"3"}
    assert len(state(task, "left")) == 15
    task.close()


@pytest.mark.parametrize(
    "pair",
    [("lmdb-native", "sqlite-native"), ("rocksdb-dual-store", "lmdb-indexed-batch"), ("sqlite", "rocksdb-direct")],
    ids=str,
)
def test_a_kill_between_stores_of_different_kinds_leaves_no_mixture(tmp_path: Path, pair: tuple[str, str]) -> None:
    keys = [number % 4 for number in range(12)]
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, keys)
    settings: dict[str, Any] = {"durability": Durability.PROCESS, "commit_every_records": 3}
    assert run_until_killed(counting_task, tmp_path, "task.between_stores", 3, *pair, **settings)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        task = counting_task(tmp_path, log, *pair, **settings)
        left, right = task.open()
        assert (left.wiped, left.records) == (False, 0)
        # The second lacks the third commit; one that mixes its writes starts anew.
        assert right.records == (9 if pair[1] == "rocksdb-direct" else 3)
        assert right.wiped is (pair[1] == "rocksdb-direct")
        assert state(task, "left") == state(task, "right") == expected_state(keys[:9])
        for name in ("left", "right"):
            assert log.end_offset(changelog_of(name)) == 9
        task.run()
        task.close()
        assert outputs(log) == expected_outputs(keys)


@pytest.mark.parametrize("failed", [("left",), ("left", "middle"), ("middle", "right")], ids=str)
@pytest.mark.parametrize("error", [UnknownError, StoreError])
def test_stores_commit_although_others_raise_unknown_errors_and_the_first_error_is_raised(
    tmp_path: Path,
    log: MemoryChangelog,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[str], Exception],
    failed: tuple[str, ...],
) -> None:
    """Source: Kafka Streams, ``ProcessorStateManager``: the first exception is raised again."""
    feed(log, KEYS)
    task = begun(trio(tmp_path, log))
    task.run(2)
    errors = {name: error(name) for name in failed}
    first = errors[failed[0]]
    with monkeypatch.context() as patch:
        failing(patch, "commit", errors)
        with pytest.raises(type(first)) as failure:
            task.commit()
    assert failure.value is first
    with pytest.raises(StoreError):
        task.run()
    task.close()
    assert {report.store: report.records for report in task.open()} == {
        name: 2 if name in failed else 0 for name in NAMES
    }
    for name in NAMES:
        assert state(task, name) == expected_state(KEYS[:3])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_a_store_that_can_catch_up_does_although_another_failed_before_it(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, KEYS)
    task = trio(tmp_path, log)
    task.open()
    task.run(3)
    first = UnknownError()
    with monkeypatch.context() as patch:
        failing(patch, "commit", {"left": first, "right": CommitFailedError("the disk is full")})
        with pytest.raises(UnknownError) as error:
            task.commit()
    assert error.value is first
    task.close()
    assert [report.records for report in task.open()] == [3, 0, 0]
    task.close()


def test_a_store_that_can_t_be_rolled_back_keeps_no_other_from_it(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function's error stays the one that is raised; the task then has to be opened again."""
    poisoned = [2]
    contexts: list[TaskContext] = []
    feed(log, KEYS)
    task = trio(tmp_path, log, process=raising_at(poisoned, keeping(contexts, count_in_all)))
    task.open()
    with monkeypatch.context() as patch:
        failing(patch, "rollback", {"left": UnknownError("left"), "middle": UnknownError("middle")})
        with pytest.raises(Crash):
            task.run()
    staged_bytes = [contexts[0].store(name).approximate_num_uncommitted_bytes() for name in NAMES]
    assert staged_bytes[0] > 0
    assert staged_bytes[2] == 0
    with pytest.raises(StoreError):
        task.run()
    task.close()
    poisoned.clear()
    task.open()
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("step", ["rollback", "close"])
def test_a_zombie_s_stores_are_rolled_back_and_closed_although_one_can_t_be(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Source: KIP-98, zombie fencing."""
    contexts: list[TaskContext] = []
    feed(log, KEYS)
    zombie = trio(tmp_path / "old", log, process=keeping(contexts, count_in_all))
    zombie.open()
    zombie.run(2)
    owner = trio(tmp_path / "new", log)
    owner.open()
    with monkeypatch.context() as patch:
        failing(patch, step, {"left": UnknownError()})
        with pytest.raises(ProducerFencedError):
            zombie.commit()
    for name in NAMES if step == "rollback" else NAMES[1:]:
        with pytest.raises(StoreClosedError):
            contexts[0].store(name).get(b"1")
    if step == "close":
        assert contexts[0].store("left").approximate_num_uncommitted_bytes() == 0
    StateDirectory(tmp_path / "old" / "state").lock(TASK, "another").release()
    zombie.close()
    owner.run()
    owner.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("kinds", [(DIRECT, INDEXED), (INDEXED, DIRECT), (DIRECT, DIRECT), (INDEXED, MEMORY)])
def test_a_task_with_stores_of_both_kinds_warns_once_when_it_is_opened(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture, kinds: tuple[str, str]
) -> None:
    """Source: KIP-844, prototype."""
    feed(log, KEYS)
    task = counting_task(tmp_path, log, *kinds, commit_every_records=1)
    with caplog.at_level(logging.WARNING, "stores.tasks"):
        task.open()
        task.run()
        task.close()
    assert len(caplog.records) == (DIRECT in kinds and kinds != (DIRECT, DIRECT))
    assert all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("backend", TRANSACTIONAL)
def test_a_zombie_s_stores_stay_at_their_last_commit_and_go_on_from_it(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-892, "Error Handling"; KIP-98, zombie fencing."""
    feed(log, KEYS)
    zombie = begun(counting_task(tmp_path / "old", log, backend))
    zombie.run(1)
    owner = counting_task(tmp_path / "new", log, backend)
    owner.open()
    owner.run(2)
    owner.commit()
    with pytest.raises(ProducerFencedError):
        zombie.commit()
    zombie.close()
    owner.close()
    replayed = 2 if backends()[backend].persistent else 3
    assert [(report.wiped, report.records) for report in zombie.open()] == [(False, replayed)] * 2
    assert state(zombie, "left") == state(zombie, "right") == expected_state(KEYS[:3])
    zombie.run()
    zombie.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_all_are_closed_although_some_fail_to_and_the_first_error_is_raised(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer too: what it left open is aborted, and the folders are given back."""
    feed(log, KEYS)
    monkeypatch.setattr("stores.changelog.producer.PENDING_RECORDS_MAX", 2)
    task = trio(tmp_path, log)
    task.open()
    task.run(2)
    first, close, abort = UnknownError("left"), Store.close, BufferedProducer.close

    def failing_close(store: Store) -> None:
        close(store)
        raise {"left": first}.get(store.name, CommitFailedError(store.name))

    def failing_abort(producer: BufferedProducer) -> None:
        abort(producer)
        raise StoreUnavailableError("producer")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "close", failing_close)
        patch.setattr(BufferedProducer, "close", failing_abort)
        with pytest.raises(UnknownError) as error:
            task.close(clean=False)
    assert error.value is first
    assert log.end_offset(TopicPartition("output", 0)) > 0
    task.open()
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_the_error_that_made_a_commit_fail_is_raised_although_closing_fails_then(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, KEYS)
    task = trio(tmp_path, log)
    task.open()
    task.run()
    with monkeypatch.context() as patch, crashing_at("task.after_store_commit"):
        failing(patch, "close", {"left": UnknownError()})
        task.close()


def test_a_store_that_fails_after_it_was_opened_is_closed_with_the_others(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could open it again."""
    feed(log, KEYS)
    task = trio(tmp_path, log)
    with monkeypatch.context() as patch:
        failing(patch, "committed_offset", {"middle": StoreUnavailableError("the disk does not answer")})
        with pytest.raises(StoreUnavailableError):
            task.open()
    task.open()
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("backend", TRANSACTIONAL)
def test_what_the_function_raises_costs_no_store_that_keeps_its_writes_apart_its_data(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-892, "Error Handling"; KIP-129, "Better handling runtime errors"."""
    poisoned = [1]
    feed(log, KEYS)
    task = begun(counting_task(tmp_path, log, backend, process=raising_at(poisoned)))
    with pytest.raises(Crash):
        task.run()
    assert [(report.wiped, report.records) for report in task.restore_reports()] == [(False, 0)] * 2
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    poisoned.clear()
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)
