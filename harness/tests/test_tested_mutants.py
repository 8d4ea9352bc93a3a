"""Mutants that no experiment detects, or too rarely to rely on it: for each a test of the library must fail.

The test is run here as it is, once on sound code and once with the mutant built in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness.mutants import LIBRARY_TESTS, patch
from stores.changelog import MemoryChangelog
from stores.errors import StoreError
from stores.files.identity import STEPS
from stores.files.store_directory import STEP_DONE
from stores.interface import Durability
from stores.tests.changelog import test_checksums
from stores.tests.changelog.files import test_snapshot_chains
from stores.tests.strategies import test_dual_store
from stores.tests.tasks import test_change_kills, test_disk_errors
from stores.tests.tasks.setup import EXACTLY_ONCE, INDEXED, crashing_at
from stores.tests.tasks.stores import test_restoring

Patch = pytest.MonkeyPatch
Test = Callable[[Path, Patch], None]


def marker_by_number(folder: Path, changes: Patch) -> None:
    test_dual_store.test_a_marker_is_not_carried_out_with_the_staged_writes_of_another_commit_of_its_number(
        folder / "store", test_dual_store.AT_ONCE
    )


def staging_store_kept(folder: Path, changes: Patch) -> None:
    test_dual_store.test_the_staging_store_is_emptied_by_each_end_of_a_transaction(
        folder / "store", test_dual_store.AT_ONCE, "commit"
    )


def rolled_back_not_reopened(folder: Path, changes: Patch) -> None:
    test_disk_errors.test_a_store_whose_disk_failed_in_a_commit_is_opened_again_and_not_rolled_back(
        folder, MemoryChangelog(), changes, INDEXED, EXACTLY_ONCE
    )


def tombstone_unchecked(folder: Path, changes: Patch) -> None:
    test_checksums.test_a_damaged_tombstone_is_detected(folder, "time_ms = 1")


def range_of_512(folder: Path, changes: Patch) -> None:
    test_restoring.test_a_range_delete_of_many_keys_is_restored_whole(folder, MemoryChangelog())


def migration_noted_first(folder: Path, changes: Patch) -> None:
    steps = list(STEPS)
    test_change_kills.begin_migration(folder, Durability.PROCESS)
    try:
        with crashing_at(STEP_DONE):
            test_change_kills.migrate(folder, Durability.PROCESS)
    finally:
        STEPS[:] = steps
    test_change_kills.check_migration(folder, test_change_kills.BEFORE, None, Durability.PROCESS)


def removed_parts(folder: Path, changes: Patch) -> None:
    test_snapshot_chains.test_each_version_that_is_kept_is_restored_from_each_state(folder, 1)


TESTS: Mapping[str, Test] = {
    "marker-by-number": marker_by_number,
    "staging-store-kept": staging_store_kept,
    "rolled-back-not-reopened": rolled_back_not_reopened,
    "tombstone-unchecked": tombstone_unchecked,
    "range-of-512": range_of_512,
    "migration-noted-first": migration_noted_first,
    "removed-parts": removed_parts,
}
"""The test that must fail with each mutant."""


def test_every_mutant_of_a_library_test_has_one() -> None:
    assert set(TESTS) == set(LIBRARY_TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_a_test_of_the_library_fails_with_each_mutant_that_no_experiment_detects(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    for folder in ("sound", "mutated"):
        (tmp_path / folder).mkdir()
    with monkeypatch.context() as changes:
        TESTS[name](tmp_path / "sound", changes)
    # The test's own assertion, pytest's "did not raise", or an error of a store that sound code does not raise.
    with (
        monkeypatch.context() as changes,
        patch(name, ""),
        pytest.raises((AssertionError, pytest.fail.Exception, StoreError)),
    ):
        TESTS[name](tmp_path / "mutated", changes)
