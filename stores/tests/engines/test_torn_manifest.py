"""A record of RocksDB's manifest that power loss has torn: cut off after a crash, and damage after a clean close.

The file system may make a file longer before it writes the data: then the end of a torn record is zeros. RocksDB
refuses a manifest with such a record.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from struct import pack

import pytest

from stores import StoreCorruptedError, TopicPartition, open_store
from stores.engines.record_log import _BLOCK_BYTES, _crc32c, torn_record

LOG = TopicPartition("changelog", 0)
BACKEND = "rocksdb-indexed-batch"
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def record(payload: bytes, kind: int = FULL) -> bytes:
    """Return one record as RocksDB writes it."""
    checksum = _crc32c(bytes([kind]) + payload)
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return pack("<IHB", masked, len(payload), kind) + payload


def torn(whole: bytes, written: int) -> bytes:
    """Return a record of which only the first bytes were written: the rest is zeros."""
    return whole[:written] + bytes(len(whole) - written)


WHOLE = record(b"first") + record(b"second\0\0\0")
LONG = record(b"x" * 300)


@pytest.mark.parametrize("written", [5, 6, 7, 8, 100, 306])
def test_a_record_whose_end_is_zeros_is_torn_if_its_checksum_is_wrong(tmp_path: Path, written: int) -> None:
    (tmp_path / "log").write_bytes(WHOLE + torn(LONG, written))
    assert torn_record(tmp_path / "log") == len(WHOLE)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        WHOLE,
        WHOLE + bytes(50),
        WHOLE + LONG,
        WHOLE + LONG[:100],
        WHOLE + torn(LONG, 100)[:200],
        record(b"a")[:-1] + b"b",
        torn(record(b"a"), 7) + record(b"b"),
    ],
    ids=[
        "empty",
        "zeros of a payload",
        "zeros behind",
        "whole",
        "cut",
        "cut in zeros",
        "a flipped bit",
        "not the last",
    ],
)
def test_nothing_else_is_a_torn_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    assert torn_record(tmp_path / "log") is None


def test_a_torn_fragment_takes_its_whole_record_with_it(tmp_path: Path) -> None:
    begin = WHOLE + record(b"m" * (_BLOCK_BYTES - len(WHOLE) - 7), FIRST)
    assert len(begin) == _BLOCK_BYTES
    middle = record(b"m" * (_BLOCK_BYTES - 7), MIDDLE)
    (tmp_path / "log").write_bytes(begin + middle + torn(record(b"m" * 100, LAST), 50))
    assert torn_record(tmp_path / "log") == len(WHOLE)


def crashed(path: Path) -> tuple[Path, Path]:
    """Return a store as a crash leaves it, with three commits, and its manifest."""
    alive = path.with_name("alive")
    with open_store(BACKEND, alive, durability="DISK") as store:
        for number in range(3):
            store.put(b"%d" % number, b"v")
            store.commit({LOG: number})
        shutil.copytree(alive, path)
    return path, path / "data" / (path / "data" / "CURRENT").read_text().strip()


def test_after_a_crash_the_torn_record_is_cut_off_and_every_commit_is_there(tmp_path: Path) -> None:
    path, manifest = crashed(tmp_path / "store")
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + torn(LONG, 100))
    with open_store(BACKEND, path, durability="DISK") as store:
        assert [key for key, _ in store.all()] == [b"0", b"1", b"2"]
        assert store.committed_offset(LOG) == 2
        store.verify()
    with open_store(BACKEND, path, durability="DISK") as store:
        assert store.committed_offset(LOG) == 2


def test_after_a_clean_close_the_same_bytes_are_damage_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_store(BACKEND, path, durability="DISK") as store:
        store.put(b"k", b"v")
        store.commit({LOG: 0})
    manifest = path / "data" / (path / "data" / "CURRENT").read_text().strip()
    manifest.write_bytes(manifest.read_bytes() + torn(LONG, 100))
    content = manifest.read_bytes()
    with pytest.raises(StoreCorruptedError):
        open_store(BACKEND, path, durability="DISK")
    assert manifest.read_bytes() == content
