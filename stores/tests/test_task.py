"""What a task promises while it runs: its commit order, its checkpoint file, its falls and how it gets up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record
from stores.errors import (
    ChangelogError,
    CommitFailedError,
    ConfigError,
    ProducerFencedError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
)
from stores.interface import IsolationLevel, KeyValueStore, TopicPartition
from stores.tasks import RestoreProgress, StoreSettings, StreamTask, TaskContext, TaskId
from stores.tasks.checkpoint import CheckpointFile
from stores.tests.task_setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    OUTPUT,
    changelog_of,
    count,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    state,
)

LEFT, RIGHT = changelog_of("left"), changelog_of("right")
MEMORY = "memory-indexed-batch"


class Crash(Exception):
    """Raised at a failpoint, where a process would have died."""


def crash() -> None:
    raise Crash


@pytest.fixture
def log() -> Iterator[MemoryChangelog]:
    with MemoryChangelog() as changelog:
        changelog.create_topic("input")
        changelog.create_topic("output")
        yield changelog
    failpoints.disarm()


def checkpoint(folder: Path) -> CheckpointFile:
    return CheckpointFile(folder / "state" / "0_0" / ".checkpoint")


def single(
    folder: Path,
    log: MemoryChangelog,
    process: Callable[[Record, TaskContext], None],
    backend: str = MEMORY,
    **settings: Any,
) -> StreamTask:
    """A task with one store, ``s``, and the given function."""
    stores = {"s": StoreSettings(backend)}
    return StreamTask(
        "app",
        TaskId(0, 0),
        **{
            "state_dir": folder / "state",
            "changelog": log,
            "stores": stores,
            "process": process,
            "inputs": [INPUT],
            **settings,
        },
    )


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_each_record_is_processed_once_and_nothing_is_replayed_after_a_clean_close(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    feed(log, [1, 2, 1])
    task = counting_task(tmp_path, log, guarantee=guarantee)
    assert [report.records for report in task.open()] == [0, 0]
    assert task.run() == 3
    assert outputs(log) == []
    task.close()
    assert outputs(log) == expected_outputs([1, 2, 1])
    assert log.committed_offsets("app") == {INPUT: 3}
    assert [report.records for report in task.open()] == [0, 0]
    assert state(task, "left") == state(task, "right") == expected_state([1, 2, 1])
    assert task.run() == 0
    task.close()


def test_a_pushed_record_is_processed_like_one_that_is_pulled(tmp_path: Path, log: MemoryChangelog) -> None:
    elsewhere = TopicPartition("elsewhere", 7)
    task = counting_task(tmp_path, log, inputs=[elsewhere])
    task.open()
    assert task.input_offsets() == {elsewhere: 0}
    task.process(elsewhere, Record(5, b"1", b"x"))
    task.commit()
    assert task.input_offsets() == log.committed_offsets("app") == {elsewhere: 6}
    for offset in (0, 5):
        with pytest.raises(ValueError):
            task.process(elsewhere, Record(offset, b"1", b"x"))
    with pytest.raises(ValueError):
        task.process(INPUT, Record(0, b"1", b"x"))
    task.close()
    assert outputs(log) == expected_outputs([1])


def test_the_changelog_commits_before_the_stores_and_the_checkpoint_comes_last(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-844, "StateStore changes", steps 3, 4a, 4b."""
    order: list[str] = []
    for name in failpoints.declared():
        if name.startswith(("task.", "changelog.", "indexed_batch.")):
            failpoints.arm(name, partial(order.append, name))
    task = counting_task(tmp_path, log)
    task.open()
    order.clear()
    feed(log, [1])
    task.run()
    task.commit()
    task.close(clean=False)
    store = ["indexed_batch.before_write", "indexed_batch.after_write"]
    assert order == [
        "task.before_log_commit",
        "changelog.before_commit",
        "changelog.after_commit",
        "task.after_log_commit",
        *store,
        "task.between_stores",
        *store,
        "task.after_store_commit",
        "task.after_checkpoint",
    ]


