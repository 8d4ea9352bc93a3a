"""The memory of a process whose stores spill what is beyond their limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.config import StoreConfig
from stores.strategies.store import Store
from stores.tests.tasks.memory_process import EMPTY_PAIRS, PAIR_BYTES, peak_growth_bytes

MIB = 1 << 20
in_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads how much memory a process had from /proc")


@pytest.mark.parametrize(
    ("backend", "settings", "spills_above"),
    [
        ("rocksdb-dual-store", {"uncommitted_max_bytes": 1000}, 1000),
        ("rocksdb-dual-store", {"uncommitted_max_bytes": -1}, 16 * MIB),
        ("rocksdb-dual-store", {}, 16 * MIB),
        ("rocksdb-dual-store", {"uncommitted_max_bytes": 1000, "options": {"staging_buffer_bytes": 5000}}, 5000),
        ("lmdb-indexed-batch", {"uncommitted_max_bytes": 1000}, 1000),
        ("sqlite-indexed-batch", {}, 64 * MIB),
        ("rocksdb-indexed-batch", {"uncommitted_max_bytes": 65 * MIB}, 65 * MIB),
        ("rocksdb-indexed-batch", {"memory_max_bytes": 96 * MIB}, 4 * MIB),
        ("rocksdb-dual-store", {"uncommitted_max_bytes": -1, "memory_max_bytes": 96 * MIB}, 4 * MIB),
        ("lmdb-indexed-batch", {"uncommitted_max_bytes": -1, "options": {"staging_buffer_bytes": 5000}}, 5000),
    ],
)
def test_a_store_spills_what_is_beyond_the_limit(
    tmp_path: Path, backend: str, settings: dict[str, Any], spills_above: int
) -> None:
    with StoreConfig(backend, **settings).open(tmp_path / "s") as store:
        assert isinstance(store, Store)
        pair_bytes = spills_above - PAIR_MEMORY_BYTES
        store.put(b"k", bytes(pair_bytes - 1))
        assert store.uncommitted_memory_bytes() == spills_above
        store.put(b"k", bytes(pair_bytes))
        assert store.uncommitted_memory_bytes() == 0
        assert store.approximate_num_uncommitted_bytes() == pair_bytes + 1


@pytest.mark.parametrize(("backend", "pairs"), [("rocksdb-indexed-batch", EMPTY_PAIRS), ("rocksdb-dual-store", 20_000)])
def test_a_store_spills_before_empty_values_take_more_memory_than_its_limit(
    tmp_path: Path, backend: str, pairs: int
) -> None:
    limit = 10 * pairs
    with StoreConfig(backend, uncommitted_max_bytes=limit).open(tmp_path / "s") as store:
        most = 0
        for number in range(pairs):
            store.put(number.to_bytes(4, "little"), b"")
            if number % 100 == 0:
                most = max(most, store.uncommitted_memory_bytes())
        assert 0.9 * limit < most <= limit
        assert store.approximate_num_uncommitted_bytes() == 4 * pairs


def test_writing_shorter_values_over_longer_ones_makes_no_room_for_pairs_beyond_the_limit(tmp_path: Path) -> None:
    limit = MIB
    with StoreConfig("rocksdb-indexed-batch", uncommitted_max_bytes=limit).open(tmp_path / "s") as store:
        for number in range(80):
            store.put(b"%d" % number, bytes(10_000))
            store.put(b"%d" % number, b"")
        most = 0
        for number in range(20_000):
            store.put(number.to_bytes(3, "big"), b"")
            most = max(most, store.uncommitted_memory_bytes())
        assert most <= limit


@in_linux
def test_the_memory_of_a_process_follows_the_limit_and_not_what_it_stages(tmp_path: Path) -> None:
    growth = peak_growth_bytes(tmp_path, "rocksdb-indexed-batch", 2 * MIB, steps=48, pairs_per_step=250)
    assert growth["entries"] == 48 * 250
    assert growth["commits"] >= 48 * 250 * PAIR_BYTES // (2 * MIB)
    assert growth["grown"] < 32 * MIB < 48 * 250 * PAIR_BYTES


@in_linux
def test_without_a_limit_the_memory_of_a_process_follows_what_it_stages(tmp_path: Path) -> None:
    """That the figures of the other tests can be exceeded."""
    growth = peak_growth_bytes(tmp_path, "rocksdb-indexed-batch", -1, steps=48, pairs_per_step=250)
    assert growth["commits"] == 0
    assert growth["grown"] > 48 * 250 * PAIR_BYTES


@in_linux
@pytest.mark.parametrize(
    ("backend", "pairs"),
    [
        ("rocksdb-indexed-batch", 20_000),
        pytest.param("rocksdb-dual-store", 20_000, marks=pytest.mark.long),
        pytest.param("sqlite-indexed-batch", 8_000, marks=pytest.mark.long),
        pytest.param("sqlite-native", 8_000, marks=pytest.mark.long),
    ],
)
def test_one_step_of_many_times_the_limit_takes_less_memory_than_it_stages(
    tmp_path: Path, backend: str, pairs: int
) -> None:
    growth = peak_growth_bytes(tmp_path, backend, 2 * MIB, steps=1, pairs_per_step=pairs)
    assert (growth["commits"], growth["entries"]) == (1, pairs)
    assert growth["grown"] < 0.7 * pairs * PAIR_BYTES
