"""The cost of staging, deleting and scanning, in comparisons: no step may cost as much as all staged writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from stores import open_store
from stores.batch import buffer
from stores.batch.buffer import IndexedBatch
from stores.batch.merge import lay_over
from stores.engines.engine import Writes
from stores.engines.memory import MemoryEngine
from stores.ordered import WHOLE
from stores.registry import backends
from stores.strategies.store import Store


class Counted(bytes):
    """A key that counts how often it is compared, and its length asked for."""

    looks: ClassVar[int] = 0

    def __lt__(self, other: bytes) -> bool:
        Counted.looks += 1
        return super().__lt__(other)

    def __len__(self) -> int:
        Counted.looks += 1
        return super().__len__()

    __hash__ = bytes.__hash__


def keys(count: int) -> list[Counted]:
    rng = Random(count)
    return [Counted(rng.randbytes(8)) for _ in range(count)]


def counted(work: Callable[[], object]) -> int:
    Counted.looks = 0
    work()
    return Counted.looks


def only_ranges(count: int) -> int:
    batch, made = IndexedBatch(), keys(count)

    def write() -> None:
        for key in made:
            batch.delete_range(key, key)

    return counted(write)


def ranges_between_writes(count: int) -> int:
    batch, made = IndexedBatch(), keys(count)

    def write() -> None:
        for number, key in enumerate(made):
            batch.put(key, b"")
            if number % 2:
                batch.delete_range(made[number - 1], Counted(made[number - 1] + b"\xff"))

    return counted(write)


def ranges_under_a_scan(count: int) -> int:
    """All of them over the same writes, which a scan holds."""
    batch, made = IndexedBatch(), keys(count)
    for key in made:
        batch.put(key, b"")
    with batch.lock:
        batch.freeze()

    def write() -> None:
        for _ in made:
            batch.delete_range(Counted(b"\x00"), Counted(b"\xff" * 9))

    return counted(write)


def ranges_merged_by_scans(count: int) -> int:
    """A scan is made and given back after each."""
    batch, made = IndexedBatch(), keys(count)

    def write() -> None:
        for number, key in enumerate(made):
            batch.delete_range(key, key)
            batch.put(made[number // 2], b"")
            with batch.lock:
                batch.release(batch.freeze())

    return counted(write)


def deletes_of_the_memory_engine(count: int) -> int:
    engine, made = MemoryEngine(), keys(count)
    engine.write([Writes((), dict.fromkeys(made, b"v"))], {})

    def delete() -> None:
        for key in made:
            engine.put(key, None)

    return counted(delete)


@pytest.mark.parametrize(
    "work",
    [only_ranges, ranges_between_writes, ranges_under_a_scan, ranges_merged_by_scans, deletes_of_the_memory_engine],
)
def test_the_cost_of_a_delete_does_not_grow_with_their_number(work: Callable[[int], int]) -> None:
    few, many = work(250) / 250, work(4000) / 4000
    assert many <= 3 * few


@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_step_of_a_scan_costs_what_it_returns_however_much_is_staged(reverse: bool) -> None:
    def first_step(count: int) -> int:
        batch = IndexedBatch()
        with batch.lock:
            batch.release(batch.freeze())
        for key in keys(count):
            # As a store's put: what has no room asks for some.
            if batch.room_bytes < 8:
                batch.make_room(8)
            batch.put(key, b"")
        with batch.lock:
            layers = batch.freeze()

        def step() -> None:
            [layer] = layers
            next(lay_over(iter([]), layer.scan(WHOLE, reverse=reverse), layer.ranges, reverse=reverse))

        return counted(step)

    assert first_step(32_500) <= 2 * first_step(2_500)


@pytest.mark.parametrize("start", [None, b"\x00"])
def test_a_range_delete_of_sqlite_looks_at_no_key_behind_its_end(path: Path, start: bytes | None) -> None:
    def steps(count: int) -> int:
        with open_store("sqlite-indexed-batch", path / str(count)) as store:
            store.put_all([(key, b"v") for key in map(bytes, keys(count))])
            store.commit()
            store.delete_range(start, b"\x01")
            made: list[None] = []
            writer = store.staging.engine._writer  # type: ignore[attr-defined]
            writer.set_progress_handler(lambda: bool(made.append(None)), 1)  # type: ignore[func-returns-value]
            store.commit()
            writer.set_progress_handler(None, 1)
            return len(made)

    assert steps(5_000) <= 2 * steps(500) + 500


class Unordered(bytes):
    """A key that can't be compared."""

    def __lt__(self, other: bytes) -> bool:
        raise AssertionError("a key was compared")


def test_compacting_a_few_staged_writes_compares_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "_FROZEN_MAX", 1)
    batch = IndexedBatch()
    for number in range(20):
        batch.put(Unordered(b"%d" % number), b"value")
        with batch.lock:
            layers = batch.freeze()
    # Every scan holds its layers, so that fewer layers than scans are compacted ones.
    assert len(layers) <= 5


ATTRIBUTES_MAX = 29
"""With 30, an object of CPython 3.11 keeps its attributes in a dict: each access then takes about twice as long."""


@pytest.mark.parametrize("backend", sorted(backends()))
def test_the_parts_of_a_store_have_few_enough_attributes_for_fast_access(backend: str, path: Path) -> None:
    with open_store(backend, path) as store:
        assert isinstance(store, Store)
        store.put_all([(b"1", b"value"), (b"2", b"value")])
        store.commit()
        store.put(b"3", b"value")
        store.delete_range(b"1", b"2")
        staging = store.staging
        counts = {type(part).__name__: len(vars(part)) for part in (store, store.access, staging, staging.engine)}
        if staging.batch is not None:
            counts["IndexedBatch"] = len(vars(staging.batch))
        with store.all() as scan:
            assert [key for key, _ in scan] == [b"3"]
    assert {name: count for name, count in counts.items() if count > ATTRIBUTES_MAX} == {}
