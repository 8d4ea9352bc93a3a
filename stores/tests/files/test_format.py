"""Files on disk are as ``docs/format.md`` describes them: read here with none of the library's own code.

An older store is migrated to the present format on opening, a newer one is refused, and readers never write.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import pytest
from rocksdict import AccessType, Options, Rdict

from stores import (
    StoreCorruptedError,
    StoreTooNewError,
    StoreUnavailableError,
    TopicPartition,
    open_store,
)
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record
from stores.engines.engine import Writes
from stores.failpoints import disarm
from stores.files import store_directory as directory
from stores.files.creation import wipe
from stores.files.identity import STEPS, Identity, OpenEngine, present_version, read_identity
from stores.files.locks import take
from stores.records import INT64, STR, TimestampedKeyValue, Window
from stores.tasks import StoreConfig, StreamTask, TaskContext, TaskId
from stores.tests.changelog.plain_batches import plain_records

OFFSET = TopicPartition("shop-counts-changelog", 3)
INPUT = TopicPartition("orders", 3)
OFFSET_KEY = b"o" + (3).to_bytes(4, "big") + b"shop-counts-changelog"
POSITION_KEY = b"p" + (3).to_bytes(4, "big") + b"orders"


def write(path: Path, backend: str) -> None:
    """One pair, an offset, a position and a mark."""
    with open_store(backend, path) as store:
        store.put(b"apples", b"3")
        store.advance_position(INPUT, 7)
        store.set_mark("note", b"x" * 1500)
        store.commit({OFFSET: 41})


def check_meta(meta: dict[bytes, bytes]) -> None:
    assert meta[OFFSET_KEY] == struct.pack(">q", 41)
    assert meta[POSITION_KEY] == struct.pack(">q", 7)
    assert meta[b"mnote\x00\x00"] == b"x" * 1024
    assert meta[b"mnote\x00\x01"] == b"x" * 476


def without_checksum(key: bytes, kept: bytes) -> bytes:
    value, checksum = kept[:-4], kept[-4:]
    assert struct.unpack("<I", checksum) == (crc32(key + value),)
    return value


def test_the_identity_names_backend_and_version_and_the_mark_of_an_open_store_the_boot(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    with open_store("lmdb", path):
        mark = json.loads((path / "open").read_text())
        assert mark.keys() == {"boot", "pid", "durability", "tearable", "unsynced", "synced"}
    assert {file.name for file in path.iterdir()} == {"store.json", "lock", "data"}
    identity = json.loads((path / "store.json").read_text())
    checksum = crc32(b"lmdb-indexed-batch 1")
    assert identity == {"backend": "lmdb-indexed-batch", "format_version": 1, "checksum": checksum}


def test_a_rocksdb_store_has_its_meta_entries_in_a_column_family(tmp_path: Path) -> None:
    write(tmp_path / "counts", "rocksdb-indexed-batch")
    folder = str(tmp_path / "counts/data")
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(folder)}
    assert set(families) == {"default", "offsets"}
    found = Rdict(folder, Options(raw_mode=True), column_families=families, access_type=AccessType.read_only())
    offsets = found.get_column_family("offsets")
    data: dict[Any, Any] = dict(found.items())
    meta: dict[Any, Any] = dict(offsets.items())
    del offsets
    found.close()
    assert data == {b"apples": b"3"}
    check_meta(meta)


def test_an_lmdb_store_has_checksums_behind_its_values_and_in_its_meta_pages(tmp_path: Path) -> None:
    write(tmp_path / "counts", "lmdb")
    folder = tmp_path / "counts/data"
    with lmdb.open(str(folder), max_dbs=3, readonly=True, lock=False) as env:
        with env.begin() as txn:
            names = {name for name, _ in txn.cursor()}
        kept = {}
        for name in names:
            database = env.open_db(name)
            with env.begin(database) as txn:
                kept[name] = {key: without_checksum(key, value) for key, value in txn.cursor()}
    assert names == {b"data.crc32", b"meta.crc32"}
    assert kept[b"data.crc32"] == {b"apples": b"3"}
    check_meta(kept[b"meta.crc32"])
    content = (folder / "data.mdb").read_bytes()
    page_bytes = struct.unpack_from("<I", content, 40)[0]
    for at in (0, page_bytes):
        page = content[at : at + page_bytes]
        transaction_id, of_page, of_both = struct.unpack_from("<QII", page, 192)
        assert transaction_id == struct.unpack_from("<Q", page, 144)[0]
        assert of_page == crc32(page[:152])
        assert of_both == crc32(page[192:204])


def test_a_sqlite_store_has_two_tables_and_checksums_behind_its_values(tmp_path: Path) -> None:
    write(tmp_path / "counts", "sqlite")
    file = sqlite3.connect(tmp_path / "counts/data/store.db")
    assert file.execute("pragma user_version").fetchone() == (2,)
    data, meta = (
        {key: without_checksum(key, value) for key, value in file.execute(f"select key, value from {table}")}
        for table in ("data", "meta")
    )
    file.close()
    assert data == {b"apples": b"3"}
    check_meta(meta)


def test_a_spill_names_its_folder_and_ends_with_a_commit_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counts"
    options = {"staging_buffer_bytes": 200}
    seen = []
    with open_store("sqlite", path, options=options) as store:
        for number in range(8):
            store.put(b"%d" % number, b"x" * 50)
        store.delete_range(b"a", None)
        store.put(b"z", b"")
        for folder in (path / "data.tmp").iterdir():
            assert len(bytes.fromhex(folder.name)) == 8
            file = sqlite3.connect(f"file:{folder}/store.db?mode=ro", uri=True)
            seen += [without_checksum(key, value) for key, value in file.execute("select key, value from data")]
            file.close()
        store.commit({OFFSET: 1})
    assert seen
    assert all(value == b"\x01" + b"x" * 50 for value in seen)
    assert not (path / "data.tmp").exists()


def test_keys_and_values_of_typed_stores_are_laid_out_as_described(tmp_path: Path) -> None:
    timed = TimestampedKeyValue(key=STR, value=INT64)
    with timed.over(open_store("rocksdb-indexed-batch", tmp_path / "timed")) as store:
        store.put("ann", -1, 1_000)
        store.commit()
    with open_store("rocksdb-indexed-batch", tmp_path / "timed") as plain, plain.all() as pairs:
        assert list(pairs) == [(b"ann", struct.pack(">q", 1_000) + struct.pack(">Q", (1 << 63) - 1))]
    windows = Window(key=STR, value=STR, size_ms=1_000, retention_ms=600_000, segment_ms=100_000)
    with windows.over(open_store("rocksdb-indexed-batch", tmp_path / "windows")) as store:
        store.put("a\0b", "x", 250_000)
        store.commit()
    with open_store("rocksdb-indexed-batch", tmp_path / "windows") as plain, plain.all() as pairs:
        assert list(pairs) == [(struct.pack(">Q", 2) + b"a\0\xffb\0" + struct.pack(">Q", 250_000), b"x")]


def test_a_task_leaves_a_checkpoint_an_origin_and_a_lock(tmp_path: Path) -> None:
    def keep(record: Record, context: TaskContext) -> None:
        context.store("counts").put(record.key, record.value)

    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        log.create_topic("orders", 4)
        with log.producer() as producer:
            producer.send(INPUT, b"apples", b"3")
            producer.flush()
        task = StreamTask(
            "shop",
            TaskId(0, 3),
            state_dir=tmp_path / "state",
            changelog=log,
            stores={"counts": StoreConfig("rocksdb-direct")},
            process=keep,
            inputs=[INPUT],
        )
        task.open()
        task.run()
        task.close()
    folder = tmp_path / "state/0_3"
    assert {file.name for file in folder.iterdir()} == {".lock", ".checkpoint", ".origin", "rocksdb"}
    checkpoint = (folder / ".checkpoint").read_bytes()
    told, blanks = checkpoint[:-33], checkpoint[-33:-1]
    assert told.startswith(b"0\n1\nshop-counts-changelog 3 ")
    assert f"{crc32(told):032b}".translate(str.maketrans("01", " \t")).encode() == blanks
    origin = json.loads((folder / ".origin").read_text())
    assert origin == {"stores": {"counts": "clean"}, "checksum": crc32(b'{"counts": "clean"}')}
    log_file = sqlite3.connect(tmp_path / "log.sqlite")
    assert log_file.execute("pragma application_id").fetchone() == (0x6C6F6731,)
    [record] = plain_records(log_file, "shop-counts-changelog")
    log_file.close()
    assert (record.partition, record.key, record.value) == (3, b"apples", b"3")


BACKEND = "sqlite-indexed-batch"
BACKENDS = ["rocksdb-indexed-batch", "lmdb-indexed-batch", BACKEND]
CHANGELOG = TopicPartition("changelog", 0)
OLD = {b"a": b"1", b"b": b"2", b"c": b""}


class Stop(Exception):
    """Raised where a process would have died."""


def stop() -> None:
    raise Stop


def stamp(folder: Path, open_engine: OpenEngine) -> None:
    """Put a ``2`` before each value, in a write of its own, where there is none yet."""
    engine = open_engine(folder / "data")
    try:
        scan = engine.scan()
        pairs = scan.fetch()
        scan.close()
        for key, value in pairs:
            if not value.startswith(b"2:"):
                engine.write([Writes((), {key: b"2:" + value})], {})
    finally:
        engine.close()


def add_mark(folder: Path, open_engine: OpenEngine) -> None:
    (folder / "data" / "mark").write_text("3")


@pytest.fixture
def steps() -> Iterator[list[object]]:
    """Steps that a test adds, for as long as it runs."""
    before = list(STEPS)
    yield STEPS  # type: ignore[misc]
    STEPS[:] = before
    disarm()


def made(path: Path, backend: str = BACKEND) -> None:
    with open_store(backend, path) as store:
        store.put_all(OLD.items())
        store.commit({CHANGELOG: 7})


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_older_store_is_migrated_step_by_step_on_opening(path: Path, steps: list[object], backend: str) -> None:
    """Source: KIP-892, "Upgrading"."""
    made(path, backend)
    before = present_version()
    assert read_identity(path) == Identity(backend, before)
    steps += [stamp, add_mark]
    with open_store(backend, path) as store:
        assert dict(store.all()) == {key: b"2:" + value for key, value in OLD.items()}
        assert store.committed_offset(CHANGELOG) == 7
    assert read_identity(path) == Identity(backend, before + 2)
    assert (path / "data" / "mark").read_text() == "3"


def test_a_disk_that_refuses_the_migration_is_reported_and_the_store_stays_as_old_as_it_is(
    path: Path, steps: list[object]
) -> None:
    made(path)
    before = present_version()

    def refuse(folder: Path, open_engine: OpenEngine) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps.append(refuse)
    with pytest.raises(StoreUnavailableError):
        open_store(BACKEND, path)
    assert read_identity(path).format_version == before
    steps[-1] = stamp
    open_store(BACKEND, path).close()


def test_a_newer_store_is_refused_and_nothing_of_it_is_touched(path: Path, steps: list[object]) -> None:
    """Source: KIP-892, "Downgrading"."""
    steps.append(add_mark)
    made(path)
    assert read_identity(path).format_version == present_version()
    steps.pop()
    before = contents(path)
    with pytest.raises(StoreTooNewError) as error:
        open_store(BACKEND, path)
    assert str(path) in str(error.value)
    assert contents(path) == before
    wipe(path)
    open_store(BACKEND, path).close()
    assert read_identity(path).format_version == present_version()


@pytest.mark.parametrize("version", ["0", "-1", '"one"', "null"])
def test_a_version_that_never_was_is_damage(path: Path, version: str) -> None:
    made(path)
    (path / "store.json").write_text(f'{{"backend": "{BACKEND}", "format_version": {version}}}')
    with pytest.raises(StoreCorruptedError):
        open_store(BACKEND, path)


def test_readers_write_nothing_not_even_a_migration(path: Path, steps: list[object]) -> None:
    """A reader is had of an open store only; what is there then stays, whatever is read."""
    made(path)
    steps.append(stamp)
    with open_store(BACKEND, path) as store:
        before = contents(path)
        reader = store.read_only()
        assert dict(reader.all()) == {key: b"2:" + value for key, value in OLD.items()}
        assert reader.get(b"a") == b"2:1"
        # A memory map of SQLite's own, of which its log is the truth.
        assert {name: kept for name, kept in contents(path).items() if not name.endswith("-shm")} == {
            name: kept for name, kept in before.items() if not name.endswith("-shm")
        }


def test_a_store_that_another_process_migrated_meanwhile_is_not_migrated_again(
    path: Path, steps: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    ran = []

    def count(folder: Path, open_engine: OpenEngine) -> None:
        ran.append(folder)

    steps.append(count)

    def migrated_before(file: Path) -> int:
        (path / "store.json").write_text(Identity(BACKEND, present_version()).text())
        return take(file)

    monkeypatch.setattr(directory, "take", migrated_before)
    open_store(BACKEND, path).close()
    assert ran == []


def test_who_opens_an_older_store_twice_migrates_it_once(path: Path, steps: list[object]) -> None:
    made(path)
    ran = []

    def count(folder: Path, open_engine: OpenEngine) -> None:
        ran.append(folder)

    steps.append(count)
    for _ in range(2):
        open_store(BACKEND, path).close()
    assert ran == [path]
