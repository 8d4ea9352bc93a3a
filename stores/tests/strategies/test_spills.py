"""Transactions that outgrow an indexed batch, looked at from behind: every crash point, what is left, who sees what.

Source: KIP-844, "Transactions via Secondary State Store", for what a staging store carries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stores import (
    Durability,
    IsolationLevel,
    ReadOnlyKeyValueStore,
    RecoveryOutcome,
    StoreCorruptedError,
    failpoints,
    open_store,
)
from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.engines.engine import Writes
from stores.files import identity
from stores.files import store_directory as migration
from stores.registry import backends
from stores.strategies import indexed_batch
from stores.tests.store_process import StoreProcess
from stores.tests.strategies.spilling import (
    FIRST,
    LOG,
    SECOND,
    TINY,
    assert_recovered,
    batch_of,
    every_backend,
    opened,
)


def crash(backend: str, path: Path, failpoint: str, *, after: int = 0) -> None:
    """Kill a process in its second commit, which is spilled, at the failpoint, reached ``after`` times before."""
    with StoreProcess() as process:
        process.call(
            "open", backend, path, Durability.PROCESS, {**TINY, "staging_buffer_bytes": 5000 + 100 * PAIR_MEMORY_BYTES}
        )
        process.call("put_many", 0, 100, b"old")
        process.call("commit", {LOG: 1})
        process.call("delete_range", b"%08d" % 50, b"%08d" % 99)
        process.call("put_many", 60, 200, b"n" * 50)
        process.call("kill_at", failpoint, after)
        process.call_until_killed("commit", {LOG: 2})


def crash_in_recovery(backend: str, path: Path, failpoint: str) -> None:
    """Kill a process that opens the store, at the failpoint."""
    with StoreProcess() as process:
        process.call("load_backend", backend)
        process.call("kill_at", failpoint)
        process.call_until_killed("open", backend, path, Durability.PROCESS, TINY)


@every_backend
@pytest.mark.parametrize(
    ("failpoint", "committed", "outcome"),
    [
        (indexed_batch.BEFORE_WRITE, 1, RecoveryOutcome.ROLLED_BACK),
        (indexed_batch.SEALED, 1, RecoveryOutcome.ROLLED_BACK),
        (indexed_batch.DECIDED, 2, RecoveryOutcome.ROLLED_FORWARD),
        (indexed_batch.MID_COPY, 2, RecoveryOutcome.ROLLED_FORWARD),
        (indexed_batch.COPIED, 2, RecoveryOutcome.ROLLED_BACK),
        (indexed_batch.AFTER_WRITE, 2, RecoveryOutcome.ROLLED_BACK),
    ],
)
def test_a_kill_leaves_one_of_the_two_commits_and_nothing_beside_it(
    path: Path, backend: str, failpoint: str, committed: int, outcome: RecoveryOutcome
) -> None:
    crash(backend, path, failpoint)
    assert assert_recovered(backend, path, committed=committed) is outcome


@every_backend
def test_a_roll_forward_is_carried_out_however_often_it_is_interrupted(path: Path, backend: str) -> None:
    crash(backend, path, indexed_batch.MID_COPY, after=1)
    for failpoint in (indexed_batch.RECOVER_BEFORE_COPY, indexed_batch.MID_COPY, indexed_batch.RECOVER_BEFORE_COPY):
        crash_in_recovery(backend, path, failpoint)
    assert assert_recovered(backend, path, committed=2) is RecoveryOutcome.ROLLED_FORWARD


@every_backend
def test_a_kill_when_a_roll_forward_is_complete_changes_nothing(path: Path, backend: str) -> None:
    crash(backend, path, indexed_batch.DECIDED)
    crash_in_recovery(backend, path, indexed_batch.RECOVER_COPIED)
    assert_recovered(backend, path, committed=2)


@every_backend
def test_a_roll_forward_comes_before_the_migration_of_an_older_store_and_is_reported(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spill has the format of the release that wrote it."""
    spilled: list[bool] = []
    for module in (identity, migration):
        monkeypatch.setattr(module, "STEPS", [lambda folder, _: spilled.append((folder / "data.tmp").exists())])
    crash(backend, path, indexed_batch.MID_COPY)
    (path / identity.IDENTITY_FILE).write_text(identity.Identity(backend, 1).text())
    assert assert_recovered(backend, path, committed=2) is RecoveryOutcome.ROLLED_FORWARD
    assert spilled == [False]
    assert identity.read_identity(path).format_version == 2


