"""A local copy is used for the log, the version and the stores that it belongs to, and closed when it is not used."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stores.changelog.files import Header, PartitionLog, Retention, StoreChanges, open_folder
from stores.changelog.files.snapshot_chains import RestorePiece
from stores.config import StoreConfig
from stores.errors import StoreCorruptedError, StoreError, StoreIncompatibleError
from stores.records import INT64, STR, Window
from stores.spark import task
from stores.spark.context import Context
from stores.spark.local_state import LOGGED_MARKS, VERSION_ID, LocalState
from stores.spark.plan import Plan, QueryBatch
from stores.spark.rows import Rows
from stores.tests.spark.counting import (
    COUNTS,
    OUTPUT,
    QUERY,
    batches,
    close_all,
    compute,
    events,
    expected,
    expected_rows,
    plan,
    state_in_log,
)


def copy_of(given: Plan, partition: int = 0) -> str:
    """The copy that another Python worker would take now, as its number."""
    state = LocalState(given.local_folder() / given.log_id, partition, given.stores)
    state.close()
    return state._path.name


def test_a_copy_is_wiped_if_its_log_has_no_version_any_more(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    shutil.rmtree(tmp_path / "state/p00000")
    assert compute(query_plan, 0, events(5)) == list(Counter(events(5)).items())
    assert state_in_log(tmp_path) == dict(Counter(events(5)))


def test_a_copy_that_has_only_the_marks_of_an_interrupted_restore_is_wiped(tmp_path: Path) -> None:
    """A restore begins with the marks. The stream time of another history would hide new windows."""
    configs = {"windows": StoreConfig("rocksdb", records=Window(STR, INT64, size_ms=10, retention_ms=100))}
    marks: dict[str, bytes | None] = {LOGGED_MARKS: b'["stream_time"]', "stream_time": bytes(8)}
    with closing(LocalState(tmp_path, 0, configs)) as state:
        state._restore(RestorePiece({"windows": StoreChanges(marks=marks)}, True, None))
    with closing(LocalState(tmp_path, 0, configs)) as state:
        assert list(state.records()) != []
        state.bring_to(PartitionLog(open_folder(tmp_path / "log"), 0, Retention()), None)
        assert list(state.records()) == []


def test_a_copy_with_a_mark_that_can_t_be_read_is_wiped(tmp_path: Path) -> None:
    configs = {"windows": StoreConfig("rocksdb", records=Window(STR, INT64, size_ms=10, retention_ms=100))}
    with closing(LocalState(tmp_path, 0, configs)) as state:
        state._restore(RestorePiece({"windows": StoreChanges({b"k": b"v"}, {"stream_time": b"?"})}, True, 0))
    with closing(LocalState(tmp_path, 0, configs)) as state:
        assert state.version is None
        assert list(state.records()) == []


def test_a_copy_with_a_version_id_that_is_no_text_is_not_of_the_log(tmp_path: Path) -> None:
    configs = {"counts": StoreConfig("rocksdb")}
    with closing(LocalState(tmp_path, 0, configs)) as state:
        state._restore(RestorePiece({"counts": StoreChanges(marks={VERSION_ID: b"\xff"})}, True, 0))
        log = PartitionLog(open_folder(tmp_path / "log"), 0, Retention())
        assert not state._is_of(log, 0, "0" * 16)


def test_a_copy_older_than_all_versions_of_the_log_keeps_nothing_of_its_own(tmp_path: Path) -> None:
    """The versions that deleted a key are gone, and the snapshot does not have it."""
    versions: list[int | None] = []

    def put_once(rows: Rows, context: Context) -> Iterator[tuple[str, int]]:
        versions.append(context.store("counts").get("once"))
        if context.store("counts").get("other") is None:
            context.store("counts").put("once", 1)
        else:
            context.store("counts").delete("once")
        context.store("counts").put("other", 1)
        yield from ()

    query_plan = plan(tmp_path, put_once, retention=Retention(snapshot_versions=3, keep_versions=1))
    elsewhere = replace(query_plan, local=str(tmp_path / "elsewhere"))
    compute(query_plan, 0)
    close_all()
    for number in range(1, 9):
        compute(elsewhere, number)
    close_all()
    compute(query_plan, 9)
    assert versions == [None, 1, *[None] * 8]


def test_copies_are_closed_when_a_worker_has_too_many_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "OPEN_MAX", 1)
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    assert copy_of(query_plan) == "1"
    first = task._open[query_plan.log_id, 0][1]
    list(task.run(query_plan, QueryBatch(1, 0, "another"), iter(())))
    assert list(task._open) == [(query_plan.log_id, 1)]
    assert not first._opened
    assert copy_of(query_plan) == "0"
    assert compute(query_plan, 1) == expected_rows(1)


def test_a_copy_of_which_another_worker_has_one_store_is_left_whole(tmp_path: Path) -> None:
    """Else its other stores stay open here, and nobody can use that copy."""
    configs = {"one": StoreConfig("rocksdb"), "other": StoreConfig("rocksdb")}
    with configs["other"].open(tmp_path / "p00000/0/other", name="other"):
        state = LocalState(tmp_path, 0, configs)
        assert state._path.name == "1"
        configs["one"].open(tmp_path / "p00000/0/one", name="one").close()
    state.close()


def test_open_stores_of_another_plan_are_closed(tmp_path: Path) -> None:
    """The same query, started again in the same worker with other stores or another folder."""
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    for number, other in enumerate(
        [
            plan(tmp_path, backend="lmdb"),
            plan(tmp_path, local=str(tmp_path / "elsewhere")),
            plan(tmp_path, stores={"counts": StoreConfig("rocksdb", records=COUNTS), "more": StoreConfig("rocksdb")}),
        ],
        1,
    ):
        before = task._open[query_plan.log_id, 0][1]
        assert compute(other, number) == expected_rows(number)
        assert not before._opened
        assert task._open[query_plan.log_id, 0][1].stores.keys() == other.stores.keys()
        assert task._open[query_plan.log_id, 0][1]._path.is_relative_to(other.local_folder())
    assert state_in_log(tmp_path) == expected(3)


def test_an_attempt_that_was_not_first_leaves_no_write_in_its_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query_plan, append = plan(tmp_path), PartitionLog.append
    compute(query_plan, 0)

    def overtaken(log: PartitionLog, header: Header, changes: dict[str, StoreChanges]) -> Header:
        first = replace(header, id="f" * 16, rows=None, num_rows=0)
        [(key, value)] = [pair for pair in changes["counts"].pairs.items() if pair[0] == b"N1"]
        append(log, first, {"counts": StoreChanges({key: value})})
        return append(log, header, changes)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", overtaken)
        assert compute(query_plan, 1) == []
    state = expected(0) | {"N1": expected(1)["N1"]}
    assert compute(query_plan, 2) == [
        (plane, state.get(plane, 0) + number) for plane, number in Counter(events(2)).items()
    ]


def test_a_function_that_raises_leaves_no_rows_in_the_log(tmp_path: Path) -> None:
    def broken(rows: Rows, context: Context) -> Iterator[Any]:
        for _ in range(25_000):
            yield "N1", 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compute(plan(tmp_path, broken), 0)
    assert list((tmp_path / "state/p00000").iterdir()) == []


def test_rows_of_many_batches_come_from_their_file_if_they_do_not_fit_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(rows: Rows, context: Context) -> Iterator[Any]:
        for number in range(35_000):
            yield "N1", number

    monkeypatch.setattr(task, "ROWS_IN_MEMORY_BYTES", 300_000)
    assert [number for _, number in compute(plan(tmp_path, many), 0)] == list(range(35_000))


def test_a_repeated_batch_whose_output_is_declared_otherwise_is_refused(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    turned = OUTPUT.set(1, OUTPUT.field(1).with_name("total"))
    with pytest.raises(StoreIncompatibleError) as error:
        compute(replace(query_plan, output=turned), 0)
    assert "count" in str(error.value)
    assert "total" in str(error.value)
    assert compute(query_plan, 0) == expected_rows(0)


def test_a_copy_whose_damage_shows_in_a_restore_is_wiped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query_plan = plan(tmp_path, retention=Retention(snapshot_versions=100))
    for number in range(3):
        compute(query_plan, number)
    restore, wipe_all = LocalState._restore, LocalState._wipe_all
    wipes: list[LocalState] = []

    def damaged(state: LocalState, piece: Any) -> None:
        if piece.reached == 1 and not wipes:
            raise StoreCorruptedError("a block's checksum does not fit")
        restore(state, piece)

    def wipe(state: LocalState, reason: str) -> None:
        wipes.append(state)
        wipe_all(state, reason)

    monkeypatch.setattr(LocalState, "_restore", damaged)
    monkeypatch.setattr(LocalState, "_wipe_all", wipe)
    assert compute(replace(query_plan, local=str(tmp_path / "elsewhere")), 3) == expected_rows(3)
    assert len(wipes) == 1


def test_rows_of_two_partitions_in_one_batch_are_refused(tmp_path: Path) -> None:
    mixed = [*batches(["N1"], partition=0), *batches(["N2"], partition=1)]
    [batch] = pa.Table.from_batches(mixed).combine_chunks().to_batches()
    with pytest.raises(StoreError):
        list(task.run(plan(tmp_path), QueryBatch(0, 0, QUERY), iter([batch])))


def test_a_link_under_the_name_of_a_version_is_not_the_logs(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    os.symlink("v000000000000.arrows", tmp_path / "state/p00000/v000000000001.arrows")
    assert query_plan.open_log().partition(0).listing().newest == 0
