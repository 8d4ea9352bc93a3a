"""SST ingestion: one file and one step for each commit, and nothing of it elsewhere.

Source: KIP-892, "Rejected Alternatives".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from stores import IsolationLevel, KeyValueStore, TopicPartition, failpoints, open_store
from stores.engines.ingesting import IngestingEngine
from stores.engines.rocksdb import RocksDBEngine
from stores.engines.rocksdb import engine as engine_module
from stores.engines.rocksdb.database import meta_of, record_of, write_sst_file
from stores.errors import CommitFailedError, ConfigError, StoreCorruptedError
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
