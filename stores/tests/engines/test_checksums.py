"""Damage that LMDB, SQLite and RocksDB pass over by themselves: what the engines here notice of it, and when."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores import StoreCorruptedError, TopicPartition, open_store
from stores.engines.checksum import CHECKSUM_BYTES, CHECKSUMMED, PLAIN, ValueCodec
from stores.engines.engine import Writes

LOG = TopicPartition("changelog", 0)
CHECKED = ["lmdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch", "sqlite-native"]
VALUE = b"a value that is found in the file"


def filled(path: Path, backend: str, *, checksums: bool = True) -> None:
    with open_store(backend, path, options={"checksums": checksums}) as store:
        store.put_all([(b"key%d" % number, VALUE + b"%d" % number) for number in range(20)])
        store.commit({LOG: 7})


def file_of(path: Path) -> Path:
    """The file with the data."""
    files = [file for file in (path / "data").iterdir() if file.name != "lock.mdb"]
    return max(files, key=lambda file: file.stat().st_size)


def replace(path: Path, old: bytes, new: bytes) -> None:
    content = file_of(path).read_bytes()
    assert old in content
    file_of(path).write_bytes(content.replace(old, new))


@given(key=st.binary(min_size=1), value=st.binary(), bit=st.integers(0, 1 << 20))
def test_a_record_is_as_it_was_written_or_refused(key: bytes, value: bytes, bit: int) -> None:
    kept = CHECKSUMMED.encode(key, value)
    assert len(kept) == len(value) + CHECKSUM_BYTES
    assert CHECKSUMMED.decode(key, kept) == value
    assert CHECKSUMMED.decode_pairs(CHECKSUMMED.encode_writes({key: value}, [key])) == [(key, value)]
    assert CHECKSUMMED.decode_many([key, key], [kept, None]) == [value, None]
    flipped = bytearray(key + kept)
    flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
    damaged = bytes(flipped[: len(key)]), bytes(flipped[len(key) :])
    with pytest.raises(StoreCorruptedError):
        CHECKSUMMED.decode(*damaged)
    with pytest.raises(StoreCorruptedError):
        CHECKSUMMED.decode_pairs([(key, kept), damaged])
    with pytest.raises(StoreCorruptedError):
        CHECKSUMMED.decode_many([damaged[0]], [damaged[1]])


@pytest.mark.parametrize("kept", ["text", 17, 1.5])
def test_what_is_no_bytes_is_no_record(kept: object) -> None:
    with pytest.raises(StoreCorruptedError):
        CHECKSUMMED.decode(b"key", kept)  # type: ignore[arg-type]
    with pytest.raises(StoreCorruptedError):
        CHECKSUMMED.decode_pairs([(b"key", kept)])  # type: ignore[list-item]


@pytest.mark.parametrize("backend", CHECKED)
def test_no_read_shows_a_changed_value(path: Path, backend: str) -> None:
    filled(path, backend)
    replace(path, VALUE + b"7", VALUE + b"8")
    with open_store(backend, path) as store:
        assert store.get(b"key6") == VALUE + b"6"
        for reading in (
            lambda: store.get(b"key7"),
            lambda: store.get_many([b"key6", b"key7"]),
            lambda: list(store.all()),
            lambda: list(store.reverse_all()),
            lambda: store.read_only().get(b"key7"),
            store.verify,
        ):
            with pytest.raises(StoreCorruptedError):
                reading()
        store.put(b"staged", b"1")
        with pytest.raises(StoreCorruptedError):
            list(store.range(b"key6", b"key8"))


@pytest.mark.parametrize("backend", CHECKED)
def test_scans_that_do_not_check_leave_that_to_lookups_and_verify(path: Path, backend: str) -> None:
    filled(path, backend)
    options = {"scan_checksums": False}
    with open_store(backend, path, options=options) as store:
        sound = list(store.all())
        store.verify()
    with open_store(backend, path) as store:
        assert list(store.all()) == sound
    replace(path, VALUE + b"7", VALUE + b"8")
    with open_store(backend, path, options=options) as store:
        wrong_pairs = [(key, VALUE + b"8" if key == b"key7" else value) for key, value in sound]
        assert (list(store.all()), list(store.reverse_all())) == (wrong_pairs, wrong_pairs[::-1])
        store.put(b"staged", b"1")
        assert list(store.range(None, b"key9")) == wrong_pairs[: len(list(store.range(None, b"key9")))]
        for reading in (lambda: store.get(b"key7"), lambda: store.read_only().get_many([b"key7"]), store.verify):
            with pytest.raises(StoreCorruptedError):
                reading()


@pytest.mark.parametrize("backend", CHECKED)
def test_a_changed_offset_is_detected_on_opening(path: Path, backend: str) -> None:
    filled(path, backend)
    name = b"o" + bytes(4) + b"changelog"
    replace(path, name + (7).to_bytes(8, "big"), name + (5).to_bytes(8, "big"))
    with pytest.raises(StoreCorruptedError):
        open_store(backend, path)


@pytest.mark.parametrize("backend", CHECKED)
@pytest.mark.parametrize("checksums", [True, False])
def test_a_store_keeps_checksums_as_it_was_made(path: Path, backend: str, checksums: bool) -> None:
    filled(path, backend, checksums=checksums)
    with open_store(backend, path, options={"checksums": not checksums}) as store:
        store.put(b"key0", VALUE + b"new")
        store.commit({LOG: 8})
        assert store.get(b"key0") == VALUE + b"new"
        store.verify()
    replace(path, VALUE + b"7", VALUE + b"8")
    with open_store(backend, path) as store:
        if checksums:
            with pytest.raises(StoreCorruptedError):
                store.get(b"key7")
        else:
            assert store.get(b"key7") == VALUE + b"8"


@pytest.mark.parametrize("codec", [PLAIN, CHECKSUMMED])
def test_a_layer_is_handed_over_in_key_order_a_part_at_a_time_and_without_its_deletes(codec: ValueCodec) -> None:
    class Ordered(Writes):
        """Writes whose keys are in order already, in two lists."""

        def keys_in_order(self) -> Iterable[list[bytes]]:
            return [keys[:100], keys[100:]]

    keys = [b"%05d" % number for number in range(3_000)]
    writes = {key: None if key.endswith(b"7") else b"value" for key in reversed(keys)}
    for layer in (Writes((), writes), Ordered((), writes)):
        parts = list(codec.encode_layer(layer))
        assert max(map(len, parts)) <= 1_024
        assert codec.decode_pairs([pair for part in parts for pair in part]) == [
            (key, b"value") for key in keys if not key.endswith(b"7")
        ]


def test_keys_that_are_in_order_already_are_not_sorted_again() -> None:
    class Ordered(Writes):
        def keys_in_order(self) -> Iterable[list[bytes]]:
            return [[b"b"], [b"a"]]

    layer = Ordered((), {b"a": b"1", b"b": b"2"})
    assert list(PLAIN.encode_layer(layer)) == [[(b"b", b"2")], [(b"a", b"1")]]


def test_without_checksums_nothing_is_added() -> None:
    assert PLAIN.encode(b"key", b"value") == PLAIN.decode(b"key", b"value") == b"value"
    assert PLAIN.decode_pairs(PLAIN.encode_writes({b"key": b""}, [b"key"])) == [(b"key", b"")]
    assert PLAIN.decode_many([b"a", b"b"], [b"1", None]) == [b"1", None]


@pytest.mark.parametrize("backend", CHECKED)
def test_checksums_take_nothing_from_the_longest_value(path: Path, backend: str) -> None:
    with open_store(backend, path) as checked:
        engine = checked.staging.engine  # type: ignore[attr-defined]
        assert engine.max_value_bytes + CHECKSUM_BYTES in ((1 << 32) - 1, 900_000_000)


@pytest.mark.parametrize("bit", range(0, 64, 3))
def test_a_meta_page_with_another_transaction_id_is_detected_on_opening(path: Path, bit: int) -> None:
    """Else LMDB would go by the head of the commit before."""
    filled(path, "lmdb-indexed-batch")
    whole = file_of(path).read_bytes()
    page_bytes = struct.unpack_from("=I", whole, 40)[0]
    for at in (144, page_bytes + 144):
        content = bytearray(whole)
        content[at + bit // 8] ^= 1 << bit % 8
        file_of(path).write_bytes(content)
        with pytest.raises(StoreCorruptedError):
            open_store("lmdb-indexed-batch", path)
    file_of(path).write_bytes(whole)
    open_store("lmdb-indexed-batch", path).close()


@pytest.mark.parametrize("bit", range(32))
def test_a_meta_page_that_names_other_pages_is_detected_on_opening(path: Path, bit: int) -> None:
    """Else LMDB would look for the other head where there is none, and blame the system."""
    filled(path, "lmdb-indexed-batch")
    content = bytearray(file_of(path).read_bytes())
    content[40 + bit // 8] ^= 1 << bit % 8
    file_of(path).write_bytes(content)
    with pytest.raises(StoreCorruptedError):
        open_store("lmdb-indexed-batch", path)


def test_lmdb_without_its_databases_is_damage_and_not_a_new_store(path: Path) -> None:
    filled(path, "lmdb-indexed-batch")
    with lmdb.open(str(path / "data"), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.drop(env.open_db(b"data.crc32", txn=txn))
    with pytest.raises(StoreCorruptedError):
        open_store("lmdb-indexed-batch", path)


def test_a_scan_of_all_of_lmdb_notices_that_records_are_missing(path: Path) -> None:
    filled(path, "lmdb-indexed-batch")
    content = file_of(path).read_bytes()
    # The count in the record of the named database: flags, depth, pages, entries.
    entries = struct.pack("=QQQQ", 0, 1, 0, 20)
    assert entries in content
    file_of(path).write_bytes(content.replace(entries, struct.pack("=QQQQ", 0, 1, 0, 21)))
    with open_store("lmdb-indexed-batch", path) as store:
        for reading in (lambda: list(store.all()), lambda: list(store.reverse_all()), store.verify):
            with pytest.raises(StoreCorruptedError):
                reading()
        assert len(list(store.range(b"key", None))) == 20


@pytest.mark.parametrize("statement", ["drop table data", "pragma user_version = 3", "drop table meta"])
def test_sqlite_without_its_tables_is_damage_and_not_a_new_store(path: Path, statement: str) -> None:
    filled(path, "sqlite-indexed-batch")
    with closing(sqlite3.connect(file_of(path), isolation_level=None)) as connection:
        connection.execute(statement)
    with pytest.raises(StoreCorruptedError):
        open_store("sqlite-indexed-batch", path)


@pytest.mark.parametrize("bit", [0, 2, 7])
def test_an_invalid_format_version_of_sqlite_is_detected_on_opening(path: Path, bit: int) -> None:
    """Else it could be read, and never written."""
    filled(path, "sqlite-indexed-batch")
    content = bytearray(file_of(path).read_bytes())
    content[18] ^= 1 << bit
    file_of(path).write_bytes(content)
    with pytest.raises(StoreCorruptedError):
        open_store("sqlite-indexed-batch", path)


@pytest.mark.parametrize("backend", ["rocksdb-direct", "rocksdb-indexed-batch", "rocksdb-dual-store"])
def test_a_manifest_of_rocksdb_that_seems_to_be_cut_short_is_detected_after_a_clean_close(
    path: Path, backend: str
) -> None:
    """A crash may cut it, and RocksDB goes on without its end: with data of one commit, and offsets of another."""
    with open_store(backend, path) as store:
        store.put(b"key", VALUE)
        store.commit({LOG: 7})
    for folder in sorted(path.glob("data*")):
        manifest = folder / (folder / "CURRENT").read_text().strip()
        whole = manifest.read_bytes()
        at = last = 0
        while at < len(whole):
            last, at = at, at + 7 + int.from_bytes(whole[at + 4 : at + 6], "little")
        content = bytearray(whole)
        content[last + 5] ^= 0x10
        manifest.write_bytes(content)
        for _ in range(2):
            with pytest.raises(StoreCorruptedError):
                open_store(backend, path)
        manifest.write_bytes(whole)
    open_store(backend, path).close()


@pytest.mark.parametrize("backend", ["sqlite-indexed-batch", "sqlite-native"])
def test_damage_to_sqlite_s_list_of_free_pages_which_no_read_touches_is_found_by_verify(
    path: Path, backend: str
) -> None:
    """Writes would go on and put data into pages that are in use: only SQLite's own check of its structure looks."""
    pairs = [(b"%06d" % number, VALUE * 10) for number in range(1000)]
    with open_store(backend, path) as store:
        store.put_all(pairs)
        store.commit()
        store.delete_range(b"000100", b"000900")
        store.commit({LOG: 7})
    content = bytearray(file_of(path).read_bytes())
    # The number of free pages. Source: SQLite's manual, "Database File Format", 1.3.6.
    content[39] ^= 1
    file_of(path).write_bytes(content)
    with open_store(backend, path) as store:
        left = pairs[:100] + pairs[901:]
        assert list(store.all()) == left
        assert store.get_many([key for key, _ in left]) == [value for _, value in left]
        assert store.committed_offset(LOG) == 7
        with pytest.raises(StoreCorruptedError):
            store.verify()
