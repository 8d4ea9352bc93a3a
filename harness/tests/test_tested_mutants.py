"""Mutants that no fault of the sweeps shows, or too rarely to rely on it: for each a test of the library must fail.

The test is run here as it stands, once on sound code and once with the mutant built in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, checksum, sqlite
from stores.errors import StoreError
from stores.strategies.commit_marker import Marker
from stores.strategies.dual_store import DualStore
from stores.strategies.spilled import Spill
from stores.tasks.stores.changelogging_store import ChangeloggingStore
from stores.tasks.stores.task_store import TaskStore
from stores.tests import test_dual_store
from stores.tests.changelog import test_checksums
from stores.tests.tasks import test_disk_errors, test_restoring
from stores.tests.tasks.setup import EXACTLY_ONCE, INDEXED

Patch = pytest.MonkeyPatch
Build = Callable[[Patch], None]
Test = Callable[[Path, Patch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect, why no sweep is relied upon to find it, how it is built in, and the test that must fail."""

    meaning: str
    unseen: str
    build: Build
    test: Test


def marker_by_number(patch: Patch) -> None:
    def without_token(marker: Marker) -> bytes:
        return marker.sequence.to_bytes(8, "big") + bytes([marker.in_parts])

    recover = DualStore._recover

    def broken(store: DualStore) -> None:
        staging = store._staging
        sealed = staging.meta().get(b"s")
        if sealed is not None:
            patch.setattr(staging, "meta", lambda: {b"s": sealed[:9]})
        recover(store)

    patch.setattr(Marker, "seal", property(without_token))
    patch.setattr(DualStore, "_recover", broken)


def second_store_kept(patch: Patch) -> None:
    def broken(store: DualStore, spill: Spill) -> None:
        store._spill = None

    patch.setattr(DualStore, "_empty", broken)


def rolled_back_not_reopened(patch: Patch) -> None:
    patch.setattr(TaskStore, "_reopen", lambda store: store.store.rollback())


def tombstone_unchecked(patch: Patch) -> None:
    def broken(given: Any, offset: Any, key: Any, value: Any, *rest: Any) -> bool:
        return value is None or checksum.is_sound(given, offset, key, value, *rest)

    patch.setattr(sqlite, "is_sound", broken)


def range_of_512(patch: Patch) -> None:
    log_all = ChangeloggingStore._log_all

    def broken(store: ChangeloggingStore, pairs: Any) -> None:
        log_all(store, pairs if isinstance(pairs, list) else islice(pairs, 512))

    patch.setattr(ChangeloggingStore, "_log_all", broken)


MUTANTS: Mapping[str, Mutant] = {
    "marker-by-number": Mutant(
        "a dual store compares its marker with the second store by the commit's number, and not by its token",
        "the two differ only after a commit was tried twice and a kill at CHANGELOG took the second try away",
        marker_by_number,
        lambda path, patch: (
            test_dual_store.test_a_marker_is_not_carried_out_with_the_staged_writes_of_another_commit_of_its_number(
                path / "store", test_dual_store.AT_ONCE
            )
        ),
    ),
    "second-store-kept": Mutant(
        "a dual store's second store is never emptied while it is open",
        "opening empties it: what is left in it is only room that is taken",
        second_store_kept,
        lambda path, patch: test_dual_store.test_the_second_store_is_emptied_by_each_end_of_a_transaction(
            path / "store", test_dual_store.AT_ONCE, "commit"
        ),
    ),
    "rolled-back-not-reopened": Mutant(
        "a task rolls back a store whose disk has failed, and does not open it again",
        "which engine refuses all writes after a failed call depends on the call",
        rolled_back_not_reopened,
        lambda path, patch: (
            test_disk_errors.test_a_store_whose_disk_failed_in_a_commit_is_opened_again_and_not_rolled_back(
                path, MemoryChangelog(), patch, INDEXED, EXACTLY_ONCE
            )
        ),
    ),
    "tombstone-unchecked": Mutant(
        "the checksum of a tombstone in the changelog is not looked at",
        "few flipped bits hit a tombstone, and fewer make it delete another key",
        tombstone_unchecked,
        lambda path, patch: test_checksums.test_a_damaged_tombstone_is_detected(path, "key = x'6b39'"),
    ),
    "range-of-512": Mutant(
        "only the first 512 keys of a range delete are logged to the changelog",
        "the sweeps' workload has fewer keys",
        range_of_512,
        lambda path, patch: test_restoring.test_a_range_delete_of_many_keys_is_restored_whole(path, MemoryChangelog()),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_of_the_library_fails_with_each_mutant_that_no_sweep_shows(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    mutant = MUTANTS[name]
    for folder in ("sound", "broken"):
        (tmp_path / folder).mkdir()
    with monkeypatch.context() as patch:
        mutant.test(tmp_path / "sound", patch)
    with monkeypatch.context() as patch:
        mutant.build(patch)
        # The test's own assertion, pytest's "did not raise", or an error of a store that sound code does not raise.
        with pytest.raises((AssertionError, pytest.fail.Exception, StoreError)):
            mutant.test(tmp_path / "broken", patch)
