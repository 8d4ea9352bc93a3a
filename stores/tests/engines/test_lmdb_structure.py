"""The check of an LMDB file accepts each file that LMDB writes, and detects a wrong number of a value's pages."""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import pytest

from stores import open_store
from stores.engines.lmdb.file import DATA_FILE, check_structure
from stores.errors import StoreCorruptedError

PAGE_BYTES, OVERFLOW = 4096, 4
HEADER = Struct("=QHHI")
"""Of the first page of a value: its number, padding, flags, and the number of pages."""
LONG, SHORT = 20_000, 5_000


def shortened(path: Path, backend: str) -> Path:
    """A closed store in which a transaction has put a long value, then a short one, and others beside it."""
    with open_store(backend, path) as store:
        store.put(b"beside", b"f" * LONG)
        store.commit({})
        store.put(b"key", b"l" * LONG)
        # What is staged is frozen for this scan, and the next put begins another layer.
        scan = store.all()
        store.put(b"key", b"s" * SHORT)
        store.put(b"other", b"o" * LONG)
        store.put(b"beside", b"b" * SHORT)
        scan.close()
        store.commit({})
    return path / "data"


def counts(data: Path) -> dict[int, int]:
    """The numbers of pages of the committed values, by the first of them."""
    content = (data / DATA_FILE).read_bytes()
    counted = {}
    for number in range(2, len(content) // PAGE_BYTES):
        own_number, _, flags, pages = HEADER.unpack_from(content, number * PAGE_BYTES)
        begin = content[number * PAGE_BYTES + HEADER.size :][:1]
        if (own_number, flags) == (number, OVERFLOW) and begin in b"sob":
            counted[number] = pages
    return counted


@pytest.mark.parametrize("backend", ["lmdb-native", "lmdb-indexed-batch"])
def test_a_value_that_was_longer_in_its_transaction_is_no_damage(tmp_path: Path, backend: str) -> None:
    data = shortened(tmp_path / "store", backend)
    check_structure(data)
    with open_store(backend, tmp_path / "store") as store:
        store.verify()
        assert store.get(b"key") == b"s" * SHORT
        for number in range(20):
            store.put(b"%d" % number, b"v" * LONG)
            store.put(b"key", b"s" * number)
            store.commit({})
    check_structure(data)


def test_lmdb_leaves_a_value_its_pages(tmp_path: Path) -> None:
    """Otherwise nothing here tests what it says."""
    assert sorted(counts(shortened(tmp_path / "store", "lmdb-native")).values()) == [2, 5, 5]


@pytest.mark.parametrize("by", [-1, 1, 2, 1 << 20])
def test_a_wrong_number_of_pages_is_damage(tmp_path: Path, by: int) -> None:
    data = shortened(tmp_path / "store", "lmdb-native")
    file = data / DATA_FILE
    content = file.read_bytes()
    for number, pages in counts(data).items():
        damaged = bytearray(content)
        HEADER.pack_into(damaged, number * PAGE_BYTES, number, 0, OVERFLOW, pages + by)
        file.write_bytes(damaged)
        with pytest.raises(StoreCorruptedError):
            check_structure(data)
    file.write_bytes(content)
    check_structure(data)
