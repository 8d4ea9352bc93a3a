"""One partition of a stateful query, without Spark: each batch counts once, whatever is repeated, lost or too late."""

from __future__ import annotations

import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stores import failpoints
from stores.changelog.files import Header, PartitionLog, Retention, StoreChanges
from stores.config import StoreConfig
from stores.errors import (
    ChangelogLostError,
    ConfigError,
    ProducerFencedError,
    StoreError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.records import INT64, STR, Window
from stores.spark import task
from stores.spark.context import Context
from stores.spark.local_state import LocalState
from stores.spark.plan import Plan, QueryBatch
from stores.spark.rows import Rows
from stores.tests.spark.counting import (
    COUNTS,
    OUTPUT,
    QUERY,
    batches,
    close_all,
    compute,
    count,
    events,
    expected,
    expected_rows,
    plan,
    state_in_log,
)

BACKENDS = ("rocksdb", "lmdb", "sqlite-native", "memory")


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_give_their_rows_and_the_state_of_a_plain_count(tmp_path: Path, backend: str) -> None:
    query_plan = plan(tmp_path, backend=backend)
    for number in range(8):
        assert compute(query_plan, number) == expected_rows(number)
        assert state_in_log(tmp_path) == expected(number)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_process_that_has_nothing_local_continues_from_the_log(tmp_path: Path, backend: str) -> None:
    for number in range(9):
        assert compute(plan(tmp_path, backend=backend), number) == expected_rows(number)
        close_all()
        if number % 2:
            shutil.rmtree(tmp_path / "local", ignore_errors=True)


def test_a_local_copy_is_brought_up_from_where_it_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query_plan = plan(tmp_path)
    elsewhere = replace(query_plan, local=str(tmp_path / "elsewhere"))
    compute(query_plan, 0)
    close_all()
    for number in (1, 2):
        compute(elsewhere, number)
    close_all()
    read: list[int] = []
    bring_to = LocalState.bring_to
    monkeypatch.setattr(LocalState, "bring_to", lambda *of: read.append(bring_to(*of)))
    assert compute(query_plan, 3) == expected_rows(3)
    assert read == [2]


def test_an_open_store_is_used_again_without_reading_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    state = task._open[query_plan.log_id, 0][1]
    read: list[int] = []
    bring_to = LocalState.bring_to
    monkeypatch.setattr(LocalState, "bring_to", lambda *of: read.append(bring_to(*of)))
    compute(query_plan, 1)
    assert task._open[query_plan.log_id, 0][1] is state
    assert read == [0]


def test_a_copy_in_use_is_left_and_another_one_is_restored(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    other = LocalState(Path(str(query_plan.local)) / query_plan.log_id, 0, query_plan.stores)
    other.bring_to(query_plan.open_log().partition(0), 0)
    assert dict(other.stores["counts"].all()) == expected(0)
    other.close()
    assert compute(query_plan, 1) == expected_rows(1)


def test_a_repeated_batch_gives_the_rows_of_the_log_whatever_the_function_would_answer(tmp_path: Path) -> None:
    def another(rows: Rows, context: Context) -> Iterator[Any]:
        raise AssertionError("a batch in the log is not computed")

    query_plan = plan(tmp_path)
    for number in range(4):
        assert compute(query_plan, number) == expected_rows(number)
        for _ in range(2):
            assert compute(replace(query_plan, process=another), number) == expected_rows(number)
    assert state_in_log(tmp_path) == expected(3)


def test_rows_that_do_not_fit_memory_come_from_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "ROWS_IN_MEMORY_BYTES", 0)
    assert compute(plan(tmp_path), 0) == expected_rows(0)


def test_an_attempt_that_was_not_first_gives_out_the_rows_of_the_first(tmp_path: Path) -> None:
    first = plan(tmp_path)
    raced = False

    def overtaken(rows: Rows, context: Context) -> Iterator[Any]:
        nonlocal raced
        yield from [("wrong", 77) for _ in rows]
        context.store("counts").put("wrong", 77)
        if not raced:
            raced = True
            assert compute(replace(first, local=str(tmp_path / "another")), context.batch_id or 0) == expected_rows(0)
            task._forget(first, 0)

    assert compute(replace(first, process=overtaken), 0) == expected_rows(0)
    assert compute(first, 1) == expected_rows(1)
    assert state_in_log(tmp_path) == expected(1)


def test_a_zombie_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)

    def late(rows: Rows, context: Context) -> Iterator[Any]:
        context.store("counts").put("wrong", 77)
        task._open.clear()
        for number in range(2):
            compute(replace(query_plan, local=str(tmp_path / "another")), number)
        task._forget(query_plan, 0)
        yield "wrong", 77

    with pytest.raises(ProducerFencedError):
        compute(replace(query_plan, process=late), 0)
    with pytest.raises(ProducerFencedError):
        compute(query_plan, 0)
    assert compute(query_plan, 2) == expected_rows(2)
    assert state_in_log(tmp_path) == expected(2)


