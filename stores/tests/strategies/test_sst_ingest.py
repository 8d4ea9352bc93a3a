"""SST ingestion: one file and one step for each commit, and nothing of it elsewhere.

Source: KIP-892, "Rejected Alternatives".
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from stores import IsolationLevel, KeyValueStore, TopicPartition, failpoints, open_store
from stores.engines.engine import IngestingEngine, ingested_name
from stores.engines.rocksdb import RocksDBEngine
from stores.engines.rocksdb import engine as engine_module
from stores.engines.rocksdb.database import meta_of, record_of, write_sst_file
from stores.engines.rocksdb.kept_files import kept_files, with_kept_files
from stores.errors import (
    CommitFailedError,
    ConfigError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    must_reopen,
)
from stores.records import BYTES, TimestampedKeyValue
from stores.registry import Backend, backend_named
from stores.strategies.sst_ingest import FILES_WRITTEN, INGESTED, SstIngestStaging
from stores.tests.store_process import StoreProcess

LOG = TopicPartition("changelog", 0)
INGEST = "rocksdb-sst-ingest"
IN_MEMTABLE = "num_entries_active_mem_table"
SEVERAL_FILES: Mapping[str, object] = {"staging_buffer_bytes": 4096, "ingested_file_bytes": 4096}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(path: Path, **options: object) -> KeyValueStore:
    return open_store(INGEST, path, options=options)


def engine_of(store: KeyValueStore) -> Any:
    return store.staging.engine  # type: ignore[attr-defined]


def content(path: Path) -> dict[str, dict[bytes, bytes]]:
    """Return the content of each column family of a closed store, read with plain rocksdict."""
    options = Options(raw_mode=True)
    folder = str(path / "data")
    families = dict.fromkeys(Rdict.list_cf(folder, options), options)
    db = Rdict(folder, options=options, column_families=families, access_type=AccessType.read_only())
    found: dict[str, dict[Any, Any]] = {name: dict(db.get_column_family(name).items()) for name in families}
    db.close()
    return found


def num_files(path: Path) -> int:
    return len(list((path / "data").glob("*.sst")))


def test_a_commit_is_one_file_with_its_meta_entries_and_fills_no_memtable(path: Path) -> None:
    with opened(path) as store:
        for number in range(2):
            before = num_files(path)
            store.put(b"key %d" % number, b"value")
            store.set_mark("note", b"%d" % number)
            store.commit({LOG: number})
            assert num_files(path) == before + 1
            assert engine_of(store).metrics()[IN_MEMTABLE] == 0
    families = content(path)
    assert families["offsets"] == {}
    assert meta_of(families["default"].pop(b"")) == {
        b"o\0\0\0\0changelog": (1).to_bytes(8, "big"),
        b"mnote\0\0": b"1",
    }
    assert families["default"] == {b"key 0": b"value", b"key 1": b"value"}
    assert not (path / "data.tmp").exists()


def test_a_spilled_commit_is_ingested_by_one_call_as_links_and_leaves_no_spill(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path, **SEVERAL_FILES) as store:
        store.put_all([(b"%03d" % number, b"v" * 100) for number in range(300)])
        ingest = RocksDBEngine.ingest
        calls: list[set[int]] = []

        def recorded(self: RocksDBEngine, files: Sequence[Path]) -> None:
            calls.append({file.stat().st_ino for file in files})
            ingest(self, files)

        monkeypatch.setattr(RocksDBEngine, "ingest", recorded)
        store.commit({LOG: 1})
        assert len(calls) == 1
        assert len(calls[0]) > 5
        assert calls[0] <= {file.stat().st_ino for file in (path / "data").glob("*.sst")}
        assert store.staging.spill is None  # type: ignore[attr-defined]


def test_meta_entries_that_a_commit_does_not_change_stay(path: Path) -> None:
    other = TopicPartition("other", 3)
    with opened(path) as store:
        store.set_mark("note", b"1")
        store.commit({LOG: 1})
        store.put(b"a", b"1")
        store.commit({other: 2})
    with opened(path) as store:
        assert (store.committed_offset(LOG), store.committed_offset(other)) == (1, 2)
        assert store.mark("note") == b"1"


def test_every_commit_of_an_engine_counts_for_its_readers_also_the_first(path: Path) -> None:
    with opened(path) as store:
        before = engine_of(store)._num_writes()
        store.put(b"a", b"1")
        store.commit()
        assert engine_of(store)._num_writes() > before


def test_a_spilled_commit_is_several_files_of_which_a_kill_leaves_all_or_none(path: Path) -> None:
    for failpoint, remains in ((FILES_WRITTEN, 0), (INGESTED, 300)):
        with StoreProcess() as process:
            process.call("open", INGEST, path, "CHANGELOG", dict(SEVERAL_FILES))
            process.call("put_many", 0, 300, b"v" * 100)
            process.call("kill_at", failpoint)
            process.call_until_killed("commit", {LOG: 1})
        files = list((path / "data.tmp").glob("*.sst"))
        assert (len(files) > 5) is (failpoint == FILES_WRITTEN)
        with opened(path) as store:
            assert sum(1 for _ in store.all()) == remains
            assert store.committed_offset(LOG) == (1 if remains else None)
            assert not (path / "data.tmp").exists()


@pytest.mark.parametrize("durability", ["CHANGELOG", "PROCESS", "DISK"])
def test_each_acknowledged_commit_survives_a_kill_at_every_level(path: Path, durability: str) -> None:
    with StoreProcess() as process:
        process.call("open", INGEST, path, durability, {})
        assert json.loads((path / "open").read_text())["tearable"] is False
        for number in range(5):
            process.call("put_many", number, number + 1, b"value")
            process.call("commit", {LOG: number})
        process.kill()
    with open_store(INGEST, path, durability=durability) as store:
        assert store.committed_offset(LOG) == 4
        assert sum(1 for _ in store.all()) == 5


def test_a_range_delete_removes_committed_keys_and_keeps_newer_writes(path: Path) -> None:
    for options in ({}, SEVERAL_FILES):
        with opened(path, **options) as store:
            store.put_all([(b"%03d" % number, b"old" * 30) for number in range(200)])
            store.commit()
            scans = [store.range(None, None)]
            store.put(b"010", b"hidden")
            scans.append(store.range(None, None))
            store.delete_range(b"005", b"150")
            scans.append(store.range(None, None))
            store.put(b"020", b"new")
            store.delete(b"190")
            store.commit({LOG: 1})
            expected = [b"%03d" % number for number in (*range(5), 20, *range(151, 190), *range(191, 200))]
            assert [key for key, _ in store.all()] == expected
            assert store.get(b"020") == b"new"
            for scan in scans:
                scan.close()
            store.delete_range(None, None)
            store.commit()
            assert list(store.all()) == []
            assert store.committed_offset(LOG) == 1


def test_the_record_of_the_meta_entries_is_no_key_for_anybody(path: Path) -> None:
    with opened(path) as store:
        store.put(b"a", b"1")
        store.commit({LOG: 1})
        store.put(b"b", b"2")
        reader = store.read_only(IsolationLevel.READ_COMMITTED)
        assert store.get(b"") is None
        assert store.get_many([b"", b"a"]) == [None, b"1"]
        assert reader.get(b"") is None
        assert reader.get_many([b"a", b""]) == [b"1", None]
        assert list(store.reverse_all()) == [(b"b", b"2"), (b"a", b"1")]
        assert list(reader.all()) == list(reader.reverse_all()) == [(b"a", b"1")]
        assert store.approximate_num_entries() == 1
        with reader.snapshot() as snapshot:
            assert list(snapshot.reverse_range(None, None)) == [(b"a", b"1")]


def test_a_lookup_of_the_empty_key_in_a_typed_store_shows_no_meta_entries(path: Path) -> None:
    with opened(path) as store:
        records = TimestampedKeyValue(BYTES, BYTES).over(store)
        records.put(b"a", b"1", 5)
        store.commit({LOG: 1})
        records.put(b"b", b"2", 6)
        store.commit({LOG: 2})
        assert records.get(b"") is None


def test_an_ordinary_write_moves_the_meta_entries_to_their_family_and_back(path: Path) -> None:
    with opened(path) as store:
        store.put(b"a", b"1")
        store.set_mark("gone", b"1")
        store.commit({LOG: 1})
        engine = engine_of(store)
        former = engine.meta()
        engine.write([], {b"x": b"1", b"mgone\0\0": None})
        assert engine.meta() == {b"x": b"1", **{name: entry for name, entry in former.items() if name[:1] == b"o"}}
        assert engine._meta_record is None
        store.put(b"b", b"2")
        store.commit({LOG: 2})
        assert engine._meta_record is not None
        assert engine.bare_lookup()(b"") is None
        engine.write_file(path / "data.tmp/removal.sst", [], {b"x": None})
        engine.ingest([path / "data.tmp/removal.sst"])
        assert b"x" not in engine.meta()
        engine.write([], {})
        assert b"x" not in engine.meta()
    families = content(path)
    assert families["default"] == {b"a": b"1", b"b": b"2"}
    assert families["offsets"][b"o\0\0\0\0changelog"] == (2).to_bytes(8, "big")
    assert b"x" not in families["offsets"]


def test_a_restored_piece_is_ingested_as_well(path: Path) -> None:
    with opened(path) as store:
        store.restore([(b"b", b"1"), (b"a", b"2"), (b"b", None)], {LOG: 7})
        assert engine_of(store).metrics()[IN_MEMTABLE] == 0
        assert list(store.all()) == [(b"a", b"2")]
        assert store.committed_offset(LOG) == 7


def test_a_file_that_can_not_be_written_leaves_the_transaction_to_commit_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        store.put(b"a", b"1")
        (path / "data.tmp").touch()
        with pytest.raises(CommitFailedError) as error:
            store.commit({LOG: 1})
        assert not error.value.reopen
        (path / "data.tmp").unlink()
        store.commit({LOG: 1})
        assert store.committed_offset(LOG) == 1


def test_an_ingestion_that_fails_asks_to_open_the_store_again_which_leaves_no_file(path: Path) -> None:
    with opened(path) as store:
        store.put(b"a", b"1")

        def damage() -> None:
            for file in (path / "data.tmp").iterdir():
                file.write_bytes(b"no")

        failpoints.arm(FILES_WRITTEN, damage)
        try:
            with pytest.raises((CommitFailedError, StoreCorruptedError)):
                store.commit({LOG: 1})
        finally:
            failpoints.disarm()
        assert engine_of(store).meta() == {}
    with opened(path) as store:
        assert list(store.all()) == []
        assert not (path / "data.tmp").exists()


def test_a_snapshot_beside_ingestions_has_data_and_offsets_of_one_commit(path: Path) -> None:
    with opened(path) as store:
        store.put(b"n", b"0")
        store.advance_position(LOG, 0)
        store.commit()
        reader = store.read_only(IsolationLevel.READ_COMMITTED)
        ended, wrong = Event(), []

        def look() -> None:
            while not ended.is_set():
                with reader.snapshot() as snapshot:
                    if int(snapshot.get(b"n") or b"-1") != snapshot.position()[LOG]:
                        wrong.append(snapshot.position())

        thread = Thread(target=look)
        thread.start()
        try:
            for number in range(1, 60):
                store.put(b"n", b"%d" % number)
                store.advance_position(LOG, number)
                store.commit()
        finally:
            ended.set()
            thread.join()
        assert wrong == []


def test_an_engine_that_ingests_nothing_is_refused() -> None:
    for name in ("lmdb", "sqlite", "memory"):
        engine = backend_named(name).load_engine()
        assert not issubclass(engine, IngestingEngine)
        with pytest.raises(ConfigError):
            SstIngestStaging.check_engine(engine, f"{name}-sst-ingest")
    backend = Backend("lmdb-sst-ingest", backend_named("lmdb").load_engine, lambda: SstIngestStaging)
    assert backend.strategy == "sst-ingest"


@pytest.mark.parametrize("record", [b"\0", b"\0\0\0\2a", record_of({b"a": b"1"})[:-1], b"\0\0\0\1a"])
def test_a_damaged_record_of_meta_entries_is_corruption(record: bytes) -> None:
    with pytest.raises(StoreCorruptedError):
        meta_of(record)


def test_the_record_of_meta_entries_has_each_name_and_entry() -> None:
    meta = {b"b": b"", b"a": b"12", b"": b"3"}
    assert meta_of(record_of(meta)) == meta
    assert meta_of(record_of({b"a": None, b"b": b"1"})) == {b"b": b"1"}
    assert record_of({b"a": b"12"}) == b"\0\0\0\1a\0\0\0\x0212"


@pytest.mark.parametrize("several", [False, True])
def test_files_that_rocksdb_removes_after_its_manifest_names_them_are_put_back(
    path: Path, tmp_path: Path, several: bool
) -> None:
    """RocksDB does so if the sync of the manifest fails: the record of the ingestion is there all the same."""
    options = SEVERAL_FILES if several else {}
    copy, pairs = tmp_path / "copy", [(b"%06d" % number, bytes(100)) for number in range(200)]
    with opened(path, **options) as store:
        store.put(b"a", b"before")
        store.commit({LOG: 1})
        before = set((path / "data").glob("*.sst"))
        for key, value in pairs:
            store.put(key, value)
        store.commit({LOG: 2})
        shutil.copytree(path, copy)
        ingested = sorted(set((path / "data").glob("*.sst")) - before)
    assert (len(ingested) > 1) is several
    _remove_ingested(copy, [file.name for file in ingested])
    with opened(copy, **options) as store:
        assert list(store.all()) == [*pairs, (b"a", b"before")]
        assert store.committed_offset(LOG) == 2
        store.verify()
        store.put(b"b", b"after")
        store.commit({LOG: 3})
    assert not (copy / "data.tmp").exists()
    with opened(copy, **options) as store:
        assert store.committed_offset(LOG) == 3


def _remove_ingested(path: Path, names: list[str]) -> None:
    (path / "data.tmp").mkdir(exist_ok=True)
    for number, name in enumerate(names):
        (path / "data" / name).rename(path / "data.tmp" / ingested_name("0" * 16, number))


def test_files_of_another_commit_are_not_put_in_place_of_a_missing_one(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with opened(path) as store:
        for number in (1, 2):
            store.put(b"%d" % number, b"v")
            store.commit({LOG: number})
        shutil.copytree(path, copy)
    names = sorted(file.name for file in (copy / "data").glob("*.sst"))
    files = {name: (copy / "data" / name).read_bytes() for name in names}
    _remove_ingested(copy, names[-1:])
    [kept] = (copy / "data.tmp").iterdir()
    kept.write_bytes(files[names[0]])
    with pytest.raises(StoreCorruptedError, match="No such file"):
        opened(copy)
    assert sorted(file.name for file in (copy / "data").glob("*.sst")) == names[:-1]
    kept.write_bytes(files[names[-1]])
    with opened(copy) as store:
        assert store.committed_offset(LOG) == 2


def test_files_of_an_ingestion_that_fails_stay_until_the_next_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(family: Any, files: Sequence[Path]) -> None:
        raise must_reopen("it failed")

    with opened(path, **SEVERAL_FILES) as store:
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "take_over", fail)
            for number in range(200):
                store.put(b"%06d" % number, bytes(100))
            with pytest.raises(CommitFailedError):
                store.commit({LOG: 1})
        kept = sorted(file.name for file in (path / "data.tmp").glob("*.sst"))
    assert len(kept) > 1
    assert kept == [ingested_name(kept[0][:16], number) for number in range(len(kept))]
    with opened(path) as store:
        assert list(store.all()) == []
        assert not list((path / "data.tmp").glob("*.sst"))


def test_no_file_gets_a_number_below_one(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "data.tmp"
    data.mkdir()
    kept.mkdir()
    for number in range(3):
        (kept / ingested_name("a" * 16, number)).touch()
    met: set[str] = set()

    def open_() -> None:
        met.update(file.name for file in data.iterdir())
        raise StoreCorruptedError(f"While open a file: {data}/000002.sst: {os.strerror(errno.ENOENT)}")

    with pytest.raises(StoreCorruptedError):
        with_kept_files(data, open_)
    assert met == {f"{number:06}.sst" for number in range(1, 5)}


@pytest.mark.parametrize("named_first", [11, 12])
def test_kept_files_get_the_numbers_that_are_missing_and_replace_no_file(tmp_path: Path, named_first: int) -> None:
    data, kept = tmp_path / "data", tmp_path / "data.tmp"
    data.mkdir()
    kept.mkdir()
    (data / "000010.sst").write_bytes(b"another")
    for number in range(2):
        (kept / ingested_name("a" * 16, number)).write_bytes(b"%d" % number)

    def open_() -> list[bytes]:
        missing = next((n for n in (named_first, 11, 12) if not (data / f"{n:06}.sst").exists()), None)
        if missing is not None:
            raise StoreCorruptedError(f"While open a file: {data}/{missing:06}.sst: No such file or directory")
        return [(data / f"{n:06}.sst").read_bytes() for n in (10, 11, 12)]

    assert with_kept_files(data, open_) == [b"another", b"0", b"1"]


def test_files_of_a_commit_are_removed_if_a_further_one_can_not_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def fail_at_the_second(options: Any, file: Path, record: Any, parts: Any) -> None:
        if written:
            raise CommitFailedError("no room")
        written.append(file)
        write_sst_file(options, file, record, parts)

    with opened(path, **SEVERAL_FILES) as store:
        for number in range(200):
            store.put(b"%06d" % number, bytes(100))
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "write_sst_file", fail_at_the_second)
            with pytest.raises(CommitFailedError):
                store.commit({LOG: 1})
        assert written
        assert not list((path / "data.tmp").glob("*.sst"))
        store.commit({LOG: 1})
        assert not list((path / "data.tmp").glob("*.sst"))
        assert len(list(store.all())) == 200


@pytest.fixture
def spilled(path: Path, tmp_path: Path) -> tuple[Path, list[Path]]:
    """A copy of a store whose last commit has several files, and these files, which lie beside the data too."""
    copy = tmp_path / "copy"
    with opened(path, **SEVERAL_FILES) as store:
        store.put(b"a", b"before")
        store.commit({LOG: 1})
        before = {file.name for file in (path / "data").glob("*.sst")}
        for number in range(200):
            store.put(b"%06d" % number, bytes(100))
        store.commit({LOG: 2})
        shutil.copytree(path, copy)
    files = sorted(file for file in (copy / "data").glob("*.sst") if file.name not in before)
    (copy / "data.tmp").mkdir(exist_ok=True)
    for number, file in enumerate(files):
        os.link(file, copy / "data.tmp" / ingested_name("b" * 16, number))
    assert len(files) > 2
    return copy, files


@pytest.mark.parametrize("removed", ["the first", "all but the last", "all, and links in wrong places"])
def test_a_kill_while_files_are_removed_or_put_back_is_no_obstacle(
    spilled: tuple[Path, list[Path]], removed: str
) -> None:
    copy, files = spilled
    kept = sorted((copy / "data.tmp").iterdir())
    for file in files[:1] if removed == "the first" else files[:-1] if removed == "all but the last" else files:
        file.unlink()
    if "wrong" in removed:
        for file, place in zip(kept, [*files[1:], files[-1].with_name("000099.sst")], strict=True):
            os.link(file, place)
    # Files of an older failure, which fit nowhere, are tried and left alone.
    (copy / "data.tmp" / ingested_name("a" * 16, 0)).write_bytes(b"another")
    with opened(copy) as store:
        assert store.committed_offset(LOG) == 2
        assert len(list(store.all())) == 201
        store.verify()
    assert not (copy / "data.tmp").exists()


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.EPERM, StoreCorruptedError), (errno.ENOSPC, StoreUnavailableError)]
)
def test_files_that_can_not_be_linked_are_told_as_an_error_of_the_store(
    spilled: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch, number: int, expected: type[StoreError]
) -> None:
    def refuse(file: Path, place: Path) -> None:
        raise OSError(number, os.strerror(number), str(place))

    copy, files = spilled
    for file in files:
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        with pytest.raises(expected):
            opened(copy)
    with opened(copy) as store:
        assert store.committed_offset(LOG) == 2


def test_a_folder_that_kept_files_do_not_complete_is_left_as_it_was(spilled: tuple[Path, list[Path]]) -> None:
    copy, files = spilled
    files[0].unlink()
    kept = sorted((copy / "data.tmp").iterdir())
    kept[0].write_bytes(b"damaged")
    names = sorted(file.name for file in (copy / "data").glob("*.sst"))
    with pytest.raises(StoreCorruptedError):
        opened(copy)
    assert sorted(file.name for file in (copy / "data").glob("*.sst")) == names
    assert sorted((copy / "data.tmp").iterdir()) == kept


def test_who_only_reads_is_told_that_an_opening_puts_files_in_their_places(spilled: tuple[Path, list[Path]]) -> None:
    copy, files = spilled
    files[0].unlink()
    with pytest.raises(StoreUnavailableError, match="open the store for writing"):
        RocksDBEngine.open_read_only(copy / "data", live=False)
    (copy / "data.tmp" / "000001.sst").write_bytes(b"a table of a staging store")
    assert [len(commit) for commit in kept_files(copy / "data")] == [len(files)]


def test_missing_files_are_named_in_the_system_s_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, kept = tmp_path / "data", tmp_path / "data.tmp"
    data.mkdir()
    kept.mkdir()
    (kept / ingested_name("a" * 16, 0)).touch()
    monkeypatch.setattr(os, "strerror", lambda number: "Nicht gefunden")

    def open_() -> bool:
        if not (data / "000007.sst").exists():
            raise StoreCorruptedError(f"While open a file: {data}/000007.sst: Nicht gefunden")
        return True

    assert with_kept_files(data, open_)
