"""The properties of RocksDB's column families, and the flushes that follow from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.engines.rocksdb import RocksDBEngine
from stores.engines.rocksdb.flushes import Flushes
from stores.interface import Durability

ACTIVE, IMMUTABLE = "rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables"
HELD = "rocksdb.cur-size-all-mem-tables"


class Family:
    """A family with planned properties: an immutable memtable lasts only as long as its flush."""

    def __init__(self, **figures: int) -> None:
        self.figures = figures

    def property_int_value(self, name: str) -> int | None:
        return self.figures.get(name.removeprefix("rocksdb.").replace("-", "_"))


@pytest.mark.parametrize(("active", "immutable", "persisted"), [(0, 0, 10), (3, 0, 7), (0, 4, 6), (3, 4, 3)])
def test_a_commit_is_persistent_once_no_memtable_has_it_any_more(active: int, immutable: int, persisted: int) -> None:
    data = Family(num_entries_active_mem_table=1_000, num_entries_imm_mem_tables=1_000)
    offsets = Family(num_entries_active_mem_table=active, num_entries_imm_mem_tables=immutable)
    flushes = Flushes(data, offsets)
    flushes.entries += 10
    assert (flushes.mark(), flushes.persisted()) == (10, persisted)


def test_what_a_store_holds_is_that_of_both_families() -> None:
    assert Flushes(Family(cur_size_all_mem_tables=1_000), Family(cur_size_all_mem_tables=20)).held_bytes() == 1_020


def test_rocksdb_knows_the_properties_that_are_asked_for(tmp_path: Path) -> None:
    engine: Any = RocksDBEngine.open(tmp_path, Durability.CHANGELOG, RocksDBEngine.options)
    try:
        for family in (engine._db, engine._offsets_db):
            assert {name: type(family.property_int_value(name)) for name in (ACTIVE, IMMUTABLE, HELD)} == {
                ACTIVE: int,
                IMMUTABLE: int,
                HELD: int,
            }
        before = engine._flushes.held_bytes()
        engine.write([], {b"%d" % number: bytes(100) for number in range(1_000)})
        assert (engine._flushes.mark(), engine._flushes.persisted()) == (1_000, 0)
        assert engine._flushes.held_bytes() > before + 100_000
    finally:
        engine.close()