def test_a_function_that_raises_commits_nothing_and_names_the_row(tmp_path: Path) -> None:
    def broken(rows: Rows, context: Context) -> Iterator[Any]:
        for row in rows:
            context.store("counts").put(row.plane, 77)
            yield row.plane, 77
            if rows.row_number == 9:
                raise ZeroDivisionError

    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    with pytest.raises(ZeroDivisionError) as error:
        compute(replace(query_plan, process=broken), 1)
    [note] = error.value.__notes__
    assert repr(events(1)[8]) in note
    assert "9" in note
    assert compute(query_plan, 1) == expected_rows(1)
    assert state_in_log(tmp_path) == expected(1)


@pytest.mark.parametrize("row", [("N1",), ("N1", "many"), ("N1", 2**63), "N1", {"plane": "N1"}, None])
def test_a_row_that_does_not_fit_is_refused_and_commits_nothing(tmp_path: Path, row: Any) -> None:
    def unfit(rows: Rows, context: Context) -> Iterator[Any]:
        context.store("counts").put("wrong", 77)
        yield "N1", 1
        yield row

    with pytest.raises(ConfigError) as error:
        compute(plan(tmp_path, unfit), 0)
    assert "row 2" in str(error.value)
    if isinstance(row, (tuple, dict)):
        assert "count" in str(error.value)
    assert compute(plan(tmp_path), 0) == expected_rows(0)


def test_rows_may_be_tuples_dictionaries_tables_or_none(tmp_path: Path) -> None:
    def mixed(rows: Rows, context: Context) -> Iterator[Any]:
        table = rows.table()
        yield "a", 1
        yield {"count": 2, "plane": "b"}
        yield (
            table.group_by("plane", use_threads=False).aggregate([([], "count_all")]).rename_columns(["plane", "count"])
        )

    assert compute(plan(tmp_path, mixed), 0) == [("a", 1), ("b", 2), *Counter(events(0)).items()]
    assert compute(plan(tmp_path, lambda rows, context: None), 1) == []


