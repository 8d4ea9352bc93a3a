"""The dual store's protocol, looked at from behind: every crash point, torn markers, copies in parts, spills.

Source: KIP-844, "Transactions via Secondary State Store" and "Error handling".
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stores import (
    CommitFailedError,
    ConfigError,
    Durability,
    RecoveryOutcome,
    StoreCorruptedError,
    StoreUnavailableError,
    TopicPartition,
    failpoints,
    open_store,
)
from stores.batch.memory import PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES
from stores.engines.engine import Engine, Writes
from stores.files import plain_files as files
from stores.strategies import dual_store
from stores.strategies import spilled as marker
from stores.strategies.batch_staging import BatchStaging
from stores.strategies.dual_store import DualStoreStaging
from stores.strategies.store import Store
from stores.tests.broken_disk import refuse
from stores.tests.store_process import StoreProcess

BACKEND = "rocksdb-dual-store"
LOG = TopicPartition("changelog", 0)
PART_BYTES = 2000
IN_PARTS: dict[str, object] = {"staging_buffer_bytes": 500, "copy_part_bytes": PART_BYTES}
AT_ONCE: dict[str, object] = {}
BEFORE_MARKER = [dual_store.BEFORE_SPILL, dual_store.SPILLED, marker.MARKER_WRITTEN]
AFTER_MARKER = [
    marker.MARKER_SYNCED,
    dual_store.COPIED,
    dual_store.TRUNCATED,
    dual_store.MARKER_REMOVED,
]
FIRST = {b"%08d" % number: b"old" for number in range(100)}
SECOND = {b"%08d" % number: b"old" if number < 50 else b"n" * 50 for number in (*range(50), *range(60, 200))}
"""After the second transaction, which removes 50 to 99 and writes 60 to 199."""


def second(store: Store) -> Engine:
    """The engine of the staging store."""
    assert isinstance(store.staging, BatchStaging)
    assert isinstance(store.staging, DualStoreStaging)
    return store.staging.second


def begin(process: StoreProcess, path: Path, durability: Durability, options: dict[str, object]) -> None:
    """Open in the process, commit ``FIRST`` at offset 1 and stage what makes it ``SECOND``."""
    process.call("open", BACKEND, path, durability, options)
    process.call("put_many", 0, 100, b"old")
    process.call("commit", {LOG: 1})
    process.call("delete_range", b"%08d" % 50, b"%08d" % 99)
    process.call("put_many", 60, 200, b"n" * 50)


def crash(path: Path, failpoint: str, durability: Durability, options: dict[str, object], *, after: int = 0) -> None:
    """Kill a process in its second commit, at the failpoint, reached ``after`` times before."""
    with StoreProcess() as process:
        begin(process, path, durability, options)
        process.call("kill_at", failpoint, after)
        process.call_until_killed("commit", {LOG: 2})


def crash_in_recovery(path: Path, failpoint: str, durability: Durability) -> None:
    """Kill a process that opens the store, at the failpoint."""
    with StoreProcess() as process:
        process.call("load_backend", BACKEND)
        process.call("kill_at", failpoint)
        process.call_until_killed("open", BACKEND, path, durability, {"copy_part_bytes": PART_BYTES})


def assert_recovered(path: Path, durability: Durability, *, committed: int) -> RecoveryOutcome:
    """The store is whole at the offset, nothing of the transaction is left beside it, and it goes on."""
    with open_store(BACKEND, path, durability=durability) as store:
        assert isinstance(store, Store)
        outcome = store.recover().outcome
        assert store.committed_offset(LOG) == committed
        assert dict(store.all()) == (FIRST if committed == 1 else SECOND)
        assert second(store).scan().fetch() == []
        assert not (path / "commit").exists()
        store.put(b"next", b"1")
        store.commit({LOG: committed + 1})
    with open_store(BACKEND, path, durability=durability) as store:
        assert store.recover().outcome is RecoveryOutcome.NOTHING_TO_DO
        assert store.committed_offset(LOG) == committed + 1
    return outcome


@pytest.mark.parametrize("options", [AT_ONCE, IN_PARTS], ids=["at once", "in parts"])
@pytest.mark.parametrize("failpoint", BEFORE_MARKER)
def test_a_kill_before_the_marker_rolls_back(path: Path, failpoint: str, options: dict[str, object]) -> None:
    crash(path, failpoint, Durability.PROCESS, options)
    outcome = assert_recovered(path, Durability.PROCESS, committed=1)
    assert outcome is RecoveryOutcome.ROLLED_BACK


@pytest.mark.parametrize("options", [AT_ONCE, IN_PARTS], ids=["at once", "in parts"])
@pytest.mark.parametrize("failpoint", AFTER_MARKER)
def test_a_kill_after_the_marker_rolls_forward(path: Path, failpoint: str, options: dict[str, object]) -> None:
    crash(path, failpoint, Durability.PROCESS, options)
    outcome = assert_recovered(path, Durability.PROCESS, committed=2)
    if failpoint != dual_store.MARKER_REMOVED:
        assert outcome is RecoveryOutcome.ROLLED_FORWARD


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("durability", Durability)
def test_a_kill_between_the_parts_of_a_copy_rolls_forward(path: Path, durability: Durability, after: int) -> None:
    """At CHANGELOG, too, if the first commit is in the files: a part may be there, so the rest must follow."""
    if durability is Durability.CHANGELOG:
        with open_store(BACKEND, path, durability=durability) as store:
            store.put_all(FIRST.items())
            store.commit({LOG: 1})
        with StoreProcess() as process:
            process.call("open", BACKEND, path, durability, IN_PARTS)
            process.call("delete_range", b"%08d" % 50, b"%08d" % 99)
            process.call("put_many", 60, 200, b"n" * 50)
            process.call("kill_at", dual_store.MID_COPY, after)
            process.call_until_killed("commit", {LOG: 2})
    else:
        crash(path, dual_store.MID_COPY, durability, IN_PARTS, after=after)
    assert assert_recovered(path, durability, committed=2) is RecoveryOutcome.ROLLED_FORWARD


def test_a_roll_forward_is_carried_out_however_often_it_is_interrupted(path: Path) -> None:
    crash(path, dual_store.MID_COPY, Durability.PROCESS, IN_PARTS, after=1)
    for failpoint in (
        dual_store.RECOVER_BEFORE_COPY,
        dual_store.MID_COPY,
        dual_store.RECOVER_BEFORE_COPY,
        dual_store.RECOVER_COPIED,
        dual_store.RECOVER_TRUNCATED,
    ):
        crash_in_recovery(path, failpoint, Durability.PROCESS)
    assert_recovered(path, Durability.PROCESS, committed=2)


def test_a_kill_while_rolling_back_changes_nothing(path: Path) -> None:
    crash(path, dual_store.SPILLED, Durability.PROCESS, IN_PARTS)
    crash_in_recovery(path, dual_store.RECOVER_TRUNCATED, Durability.PROCESS)
    assert_recovered(path, Durability.PROCESS, committed=1)


@pytest.mark.parametrize("failpoint", [*BEFORE_MARKER, *AFTER_MARKER, dual_store.MID_COPY])
def test_without_a_log_a_kill_leaves_some_commit_whole(path: Path, failpoint: str) -> None:
    """At CHANGELOG, with restored records, a commit of offsets alone, and parts that reach the files early."""
    other = TopicPartition("changelog", 1)
    states = {None: {}, 0: {b"restored": b"r"}, 1: {b"restored": b"r", **FIRST}, 2: {b"restored": b"r", **SECOND}}
    with StoreProcess() as process:
        options = {**IN_PARTS, "write_buffer_size_bytes": 64 << 10}
        process.call("open", BACKEND, path, Durability.CHANGELOG, options)
        process.call("restore", [(b"restored", b"r")], {LOG: 0})
        process.call("put_many", 0, 100, b"old")
        process.call("commit", {LOG: 1})
        process.call("commit", {other: 7})
        process.call("delete_range", b"%08d" % 50, b"%08d" % 99)
        process.call("put_many", 60, 200, b"n" * 50)
        process.call("kill_at", failpoint)
        process.call_until_killed("commit", {LOG: 2})
    with open_store(BACKEND, path) as store:
        offset = store.committed_offset(LOG)
        assert dict(store.all()) == states[offset]
        if offset == 2:
            assert store.committed_offset(other) == 7


def test_a_large_commit_that_was_acknowledged_is_never_half_there(path: Path) -> None:
    """At CHANGELOG some parts get into RocksDB's files by themselves, and the kill comes when the marker is gone."""
    with StoreProcess() as process:
        options = {"staging_buffer_bytes": 1000, "copy_part_bytes": 20_000, "write_buffer_size_bytes": 64 << 10}
        process.call("open", BACKEND, path, Durability.CHANGELOG, options)
        process.call("put_many", 0, 1000, b"a" * 100)
        process.call("commit", {LOG: 0})
        process.call("put_many", 0, 3000, b"b" * 100)
        process.call("commit", {LOG: 1})
    with open_store(BACKEND, path) as store:
        values = [value[:1] for _, value in store.all()]
        expected = {None: [], 0: [b"a"] * 1000, 1: [b"b"] * 3000}
        assert values == expected[store.committed_offset(LOG)]