def remove_files(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def remove_folder(folder: Path) -> None:
    remove_files(folder)
    folder.rmdir()


@every_backend
@pytest.mark.parametrize("damage", [remove_files, remove_folder])
def test_a_spill_that_is_gone_when_its_copy_was_begun_makes_the_store_corrupted(
    path: Path, backend: str, damage: Callable[[Path], None]
) -> None:
    """Part of the transaction may be in the store: nobody can take it back."""
    crash(backend, path, indexed_batch.MID_COPY)
    [folder] = (path / "data.tmp").iterdir()
    damage(folder)
    for _ in range(2):
        with pytest.raises(StoreCorruptedError):
            opened(backend, path)


@every_backend
def test_a_spill_without_a_commit_record_is_not_copied(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't come about; where it does, a store says so rather than to guess."""
    with opened(backend, path) as store:
        store.put(b"key", b"v" * 600)
        [folder] = (path / "data.tmp").iterdir()
        store.staging.engine.write([], {indexed_batch._COPYING: bytes.fromhex(folder.name)})
        monkeypatch.setattr(indexed_batch.SecondStore, "remove", indexed_batch.SecondStore.close)
    with pytest.raises(StoreCorruptedError):
        opened(backend, path)


@every_backend
def test_a_commit_that_fits_into_memory_is_one_write_and_makes_no_file(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(backend, path) as store:
        before, written = {entry.name for entry in path.iterdir()}, []
        write = store.staging.engine.write

        def seen(layers: Sequence[Writes], *given: Any, **named: Any) -> None:
            written.append(len(layers))
            write(layers, *given, **named)

        monkeypatch.setattr(store.staging.engine, "write", seen)
        store.put(b"key", b"v" * (497 - PAIR_MEMORY_BYTES))
        store.commit({LOG: 1})
        assert written == [1]
        assert {entry.name for entry in path.iterdir()} == before
        assert indexed_batch._COPYING not in store.staging.engine.meta()


@every_backend
@pytest.mark.parametrize("ending", ["commit", "rollback", "close"])
def test_the_spill_is_gone_after_its_transaction(path: Path, backend: str, ending: str) -> None:
    store = opened(backend, path)
    for _ in range(2 if ending != "close" else 1):
        store.put_all(SECOND.items())
        assert len(list((path / "data.tmp").iterdir())) == 1
        getattr(store, ending)()
        assert not (path / "data.tmp").exists()
    store.close()
    with opened(backend, path) as store:
        assert dict(store.all()) == (SECOND if ending == "commit" else {})


@every_backend
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_scan_outlives_the_transaction_that_it_shows(path: Path, backend: str, ending: str) -> None:
    with opened(backend, path) as store:
        store.put_all(SECOND.items())
        scan = store.all()
        reverse_scan = store.reverse_all()
        first = next(reverse_scan)
        getattr(store, ending)()
        store.put_all((key, b"newer" * 20) for key in FIRST)
        store.commit()
        assert list(scan) == sorted(SECOND.items())
        assert [first, *reverse_scan] == sorted(SECOND.items(), reverse=True)
        store.rollback()
        assert not (path / "data.tmp").exists()


@every_backend
def test_keys_may_be_as_long_as_without_a_spill(path: Path, backend: str) -> None:
    with opened(backend, path) as store:
        keys = [bytes([letter]) * min(store.max_key_bytes, 5000) for letter in b"abc"]
        assert store.max_key_bytes == store.staging.engine.max_key_bytes
        for key in keys:
            store.put(key, b"v" * 400)
        assert batch_of(store).spill is not None
        assert [key for key, _ in store.all()] == keys
        store.commit()
        assert [key for key, _ in store.all()] == keys


@every_backend
def test_a_spilled_commit_replaces_the_writes_of_the_last_one_that_are_read_from_memory(
    path: Path, backend: str
) -> None:
    with opened(backend, path) as store:
        store.put(b"a", b"old")
        store.commit()
        assert batch_of(store).batch.recent == {b"a": b"old"}
        store.put(b"a", b"new")
        store.put_all([(b"%04d" % number, bytes(50)) for number in range(100)])
        assert batch_of(store).spill is not None
        store.commit()
        assert store.get(b"a") == b"new"


@every_backend
def test_uncommitted_bytes_stay_exact_across_spills(path: Path, backend: str) -> None:
    with opened(backend, path, staging_buffer_bytes=200) as store:
        for _ in range(3):
            for number in range(50):
                store.put(b"%04d" % number, b"v" * number)
        assert store.approximate_num_uncommitted_bytes() == sum(4 + number for number in range(50))
        store.put(b"0049", None)
        assert store.approximate_num_uncommitted_bytes() == sum(4 + number for number in range(49)) + 4
        store.delete_range(b"0010", b"0048")
        least = sum(4 + number for number in range(10)) + 4
        assert least <= store.approximate_num_uncommitted_bytes() <= least + 8
        store.rollback()
        assert store.approximate_num_uncommitted_bytes() == 0


def everything(view: ReadOnlyKeyValueStore) -> list[Any]:
    """All kinds of reads."""
    keys = sorted(FIRST.keys() | SECOND.keys())
    return [
        [view.get(key) for key in keys],
        view.get_many(keys),
        list(view.range(None, None)),
        list(view.reverse_range(keys[3], keys[-3])),
        list(view.prefix_scan(b"0000001")),
        list(view.reverse_prefix_scan(b"0000")),
    ]


@every_backend
def test_readers_see_a_commit_that_is_copied_whole_and_wait_for_no_part_of_it(path: Path, backend: str) -> None:
    """From the moment on that it is decided, on other threads, while the writer stands still between two parts."""
    seen: list[tuple[str, list[Any]]] = []
    with opened(backend, path) as store, ThreadPoolExecutor(2) as pool:
        views = [store.read_only(level) for level in IsolationLevel]
        store.put_all(FIRST.items())
        store.commit({LOG: 1})
        before = everything(views[0])
        store.delete_range(b"%08d" % 50, b"%08d" % 99)
        store.put_all((key, value) for key, value in SECOND.items() if key >= b"%08d" % 60)
        after = everything(store)
        assert everything(store.read_only(IsolationLevel.READ_COMMITTED)) == before
        assert everything(store.read_only(IsolationLevel.READ_UNCOMMITTED)) == after

        def look(failpoint: str) -> None:
            # Readers of uncommitted data may wait before the commit is decided.
            for view in views:
                seen.append((failpoint, pool.submit(everything, view).result(timeout=600)))

        with armed(indexed_batch.MID_COPY, look):
            store.commit({LOG: 2})
        assert [reads for _, reads in seen] == [after] * len(seen)
        assert len(seen) >= 2 * 2
        assert [everything(view) for view in views] == [after, after]


@contextmanager
def armed(failpoint: str, action: Callable[[str], None]) -> Iterator[None]:
    failpoints.arm(failpoint, lambda: action(failpoint))
    try:
        yield
    finally:
        failpoints.disarm(failpoint)


@every_backend
def test_a_spill_kept_for_an_iterator_is_removed_by_the_commit_after_its_close(path: Path, backend: str) -> None:
    with opened(backend, path) as store:
        store.put_all(SECOND.items())
        scan = store.all()
        store.commit()
        assert (path / "data.tmp").exists()
        scan.close()
        store.put(b"small", b"")
        store.commit()
        assert not (path / "data.tmp").exists()


@every_backend
def test_restored_records_don_t_go_by_the_batch(path: Path, backend: str) -> None:
    """However many they are: a restore is the engine's own write."""
    with opened(backend, path) as store:
        store.restore(list(SECOND.items()), {LOG: 5})
        assert not (path / "data.tmp").exists()
        assert dict(store.all()) == SECOND


# In ``make test``: see ``test_dual_store`` for a limit of the system, and the conformance suite for each backend.
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process has is asked of Linux")
@every_backend
def test_a_transaction_of_ten_times_the_memory_that_is_left_is_committed(path: Path, backend: str) -> None:
    """Source: KIP-844, "Motivation" of the secondary store."""
    room_bytes, value = 24 << 20, b"v" * 10_000
    sizes = ("staging_buffer_bytes", "copy_part_bytes", "write_buffer_size_bytes", "block_cache_size_bytes")
    options = dict.fromkeys((*sizes, "cache_size_bytes"), 1 << 20)
    known = {name: size for name, size in options.items() if name in backends()[backend].options}
    # Else each thread reserves 64 MiB, out of which memory is had whatever the limit.
    with StoreProcess() as process:
        process.call("open", backend, path, Durability.CHANGELOG, known)
        process.call("put_many", 0, 200, value)
        process.call("commit", {LOG: 1})
        left_bytes = process.call("limit_memory", room_bytes, 8 << 30)
        records = 11 * left_bytes // len(value)
        assert left_bytes >= room_bytes // 2
        process.call("put_many", 0, records, value)
        assert process.call("get", b"%08d" % 5) == value
        assert process.call("approximate_num_uncommitted_bytes") == records * (8 + len(value)) > 10 * left_bytes
        process.call("commit", {LOG: 2})
        process.call("close")
    with open_store(backend, path) as store:
        assert store.committed_offset(LOG) == 2
        assert sum(1 for _ in store.all()) == records


@pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process has is asked of Linux")
def test_what_must_stay_in_memory_does_not_fit_into_that_memory(path: Path) -> None:
    """That the limit of the test above is one."""
    with StoreProcess() as process:
        process.call("open", "memory-indexed-batch", path, Durability.CHANGELOG, {})
        left_bytes = process.call("limit_memory", 24 << 20, 8 << 30)
        with pytest.raises(AssertionError):
            process.call("put_many", 0, 11 * left_bytes // 10_000, b"v" * 10_000)