def test_a_partition_without_rows_makes_a_version_too(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    assert compute(query_plan, 0, []) == []
    assert compute(query_plan, 0, []) == []
    assert compute(query_plan, 1, ["N1"]) == [("N1", 1)]
    with pytest.raises(StoreError):
        compute(query_plan, 1, [])


def test_rows_of_another_partition_are_refused(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    with pytest.raises(StoreError):
        list(task.run(query_plan, QueryBatch(0, 0, QUERY), batches(["N1"], partition=1)))
    with pytest.raises(StoreError):
        list(task.run(query_plan, QueryBatch(7, 0, QUERY), batches([])))
    assert compute(query_plan, 0) == expected_rows(0)


def test_a_null_key_is_refused_or_a_group(tmp_path: Path) -> None:
    seen: list[Any] = []

    def process(rows: Rows, context: Context) -> None:
        seen.extend(row.plane for row in rows)

    with pytest.raises(ConfigError):
        compute(plan(tmp_path, process), 0, ["N1", None])
    compute(plan(tmp_path, process, null_keys="group"), 0, ["N1", None])
    assert seen == ["N1", None]


def test_rows_come_in_the_order_of_a_column(tmp_path: Path) -> None:
    seen: list[Any] = []

    def process(rows: Rows, context: Context) -> None:
        seen.extend(row.plane for row in rows)

    compute(plan(tmp_path, process, order_by="plane"), 0)
    assert seen == sorted(str(plane) for plane in events(0))


def test_another_query_an_older_checkpoint_and_a_lost_log_are_refused(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    for number in range(3):
        compute(query_plan, number)
    with pytest.raises(StoreIncompatibleError):
        compute(query_plan, 0, query="another")
    with pytest.raises(ProducerFencedError):
        compute(query_plan, 1)
    with pytest.raises(ChangelogLostError):
        compute(query_plan, 4)
    shutil.rmtree(tmp_path / "state" / "p00000")
    with pytest.raises(ChangelogLostError):
        compute(query_plan, 3)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(ChangelogLostError):
        compute(replace(query_plan, location=plan(tmp_path).location), 3)


def test_a_query_continues_the_state_of_a_batch_job(tmp_path: Path) -> None:
    job = plan(tmp_path, version=0)
    list(task.run(job, QueryBatch(0, None, None), batches(events(0))))
    for number in (1, 2):
        assert compute(plan(tmp_path), number - 1, events(number)) == expected_rows(number)
        assert compute(plan(tmp_path), number - 1, events(number)) == expected_rows(number)
    with pytest.raises(StoreIncompatibleError):
        list(task.run(plan(tmp_path, version=2), QueryBatch(0, None, None), batches(events(0))))


def test_of_two_jobs_that_make_the_same_version_one_is_refused(tmp_path: Path) -> None:
    def run(job: str | None) -> list[Any]:
        return list(task.run(plan(tmp_path, version=0, job=job), QueryBatch(0, None, None), batches(events(0))))

    rows = run("a")
    assert run("a") == rows
    with pytest.raises(StoreIncompatibleError):
        run("b")
    # A job that repeats the version says so, and has no ID.
    assert run(None) == rows


def test_a_log_that_was_brought_back_from_a_copy_counts(tmp_path: Path) -> None:
    """A local copy that is beyond its log is not the state of any version."""
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    compute(query_plan, 1)
    close_all()
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "copy", tmp_path / "state")
    assert compute(query_plan, 1, events(5)) != expected_rows(1)
    assert state_in_log(tmp_path) == dict(Counter([*events(0), *events(5)]))


@pytest.mark.parametrize("batches_elsewhere", [1, 2])
def test_a_copy_of_another_history_of_the_log_is_wiped_and_restored(tmp_path: Path, batches_elsewhere: int) -> None:
    """The log went back and on again elsewhere, so the copy has a version of the same number that is another one."""
    query_plan = plan(tmp_path, retention=Retention(snapshot_versions=100))
    compute(query_plan, 0)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    compute(query_plan, 1)
    close_all()
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "copy", tmp_path / "state")
    planes = events(0)
    for number in range(1, 1 + batches_elsewhere):
        # From the second one on few keys change, and the others keep what the first one made of them.
        rows = events(10 + number, 30 if number == 1 else 2)
        compute(replace(query_plan, local=str(tmp_path / "elsewhere")), number, rows)
        planes += rows
    close_all()
    compute(query_plan, 1 + batches_elsewhere, events(20))
    assert state_in_log(tmp_path) == dict(Counter([*planes, *events(20)]))


def test_a_damaged_local_copy_is_wiped_and_restored(tmp_path: Path) -> None:
    query_plan = plan(tmp_path, backend="lmdb")
    for number in range(5):
        compute(query_plan, number)
    close_all()
    for file in (tmp_path / "local").rglob("data.mdb"):
        file.write_bytes(b"\xff" * 8192)
    assert compute(query_plan, 5) == expected_rows(5)


def test_stores_of_typed_windows_keep_their_retention_through_a_restore(tmp_path: Path) -> None:
    windows = Window(key=STR, value=INT64, size_ms=10, retention_ms=100)

    def process(rows: Rows, context: Context) -> Iterator[Any]:
        store = context.store("windows")
        store.put("N1", 1, context.version * 40)
        yield "N1", sum(1 for _ in store.all())

    def given(local: str) -> Plan:
        stores = {"windows": StoreConfig("rocksdb", records=windows)}
        return plan(tmp_path, process, stores=stores, local=str(tmp_path / local))

    whole = [compute(given("one"), number)[0][1] for number in range(4)]
    for number in range(4, 8):
        whole += [compute(given(f"new {number}"), number)[0][1]]
        close_all()
    assert max(whole) == whole[-1] <= 4


def test_a_full_local_disk_fails_the_batch_which_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    close_all()

    def full(*_: object) -> None:
        raise StoreUnavailableError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(LocalState, "_restore", full)
        shutil.rmtree(tmp_path / "local")
        with pytest.raises(StoreUnavailableError):
            compute(query_plan, 1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalState, "commit", full)
        assert compute(query_plan, 1) == expected_rows(1)
    assert compute(query_plan, 2) == expected_rows(2)


def test_rows_that_find_no_room_leave_no_write_in_the_open_stores(tmp_path: Path) -> None:
    """The next attempt is in the same process, whose stores were open at the failure."""
    query_plan = plan(tmp_path, backend="memory")
    compute(query_plan, 0)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(rows: Rows, context: Context) -> Iterator[Any]:
        yield from count(rows, context)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        names = [Random(number).randbytes(20).hex() for number in range(5_000)]
        yield pa.record_batch([pa.array(names), pa.array([0] * len(names), pa.int64())], schema=OUTPUT)

    try:
        with pytest.raises(StoreUnavailableError):
            compute(replace(query_plan, process=full), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert compute(query_plan, 1) == expected_rows(1)
    assert state_in_log(tmp_path) == expected(1)


def test_functions_can_not_commit_or_close_their_stores(tmp_path: Path) -> None:
    def process(rows: Rows, context: Context) -> None:
        for call in ("commit", "rollback", "close"):
            for store in (context.store("counts"), context.store("counts").store):
                with pytest.raises(StoreError):
                    getattr(store, call)()
        with pytest.raises(ConfigError):
            context.store("names")

    compute(plan(tmp_path, process), 0)


def test_all_copies_in_use_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object) -> None:
        raise StoreLockedError("in use")

    monkeypatch.setattr(LocalState, "_open_all", locked)
    with pytest.raises(StoreUnavailableError):
        compute(plan(tmp_path), 0)


@pytest.mark.parametrize("reached", [True, False])
def test_a_store_never_leads_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: bool) -> None:
    """An append that fails, before or after the version is in the log, leaves the stores where they were."""
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    append = PartitionLog.append

    def fails(log: PartitionLog, header: Header, changes: dict[str, StoreChanges]) -> Header:
        if reached:
            append(log, header, changes)
        raise StoreUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", fails)
        with pytest.raises(StoreUnavailableError):
            compute(query_plan, 1)
    state = LocalState(Path(str(query_plan.local)) / query_plan.log_id, 0, query_plan.stores)
    assert state.version == 0
    state.close()
    assert compute(query_plan, 1) == expected_rows(1)
    assert state_in_log(tmp_path) == expected(1)


def test_the_failpoints_of_a_batch_are_reached_in_their_order(tmp_path: Path) -> None:
    stores = {name: StoreConfig("rocksdb", records=COUNTS) for name in ("counts", "other", "third")}
    query_plan, reached = plan(tmp_path, stores=stores), list[str]()
    names = [name for name in failpoints.declared() if name.startswith("spark.")]
    for name in names:
        failpoints.arm(name, lambda name=name: reached.append(name))  # type: ignore[misc]
    try:
        compute(query_plan, 0)
    finally:
        for name in names:
            failpoints.disarm(name)
    assert reached[-3:] == ["spark.between_stores", "spark.between_stores", "spark.committed"]