def damage(path: Path, how: str) -> None:
    """Damage the marker; the commit record in the staging store stays valid."""
    file = path / "commit"
    text = file.read_bytes()
    texts = {
        "emptied": b"",
        "cut": text[:-20],
        "garbled": text[:40] + bytes([text[40] ^ 1]) + text[41:],
        "not text": b"\xff\xfe" * 40,
        "not JSON": b"00000000\n{\n",
        "another number": text.replace(b'"sequence": 2', b'"sequence": 3'),
    }
    file.write_bytes(texts[how])


DAMAGES = ["emptied", "cut", "garbled", "not text", "not JSON", "another number"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_torn_marker_is_detected_and_rolled_back_where_nothing_was_copied(path: Path, how: str) -> None:
    """A copy in one write has not begun, or is complete: either way the store is whole."""
    crash(path, marker.MARKER_SYNCED, Durability.PROCESS, AT_ONCE)
    damage(path, how)
    assert assert_recovered(path, Durability.PROCESS, committed=1) is RecoveryOutcome.ROLLED_BACK


@pytest.mark.parametrize("how", DAMAGES)
def test_a_torn_marker_of_a_copy_in_parts_makes_the_store_corrupted(path: Path, how: str) -> None:
    """Part of the transaction may be in the regular store: nobody can take it back."""
    crash(path, dual_store.MID_COPY, Durability.PROCESS, IN_PARTS)
    damage(path, how)
    for _ in range(2):
        with pytest.raises(StoreCorruptedError):
            open_store(BACKEND, path, durability=Durability.PROCESS)


def test_a_marker_whose_staged_data_are_gone_makes_the_store_corrupted(path: Path) -> None:
    crash(path, dual_store.MID_COPY, Durability.PROCESS, IN_PARTS)
    for file in (path / "data.tmp").iterdir():
        file.unlink()
    with pytest.raises(StoreCorruptedError):
        open_store(BACKEND, path, durability=Durability.PROCESS)


def test_a_marker_of_a_commit_that_is_long_in_the_store_does_no_harm(path: Path) -> None:
    """Power loss may bring a removed marker back."""
    crash(path, marker.MARKER_SYNCED, Durability.PROCESS, AT_ONCE)
    commit_file = (path / "commit").read_bytes()
    assert_recovered(path, Durability.PROCESS, committed=2)
    (path / "commit").write_bytes(commit_file)
    with open_store(BACKEND, path, durability=Durability.PROCESS) as store:
        assert store.committed_offset(LOG) == 3
        assert dict(store.all()) == {**SECOND, b"next": b"1"}
    assert not (path / "commit").exists()


@pytest.mark.parametrize("options", [AT_ONCE, IN_PARTS], ids=["at once", "in parts"])
def test_a_marker_is_not_carried_out_with_the_staged_writes_of_another_commit_of_its_number(
    path: Path, options: dict[str, object]
) -> None:
    """The first try was rolled back, and the kill took that and the second one's writes out of the staging store.

    At CHANGELOG: then the first one's are there with a commit record. The marker is the second one's, of that number.
    """

    def stop() -> None:
        raise KeyboardInterrupt

    store = open_store(BACKEND, path, options=options)
    store.put_all(FIRST.items())
    store.commit({LOG: 1})
    store.put_all((key, b"first try") for key in SECOND)
    failpoints.arm(dual_store.SPILLED, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.commit({LOG: 2})
    finally:
        failpoints.disarm()
    # Writes what the second store has into its files, sealed for commit 2.
    store.close()
    crash_at_second_try(path)
    assert assert_recovered(path, Durability.CHANGELOG, committed=1) is RecoveryOutcome.ROLLED_BACK


def crash_at_second_try(path: Path) -> None:
    """Kill a process in a commit that fits into memory, as soon as its marker stands."""
    with StoreProcess() as process:
        process.call("open", BACKEND, path, Durability.CHANGELOG, AT_ONCE)
        process.call("put_many", 60, 200, b"n" * 50)
        process.call("kill_at", marker.MARKER_SYNCED)
        process.call_until_killed("commit", {LOG: 2})


@pytest.mark.parametrize("options", [AT_ONCE, IN_PARTS], ids=["at once", "in parts"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_the_staging_store_is_emptied_by_each_end_of_a_transaction(
    path: Path, options: dict[str, object], ending: str
) -> None:
    """A store that stays open for months must not keep all that it was ever given a second time."""
    with open_store(BACKEND, path, options=options) as store:
        assert isinstance(store, Store)
        for number in range(3):
            store.put_all((key, value + b"%d" % number) for key, value in SECOND.items())
            getattr(store, ending)()
            assert second(store).scan().fetch() == []
            assert set(second(store).meta().values()) <= {None}


def test_a_marker_can_be_read_by_a_person(path: Path) -> None:
    crash(path, marker.MARKER_SYNCED, Durability.PROCESS, AT_ONCE)
    record = json.loads((path / "commit").read_text().split("\n")[1])
    assert record["sequence"] == 2
    assert record["in_parts"] is False


@pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process has is asked of Linux")
def test_a_transaction_of_ten_times_the_memory_that_is_left_is_committed(path: Path) -> None:
    """Source: KIP-844, "Motivation" of the secondary store."""
    value = b"v" * 10_000
    # Else each thread reserves 64 MiB, out of which memory is had whatever the limit.
    with StoreProcess() as process:
        sizes = ("staging_buffer_bytes", "copy_part_bytes", "write_buffer_size_bytes", "block_cache_size_bytes")
        process.call("open", BACKEND, path, Durability.CHANGELOG, dict.fromkeys(sizes, 1 << 20))
        process.call("put_many", 0, 10, value)
        process.call("commit", {LOG: 1})
        left_bytes = process.call("limit_memory", 24 << 20)
        assert left_bytes >= 12 << 20
        records = 11 * left_bytes // len(value)
        process.call("put_many", 0, records, value)
        assert process.call("get", b"%08d" % 5) == value
        process.call("commit", {LOG: 2})
        process.call("close")
    with open_store(BACKEND, path) as store:
        assert store.committed_offset(LOG) == 2
        assert sum(1 for _ in store.all()) == records


def test_uncommitted_bytes_stay_exact_across_spills(path: Path) -> None:
    with open_store(BACKEND, path, options={"staging_buffer_bytes": 200}) as store:
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
        assert list(store.all()) == []


@pytest.mark.parametrize("spills", [True, False])
def test_a_range_delete_over_writes_that_a_scan_holds_stays_one(path: Path, spills: bool) -> None:
    """The writes lie in a frozen layer, the range delete in the next: both reach the staging store in one write."""
    with open_store(
        BACKEND, path, options={"staging_buffer_bytes": 100 + 2 * PAIR_MEMORY_BYTES + RANGE_MEMORY_BYTES}
    ) as store:
        store.put(b"deleted", b"1")
        scan = store.all()
        store.delete_range(None, None)
        store.put(b"kept", b"v" * (200 if spills else 1))
        assert [key for key, _ in store.all()] == [b"kept"]
        store.commit()
        assert [key for key, _ in store.all()] == [b"kept"]
        assert list(scan) == [(b"deleted", b"1")]


def test_a_roll_forward_keeps_range_deletes_over_writes_that_a_scan_held(path: Path) -> None:
    with StoreProcess() as process:
        process.call("open", BACKEND, path, Durability.PROCESS, AT_ONCE)
        process.call("put", b"deleted", b"1")
        process.call("hold_scan")
        process.call("delete_range", None, None)
        process.call("put", b"kept", b"1")
        process.call("kill_at", marker.MARKER_SYNCED)
        process.call_until_killed("commit", {LOG: 1})
    with open_store(BACKEND, path, durability=Durability.PROCESS) as store:
        assert store.recover().outcome is RecoveryOutcome.ROLLED_FORWARD
        assert list(store.all()) == [(b"kept", b"1")]


def test_everything_staged_is_read_right_after_a_spill(path: Path) -> None:
    """When memory is empty, the staging store has everything."""
    with open_store(BACKEND, path, options={"staging_buffer_bytes": 0}) as store:
        store.put(b"key", b"old")
        store.commit()
        store.put(b"key", b"new")
        assert store.get(b"key") == b"new"
        assert store.get_many([b"key", b"other"]) == [b"new", None]
        assert list(store.all()) == list(store.reverse_all()) == [(b"key", b"new")]
        assert list(store.read_only().all()) == [(b"key", b"old")]
        store.put(b"key", None)
        assert store.get_many([b"key"]) == [None]
        store.rollback()
        assert store.get_many([b"key"]) == [b"old"]


@pytest.mark.parametrize("options", [AT_ONCE, IN_PARTS], ids=["at once", "in parts"])
def test_a_marker_that_can_t_be_removed_fails_the_commit_and_opening_again_settles_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    store = open_store(BACKEND, path, options=options)
    store.put_all(SECOND.items())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(CommitFailedError) as error:
            store.commit({LOG: 2})
    assert error.value.reopen
    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(StoreUnavailableError):
            open_store(BACKEND, path)
    assert assert_recovered(path, Durability.CHANGELOG, committed=2) is RecoveryOutcome.ROLLED_FORWARD


def test_a_marker_that_can_neither_be_finished_nor_removed_fails_the_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(BACKEND, path, durability=Durability.DISK)
    store.put_all(FIRST.items())
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_folder", refuse)
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(CommitFailedError) as error:
            store.commit({LOG: 1})
    assert error.value.reopen
    store.close()
    assert assert_recovered(path, Durability.DISK, committed=1) is RecoveryOutcome.ROLLED_FORWARD


@pytest.mark.parametrize(("part_bytes", "fewest", "most"), [(10_000, 8, 20), (4 << 20, 1, 1)])
def test_a_commit_copies_in_parts_of_about_the_size_that_was_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int, fewest: int, most: int
) -> None:
    options = {"staging_buffer_bytes": 1000, "copy_part_bytes": part_bytes}
    with open_store(BACKEND, path, options=options) as store:
        assert isinstance(store, Store)
        sizes, write = [], store.staging.engine.write

        def seen(layers: Sequence[Writes], *given: Any, **named: Any) -> None:
            sizes.append(sum(len(value or b"") for layer in layers for value in layer.writes.values()))
            write(layers, *given, **named)

        monkeypatch.setattr(store.staging.engine, "write", seen)
        for number in range(1000):
            store.put(b"%08d" % number, b"v" * 100)
        store.commit()
    assert sum(sizes) == 100_000
    assert fewest <= len([size for size in sizes if size]) <= most


def test_a_size_of_parts_that_is_none_is_refused(path: Path) -> None:
    for size in (-1, "4 MiB", 1.5):
        with pytest.raises(ConfigError):
            open_store(BACKEND, path, options={"copy_part_bytes": size})


@pytest.mark.parametrize("options", [AT_ONCE, IN_PARTS], ids=["at once", "in parts"])
def test_the_folder_of_the_marker_is_synced_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    """Else power loss might take the marker's name, and leave a part of what was copied."""
    path = tmp_path / "store"
    syncs: list[bool] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), path.stat()) and "commit" in os.listdir(path):
            syncs.append(True)
        sync(descriptor)

    with open_store(BACKEND, path, durability=Durability.DISK, options=options) as store:
        for number in range(100):
            store.put(b"%08d" % number, b"x" * 50)
        monkeypatch.setattr(os, "fsync", watched)
        seen: list[int] = []
        failpoints.arm(marker.MARKER_SYNCED, lambda: seen.append(len(syncs)))
        try:
            store.commit({LOG: 1})
        finally:
            failpoints.disarm()
    assert seen == [1]