def test_a_store_commits_with_the_offset_that_its_records_got_and_the_position_of_the_input(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-892, ``committedOffset``; KIP-796."""
    feed(log, [1, 2, 3])
    seen: list[KeyValueStore] = []

    def process(record: Record, context: TaskContext) -> None:
        seen.append(context.store("s"))
        seen[0].put(b"k", b"v")

    task = single(tmp_path, log, process)
    task.open()
    task.run()
    task.commit()
    store = seen[0]
    assert store.committed_offset(TopicPartition("app-s-changelog", 0)) == 2
    assert store.position(IsolationLevel.READ_COMMITTED) == {INPUT: 2}
    task.close()


def test_commits_come_after_so_many_records_and_on_request(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, ``ProcessingContext#commit``."""

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset == 6:
            context.commit()
            assert len(outputs(log)) == 5

    feed(log, range(9))
    task = counting_task(tmp_path, log, process=process, commit_every_records=5)
    task.open()
    ended = {}
    for number in range(1, 10):
        task.run(1)
        ended[number] = len(outputs(log))
    assert ended == {1: 0, 2: 0, 3: 0, 4: 0, 5: 5, 6: 5, 7: 7, 8: 7, 9: 7}
    task.close(clean=False)


def test_the_stores_together_never_stage_more_than_their_limit(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, "In-memory Transaction Buffers" and ``statestore.uncommitted.max.bytes``."""
    staged = []

    def process(record: Record, context: TaskContext) -> None:
        for name in ("left", "right"):
            context.store(name).put(b"%09d" % record.offset, bytes(91))
        staged.append(sum(context.store(name).approximate_num_uncommitted_bytes() for name in ("left", "right")))

    settings = StoreSettings(MEMORY, uncommitted_max_bytes=1_000)
    feed(log, range(20))
    task = counting_task(tmp_path, log, process=process, stores={"left": settings, "right": settings})
    task.open()
    task.run()
    assert log.committed_offsets("app") == {INPUT: 20}
    assert max(staged) == 1_000
    task.close()


def test_no_limit_means_no_commit(tmp_path: Path, log: MemoryChangelog) -> None:
    settings = StoreSettings(MEMORY, uncommitted_max_bytes=-1)
    feed(log, range(20))
    task = counting_task(tmp_path, log, stores={"left": settings, "right": settings})
    task.open()
    task.run()
    assert log.committed_offsets("app") == {}
    task.close(clean=False)


def test_every_kind_of_write_is_logged_with_the_records_timestamp(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        store.put(b"a", b"1")
        store.put_all([(b"b", b"2"), (b"c", b"3"), (b"d", None)])
        assert store.put_if_absent(b"a", b"not stored") == b"1"
        assert store.put_if_absent(b"e", b"4") is None
        assert store.delete(b"b") == b"2"
        store.put(b"e", None)
        store.put(b"f", b"5")
        store.delete_range(b"a", b"c")
        context.forward("output", b"o", b"1")
        context.forward("output", b"o", b"2", 99, (("h", b"x"),))

    log.create_topic("input")
    with log.producer() as producer:
        producer.send(INPUT, b"k", b"v", 42)
        producer.flush()
    task = single(tmp_path, log, process)
    task.open()
    task.run()
    kept = dict(task.store("s").all())
    task.close()
    records = list(log.read(TopicPartition("app-s-changelog", 0)))
    assert [(record.key, record.value) for record in records] == [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
        (b"d", None),
        (b"e", b"4"),
        (b"b", None),
        (b"e", None),
        (b"f", b"5"),
        (b"a", None),
        (b"c", None),
    ]
    assert {record.timestamp_ms for record in records} == {42}
    replayed = {record.key: record.value for record in records}
    assert {key: value for key, value in replayed.items() if value is not None} == kept == {b"f": b"5"}
    assert list(log.read(OUTPUT)) == [Record(0, b"o", b"1", 42), Record(1, b"o", b"2", 99, (("h", b"x"),))]


def test_the_functions_store_refuses_what_is_the_tasks_own(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, ``StateStore#commit``."""
    refused = []

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        for call in (
            store.commit,
            store.rollback,
            store.close,
            lambda: store.restore([], {}),
            lambda: store.advance_position(INPUT, 1),
        ):
            with pytest.raises(StoreError):
                call()
            refused.append(call)
        with pytest.raises(ConfigError):
            context.store("nowhere")
        with pytest.raises(ChangelogError):
            context.forward("nowhere", b"k", b"v")

    feed(log, [1])
    task = single(tmp_path, log, process)
    task.open()
    task.run()
    task.close()
    assert len(refused) == 5


def test_writing_outside_the_function_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    kept: list[TaskContext] = []
    feed(log, [1])
    task = single(tmp_path, log, lambda record, context: kept.append(context))
    task.open()
    task.run()
    store = kept[0].store("s")
    calls: list[Callable[[], object]] = [
        lambda: store.put(b"k", b"v"),
        lambda: store.put_all([]),
        lambda: store.delete(b"k"),
        lambda: store.put_if_absent(b"k", b"v"),
        lambda: store.delete_range(None, None),
        lambda: kept[0].forward("output", b"k", b"v"),
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()
    task.close()
    assert list(log.read(TopicPartition("app-s-changelog", 0))) == []


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("backend", [MEMORY, INDEXED, "rocksdb-dual-store"])
def test_what_the_function_raises_undoes_everything_since_the_last_commit_and_the_task_goes_on(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: Any
) -> None:
    keys = [1, 2, 3, 1]
    poisoned = [3]

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset in poisoned:
            raise Crash

    feed(log, keys)
    task = counting_task(tmp_path, log, backend, process=process, guarantee=guarantee)
    task.open()
    task.run(1)
    task.commit()
    with pytest.raises(Crash):
        task.run()
    assert task.input_offsets() == {INPUT: 1}
    assert state(task, "left") == state(task, "right") == expected_state([1])
    poisoned.clear()
    assert task.run() == 3
    task.close()
    assert outputs(log) == expected_outputs(keys)
    assert {record.key: record.value for record in log.read(LEFT)} == expected_state(keys)


def test_a_direct_store_is_wiped_when_the_function_raises_under_exactly_once(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """What it wrote can't be rolled back. Source: KIP-892, "Error Handling"."""
    poisoned = [2]

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset in poisoned:
            raise Crash

    keys = [1, 2, 3]
    feed(log, keys)
    task = counting_task(tmp_path, log, DIRECT, process=process)
    task.open()
    task.run(1)
    task.commit()
    with pytest.raises(Crash):
        task.run()
    assert state(task, "left") == expected_state([1])
    poisoned.clear()
    task.run()
    assert state(task, "left") == expected_state(keys)
    task.close()
    assert outputs(log) == expected_outputs(keys)


def test_a_write_that_could_not_be_logged_is_never_committed_even_if_the_function_hides_the_error(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        def refuse(*_: object) -> None:
            raise ChangelogError("no space")

        monkeypatch.setattr(context.producer, "send", refuse)
        with pytest.raises(ChangelogError):
            context.store("s").put(b"k", b"v")

    feed(log, [1])
    task = single(tmp_path, log, process)
    task.open()
    with pytest.raises(ChangelogError):
        task.run()
    assert dict(task.store("s").all()) == {}
    task.close()


@pytest.mark.parametrize("backend", [MEMORY, INDEXED, DIRECT])
@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [("task.before_log_commit", 0), ("changelog.before_commit", 0), ("changelog.after_commit", 2)],
)
def test_an_error_in_the_changelogs_commit_leaves_the_task_at_what_the_changelog_has(
    tmp_path: Path, log: MemoryChangelog, backend: str, failpoint: str, committed: int
) -> None:
    """Also where the changelog took the commit before it raised. Source: KIP-844, step 3."""
    keys = [1, 1, 2]
    feed(log, keys)
    task = counting_task(tmp_path, log, backend)
    task.open()
    task.run(2)
    failpoints.arm(failpoint, crash)
    with pytest.raises(Crash):
        task.commit()
    failpoints.disarm()
    assert task.input_offsets() == {INPUT: committed}
    assert state(task, "left") == state(task, "right") == expected_state(keys[:committed])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(keys)


@pytest.mark.parametrize("failpoint", ["task.after_log_commit", "task.between_stores", "task.after_store_commit"])
def test_an_error_after_the_changelogs_commit_stops_the_task_until_it_is_opened_again(
    tmp_path: Path, log: MemoryChangelog, failpoint: str
) -> None:
    keys = [1, 1, 2]
    feed(log, keys)
    task = counting_task(tmp_path, log)
    task.open()
    task.run(2)
    failpoints.arm(failpoint, crash)
    with pytest.raises(Crash):
        task.commit()
    failpoints.disarm()
    for call in (task.run, task.commit, task.input_offsets, lambda: task.store("left")):
        with pytest.raises(StoreError):
            call()
    task.close()
    replayed = {report.store: report.records for report in task.open()}
    assert replayed["right"] == (0 if failpoint == "task.after_store_commit" else 2)
    assert state(task, "left") == state(task, "right") == expected_state(keys[:2])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(keys)


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("backend", [MEMORY, INDEXED, DIRECT])
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_store_that_fails_to_commit_gets_the_commit_from_the_changelog(
    tmp_path: Path, log: MemoryChangelog, backend: str, reopen: bool, guarantee: Any
) -> None:
    """Neither lost nor doubled. Source: KIP-892, "Error Handling"."""
    failing = iter([True])

    def fail() -> None:
        if next(failing, False):
            raise CommitFailedError("the disk is full", reopen=reopen)

    keys = [1, 1, 2, 3, 1]
    feed(log, keys)
    task = counting_task(tmp_path, log, backend, guarantee=guarantee)
    task.open()
    task.run(1)
    task.commit()
    failpoints.arm("direct.commit" if backend == DIRECT else "indexed_batch.before_write", fail)
    task.run(2)
    task.commit()
    assert state(task, "left") == state(task, "right") == expected_state(keys[:3])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(keys)
    task.open()
    if backend != MEMORY:
        assert state(task, "left") == state(task, "right") == expected_state(keys)
    task.close()


@pytest.mark.parametrize("backend", [INDEXED, DIRECT])
def test_a_zombie_is_refused_and_its_stores_are_not_committed(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-98, zombie fencing; KIP-129."""
    keys = [1, 1, 2]
    feed(log, keys)
    zombie = counting_task(tmp_path / "old", log, backend)
    zombie.open()
    zombie.run(1)
    zombie.commit()
    zombie.run(1)
    owner = counting_task(tmp_path / "new", log, backend)
    assert [report.records for report in owner.open()] == [1, 1]
    with pytest.raises(ProducerFencedError):
        zombie.commit()
    for call in (zombie.run, zombie.commit):
        with pytest.raises(ProducerFencedError):
            call()
    zombie.close()
    owner.run()
    owner.close()
    assert outputs(log) == expected_outputs(keys)
    again = counting_task(tmp_path / "old", log, backend)
    # An indexed batch kept its first commit; a direct store mixed in what was fenced, and starts anew.
    assert [(report.wiped, report.records) for report in again.open()] == [
        (True, 3) if backend == DIRECT else (False, 2)
    ] * 2
    assert state(again, "left") == expected_state(keys)
    again.close()


def test_a_second_instance_on_the_same_folder_is_refused_without_fencing_the_first(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed(log, [1])
    task = counting_task(tmp_path, log)
    task.open()
    with pytest.raises(StoreLockedError):
        counting_task(tmp_path, log).open()
    task.run()
    task.close()
    assert outputs(log) == expected_outputs([1])


def test_leaving_uncleanly_drops_what_is_staged(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2])
    task = counting_task(tmp_path, log)
    task.open()
    task.run()
    task.close(clean=False)
    task.close()
    with pytest.raises(StoreClosedError):
        task.run()
    task.open()
    assert task.input_offsets() == {INPUT: 0}
    assert state(task, "left") == {}
    task.close()


def test_a_direct_store_under_exactly_once_is_kept_after_a_clean_close_and_wiped_after_an_unclean_one(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-129, unclean shutdown; KIP-844, steps 1.1 and 5."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, DIRECT, INDEXED)
    task.open()
    task.run(2)
    task.commit()
    assert checkpoint(tmp_path).read() == {}
    task.close()
    assert checkpoint(tmp_path).read() == {LEFT: 1, RIGHT: 1}

    left, right = task.open()
    assert (left.wiped, left.records, right.wiped, right.records) == (False, 0, False, 0)
    assert checkpoint(tmp_path).read() == {RIGHT: 1}
    task.run()
    task.close(clean=False)
    assert checkpoint(tmp_path).read() == {RIGHT: 1}

    left, right = task.open()
    assert (left.wiped, left.records, right.wiped, right.records) == (True, 2, False, 0)
    assert isinstance(left.reason, str)
    assert right.reason is None
    assert state(task, "left") == state(task, "right") == expected_state([1, 2])
    task.close()


def test_without_the_wipe_a_direct_store_shows_what_was_never_committed(tmp_path: Path, log: MemoryChangelog) -> None:
    """The negative control: why the wipe is there. Source: KIP-892, "Motivation"."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, DIRECT, wipe_unclean=False)
    task.open()
    task.run()
    task.close(clean=False)
    assert [report.wiped for report in task.open()] == [False, False]
    assert state(task, "left") == expected_state([1, 2, 3])
    assert list(log.read(LEFT)) == []
    task.close()


def test_at_least_once_a_direct_store_is_not_wiped_and_its_checkpoint_follows_each_commit(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-844, step 4."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, DIRECT, INDEXED, AT_LEAST_ONCE)
    task.open()
    assert checkpoint(tmp_path).read() == {}
    for commits in (1, 2):
        task.run(1)
        task.commit()
        assert checkpoint(tmp_path).read() == {LEFT: commits - 1, RIGHT: commits - 1}
    task.run()
    task.close(clean=False)
    left, right = task.open()
    assert (left.wiped, left.records, right.wiped, right.records) == (False, 0, False, 0)
    assert int(state(task, "left")[b"3"]) == 1
    task.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_no_checkpoint_is_written_in_a_thousand_commits_of_stores_that_keep_their_offsets(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    """Source: KIP-892, "Offsets for Consumer Rebalances"."""
    feed(log, [1] * 1_001)
    task = counting_task(tmp_path, log, guarantee=guarantee, commit_every_records=1)
    task.open()
    task.run(1)
    task.close()
    task.open()
    path = checkpoint(tmp_path).path
    os.utime(path, ns=(1, 1))
    before = path.stat()
    assert task.run() == 1_000
    after = path.stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert checkpoint(tmp_path).read() == {LEFT: 0, RIGHT: 0}
    task.close()
    assert checkpoint(tmp_path).read() == {LEFT: 1_000, RIGHT: 1_000}


def test_the_stores_not_the_checkpoint_file_are_the_source_of_truth(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, "Offsets for Consumer Rebalances", 1."""
    feed(log, [1, 2])
    task = counting_task(tmp_path, log)
    task.open()
    task.run()
    task.close()
    checkpoint(tmp_path).write({LEFT: 0, RIGHT: 77})
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    assert checkpoint(tmp_path).read() == {LEFT: 1, RIGHT: 1}
    task.close()


def test_a_checkpoint_of_garbage_costs_direct_stores_their_data_and_nobody_else(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed(log, [1, 2])
    task = counting_task(tmp_path, log, DIRECT, INDEXED)
    task.open()
    task.run()
    task.close()
    checkpoint(tmp_path).path.write_bytes(b"\xff\x00")
    assert [(report.wiped, report.records) for report in task.open()] == [(True, 2), (False, 0)]
    task.close()
    assert checkpoint(tmp_path).read() == {LEFT: 1, RIGHT: 1}


@pytest.mark.parametrize("left", [INDEXED, DIRECT])
def test_a_store_that_is_ahead_of_its_changelog_is_wiped_and_restored(
    tmp_path: Path, log: MemoryChangelog, left: str
) -> None:
    """Source: KIP-892, offset out of range."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, left)
    task.open()
    task.run()
    task.close()
    with MemoryChangelog() as other:
        feed(other, [1])
        task = counting_task(tmp_path, other, left)
        reports = task.open()
        assert [(report.wiped, report.records) for report in reports] == [(True, 0)] * 2
        assert all(report.reason for report in reports)
        assert state(task, "left") == {}
        task.run()
        task.close()
        assert outputs(other) == expected_outputs([1])


@pytest.mark.parametrize("left", [INDEXED, DIRECT])
def test_a_store_that_its_truncated_changelog_no_longer_reaches_is_wiped_and_restored(
    tmp_path: Path, log: MemoryChangelog, left: str
) -> None:
    """Source: KIP-892, offset out of range."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, left, INDEXED)
    task.open()
    task.run(1)
    task.close()
    with log.producer() as producer:
        for number in range(5):
            producer.send(LEFT, b"%d" % number, b"9")
        producer.flush()
    log.truncate(LEFT, 3)
    reported, other = task.open()
    assert (reported.wiped, reported.from_offset, reported.records, other.wiped) == (True, 3, 3, False)
    assert state(task, "left") == {b"2": b"9", b"3": b"9", b"4": b"9"}
    task.close()


def test_a_corrupted_store_is_wiped_and_restored_with_the_reason_told(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2])
    task = counting_task(tmp_path, log, "sqlite-indexed-batch")
    task.open()
    task.run()
    task.close()
    for file in (tmp_path / "state" / "0_0" / "left" / "data").iterdir():
        file.write_bytes(b"garbage " * 2_000)
    left, right = task.open()
    assert (left.wiped, left.records, right.wiped) == (True, 2, False)
    assert isinstance(left.reason, str)
    assert state(task, "left") == state(task, "right") == expected_state([1, 2])
    task.close()


def test_a_lost_store_is_restored_from_the_start_in_bounded_pieces_that_tell_how_far_they_are(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.tasks.restore.PIECE_RECORDS_MAX", 10)
    told: list[RestoreProgress] = []
    task = single(tmp_path, log, lambda record, context: None, INDEXED, on_restore=told.append)
    partition = TopicPartition("app-s-changelog", 0)
    log.create_topic("app-s-changelog")
    with log.producer() as producer:
        for number in range(25):
            producer.send(partition, b"%02d" % number, b"abc")
        producer.flush()
    [report] = task.open()
    assert [(progress.offset, progress.to_offset, progress.records, progress.bytes) for progress in told] == [
        (9, 25, 10, 50),
        (19, 25, 20, 100),
        (24, 25, 25, 125),
    ]
    assert (report.store, report.from_offset, report.to_offset, report.records, report.bytes) == ("s", 0, 25, 25, 125)
    assert report.seconds > 0
    assert not report.wiped
    task.close()


def test_restoring_ends_where_aborted_records_and_gaps_are_all_that_is_left(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-98, control records and aborted records leave gaps."""
    partition = TopicPartition("app-s-changelog", 0)
    log.create_topic("app-s-changelog")
    with log.producer("other") as producer:
        for key in (b"a", b"a", b"b"):
            producer.begin()
            producer.send(partition, key, b"committed")
            producer.commit()
        producer.begin()
        for _ in range(10_001):
            producer.send(partition, b"a", b"aborted")
        producer.abort()
    log.compact(partition)
    task = single(tmp_path, log, lambda record, context: None, INDEXED)
    for records in (2, 0):
        [report] = task.open()
        assert (report.records, report.wiped) == (records, False)
        assert report.to_offset == log.end_offset(partition) > 3
        assert dict(task.store("s").all()) == {b"a": b"committed", b"b": b"committed"}
        task.close()


def test_the_changelogs_have_as_many_partitions_as_the_inputs(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("wide", 5)
    tasks = [single(tmp_path, log, count, inputs=[TopicPartition("wide", 3)])]
    tasks += [
        StreamTask(
            "app",
            TaskId(0, 4),
            state_dir=tmp_path,
            changelog=log,
            stores={"s": StoreSettings(MEMORY)},
            process=count,
            inputs=[TopicPartition("wide", 4)],
        )
    ]
    for task in tasks:
        task.open()
    assert log.topics()["app-s-changelog"] == 5
    for task in tasks:
        task.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"stores": {"../s": StoreSettings(MEMORY)}},
        {"stores": {"": StoreSettings(MEMORY)}},
        {"stores": {".checkpoint": StoreSettings(MEMORY)}},
        {"commit_every_records": 0},
    ],
)
def test_settings_that_do_not_fit_are_refused_and_nothing_is_made(
    tmp_path: Path, log: MemoryChangelog, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        single(tmp_path, log, count, **settings)
    assert list(tmp_path.iterdir()) == []


def test_opening_an_open_task_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    task = single(tmp_path, log, count)
    task.open()
    with pytest.raises(StoreError):
        task.open()
    task.close()


def test_a_task_id_is_written_and_read_as_two_numbers() -> None:
    assert str(TaskId(0, 12)) == "0_12"
    assert TaskId.parse("0_12") == TaskId(0, 12)
    for text in ("", "0", "0_", "0_1_2", "a_1", "0_01", "-1_0"):
        with pytest.raises(ValueError):
            TaskId.parse(text)
