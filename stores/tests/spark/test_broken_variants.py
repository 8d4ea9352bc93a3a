"""The checks of a partition's batches detect defects that make state or rows wrong; each is built in on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changelog.files import Header, PartitionLog, StoreChanges, VersionLog
from stores.changelog.files.format import PartitionFiles
from stores.errors import StoreError, StoreUnavailableError
from stores.spark import task
from stores.spark.local_state import LocalState
from stores.spark.plan import Plan, QueryBatch
from stores.tests.spark.counting import close_all, compute, expected, expected_rows, plan, state_in_log


def each_batch_counts_once(folder: Path) -> None:
    """Batches are repeated, restored elsewhere, and lost once before their version is in the log."""
    query_plan = plan(folder)
    for number in range(8):
        if number == 4:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(PartitionLog, "append", no_answer)
                with pytest.raises(StoreUnavailableError):
                    compute(query_plan, number)
            state = LocalState(Path(str(query_plan.local)) / query_plan.log_id, 0, query_plan.stores)
            try:
                assert state.version == number - 1
            finally:
                state.close()
        assert compute(query_plan, number) == expected_rows(number)
        assert compute(query_plan, number) == expected_rows(number)
        for version in range(max(0, number - 2), number + 1):
            assert state_in_log(folder, version) == expected(version)
        if number % 3 == 2:
            close_all()
            query_plan = replace(query_plan, local=str(folder / f"local {number}"))


def no_answer(log: PartitionLog, header: Header, changes: dict[str, StoreChanges]) -> Header:
    raise StoreUnavailableError("no answer")


def state_committed_before_the_log(patch: pytest.MonkeyPatch) -> None:
    take = LocalState.take_changes

    def early(state: LocalState) -> dict[str, StoreChanges]:
        version = -1 if state.version is None else state.version
        changes = take(state)
        state.commit(version + 1)
        return changes

    patch.setattr(LocalState, "take_changes", early)


def version_from_the_clock(patch: pytest.MonkeyPatch) -> None:
    """The next number at each attempt, as a clock gives."""

    def by_clock(plan: Plan, batch: QueryBatch, newest: Header | None, location: str) -> tuple[int, int]:
        assert time.time()
        return (0 if newest is None else newest.version + 1), 0

    patch.setattr(task, "version_of", by_clock)


def snapshot_of_an_open_version(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is written under the number of the version before."""
    write = PartitionLog.write_snapshot

    def open_version(log: PartitionLog, header: Header, records: Any) -> None:
        write(log, replace(header, version=header.version - 1, id=str(header.previous_id)), records)

    patch.setattr(PartitionLog, "write_snapshot", open_version)
    patch.setattr(PartitionLog, "snapshot_due", lambda log, listing: listing.newest not in (None, 0))


def snapshot_without_the_last_store(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalState, "records", lambda state: iter(()))


def rows_computed_again(patch: pytest.MonkeyPatch) -> None:
    """A repeated batch is computed from the newest state, which has it already."""

    def next_one(plan: Plan, batch: QueryBatch, newest: Header | None, location: str) -> tuple[int, int]:
        return (0 if newest is None else newest.version + 1), 0

    patch.setattr(task, "version_of", next_one)


def old_versions_removed_without_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    remove = PartitionLog.remove_old

    def eager(log: PartitionLog, listing: PartitionFiles) -> int:
        removals = remove(log, listing)
        for version in sorted(listing.versions)[:-2]:
            log._files.remove(f"v{version:012d}.arrows")
        return removals

    patch.setattr(PartitionLog, "remove_old", eager)
    patch.setattr(PartitionLog, "snapshot_due", lambda log, listing: False)


DEFECTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    state_committed_before_the_log,
    version_from_the_clock,
    snapshot_of_an_open_version,
    snapshot_without_the_last_store,
    rows_computed_again,
    old_versions_removed_without_a_snapshot,
)


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    close_all()


def test_the_library_passes(tmp_path: Path) -> None:
    each_batch_counts_once(tmp_path)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_detected(tmp_path: Path, defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        defect(patch)
        with pytest.raises((AssertionError, StoreError)):
            each_batch_counts_once(tmp_path)


def test_a_table_never_shows_a_version_that_some_partition_lacks(tmp_path: Path) -> None:
    query_plan = plan(tmp_path)
    compute(query_plan, 0)
    log = VersionLog.open(tmp_path / "state")
    assert log.newest_complete() is None
    list(task.run(query_plan, QueryBatch(1, 0, "another"), iter(())))
    assert log.newest_complete() == 0
    compute(query_plan, 1)
    assert log.newest_complete() == 0
